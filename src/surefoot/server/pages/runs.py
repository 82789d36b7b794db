"""Training and RL runs below a configured directory, with their curves and settings."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic_core import from_json

from surefoot.errors import NotFoundError, StoreError
from surefoot.io.sources import ENDINGS
from surefoot.server.pages.access import SiteReader, pages_of
from surefoot.server.pages.charts import HEIGHT, WIDTH, charts
from surefoot.server.pages.forms import query_of
from surefoot.server.pages.render import show, twin

router = APIRouter()

_LIST = 200
"""Runs per page."""


@twin(router, "/runs")
def run_list(request: Request, visitor: SiteReader) -> Response:
    """Runs by name; ``?text=`` filters by name."""
    text, root = query_of(request).optional("text", most=500), pages_of(request).settings.runs
    names, more = run_names(root)
    fitting = [name for name in names if name and (text is None or text in name)]
    data = {
        "configured": root is not None,
        "text": text,
        "runs": [
            {
                "name": name,
                "link": f"/run?{urlencode({'name': name})}",
                "changed": changed(root, name),
                "curves": root is not None and (root / name / CURVES).is_file(),
            }
            for name in fitting[:_LIST]
        ],
        "left_out": max(0, len(fitting) - _LIST),
        "more": more,
    }
    query = urlencode({"text": text} if text else {})
    return show(request, visitor, "runs.html", data, extra={"query": query})


@twin(router, "/run")
def run_page(request: Request, visitor: SiteReader) -> Response:
    """One run: its curves, alarms and settings."""
    settings, name = pages_of(request).settings, query_of(request).required_id("name")
    folder = path_below(settings.runs, name)
    if not folder.is_dir():
        raise NotFoundError(f"there is no run '{name}'")
    has_curves = (folder / CURVES).is_file()
    rows = (
        read_curves(path_below(settings.runs, f"{name}/{CURVES}"), settings.max_file_bytes)
        if has_curves
        else []
    )
    about = read_about(settings.runs, name, settings.max_file_bytes)
    if not has_curves and not about:
        raise NotFoundError(f"there is no run '{name}'")
    curves = series(rows)
    log, drawings = _log(about), charts(curves)
    data = {
        "name": name,
        "rows": len(rows),
        "series": curves,
        "alarms": log.get("alarms", []),
        "stopped": log.get("stopped"),
        "about": about,
    }
    extra: dict[str, Any] = {
        "query": urlencode({"name": name}),
        "charts": [one for one in drawings if one["least"] != one["most"]],
        "constant": [one for one in drawings if one["least"] == one["most"]],
        "width": WIDTH,
        "height": HEIGHT,
        "files": {one: json.dumps(content, indent=1, ensure_ascii=False) for one, content in about.items()},
    }
    return show(request, visitor, "run.html", data, extra=extra)


def _log(about: dict[str, Any]) -> dict[str, Any]:
    """The log of an RL run, as far as it has the expected structure."""
    log = about.get("rl.json", {}).get("log") if isinstance(about.get("rl.json"), dict) else None
    if not isinstance(log, dict):
        return {}
    alarms = log.get("alarms")
    return {
        "alarms": [_alarm(one) for one in alarms if isinstance(one, dict)]
        if isinstance(alarms, list)
        else [],
        "stopped": log.get("stopped") if isinstance(log.get("stopped"), str) else None,
    }


def _alarm(row: dict[str, Any]) -> dict[str, Any]:
    """An alarm; ``None`` for what it lacks or has as another type."""
    texts = {name: row.get(name) if isinstance(row.get(name), str) else None for name in ("name", "message")}
    return {**texts, "update": row.get("update") if _number(row.get("update")) else None}


CURVES: Final = "curves.jsonl"
ABOUT: Final = ("rl.json", "training.json", "manifest.json")
"""Files that describe a run, the most informative first."""
EVALUATION: Final = "evaluation"
"""``kind`` of a row that measures the policy on held-out problems."""
_DEPTH: Final = 5
_MOST: Final = 2_000
_LISTS: Final = 50
"""Entries of a list that a run's page shows."""


def run_names(root: Path | None) -> tuple[list[str], bool]:
    """Runs below ``root`` by name, and whether the search stopped early. Links are not followed."""
    names = []
    for number, (folder, files) in enumerate(_folders(root), start=1):
        if CURVES in files or any(name in files for name in ABOUT):
            names.append(folder)
        if number >= _MOST:
            return sorted(names), True
    return sorted(names), False


def changed(root: Path | None, run: str) -> datetime | None:
    """When a run's files were last written; ``None`` if they are gone."""
    if root is None:
        return None
    times = []
    for name in (CURVES, *ABOUT):
        with suppress(OSError):
            times.append((root / run / name).lstat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC) if times else None


def tree_names(root: Path | None) -> list[str]:
    """Files below ``root`` that may hold saved trees: ``*trees*`` of a known ending."""
    names = []
    for number, (folder, files) in enumerate(_folders(root), start=1):
        names += [
            f"{folder}/{name}" if folder else name
            for name in files
            if "trees" in name and name.endswith(ENDINGS)
        ]
        if number >= _MOST:
            break
    return sorted(names)


def read_curves(path: Path, most: int) -> list[dict[str, Any]]:
    """Rows of a run's curves, without a last line that is still being written.

    Raises ``StoreError`` for a file that is too large or has other content.
    """
    rows = []
    lines = _bytes(path, most).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = from_json(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise StoreError(f"{path.name}, line {number}: not JSON") from error
        if not isinstance(row, dict):
            raise StoreError(f"{path.name}, line {number}: not an object")
        rows.append(row)
    return rows


def read_about(root: Path | None, run: str, most: int) -> dict[str, Any]:
    """The run's files with long lists cut; an unreadable file gives its reason."""
    about: dict[str, Any] = {}
    for name in ABOUT:
        try:
            path = path_below(root, f"{run}/{name}")
        except NotFoundError:
            continue
        try:
            about[name] = _cut(from_json(_bytes(path, most)))
        except (StoreError, ValueError) as error:
            about[name] = {"unreadable": str(error)[:200]}
    return about


def series(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Points (update, value) of each number in the rows, in order of first appearance.

    A number that both updates and evaluations have gives two curves; that of evaluations is prefixed.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    trained = {name for row in rows if row.get("kind") != EVALUATION for name in row}
    for place, row in enumerate(rows, start=1):
        at = row.get("update", place)
        for name, value in row.items():
            if name not in ("kind", "update") and _number(value) and _number(at):
                apart = row.get("kind") == EVALUATION and name in trained
                key = f"{EVALUATION}_{name}" if apart else name
                points.setdefault(key, []).append((float(at), float(value)))
    return points


def _folders(root: Path | None) -> Iterator[tuple[str, list[str]]]:
    """Folders below ``root`` by relative name, with their files, without hidden ones and links."""
    if root is None or not root.is_dir():
        return
    for folder, below, files in os.walk(root, followlinks=False):
        name = Path(folder).relative_to(root).as_posix()
        name = "" if name == "." else name
        below[:] = sorted(one for one in below if not one.startswith("."))
        if name.count("/") >= _DEPTH - 1:
            below.clear()
        yield name, files


def _bytes(path: Path, most: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > most:
            raise StoreError(f"{path.name} has {size} bytes; at most {most} are read")
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path.name} cannot be read: {error.strerror}") from error


def _number(value: object) -> bool:
    """Whether ``value`` is a number that a float can hold; JSON has others."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


def _cut(value: Any, depth: int = 0) -> Any:
    if depth > 12:
        return "…"
    if isinstance(value, dict):
        return {str(key): _cut(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        more = [f"… {len(value) - _LISTS} more"] if len(value) > _LISTS else []
        return [_cut(inner, depth + 1) for inner in value[:_LISTS]] + more
    return value


_PART: Final = re.compile(r"[A-Za-z0-9_=+,@][A-Za-z0-9_=+,@.-]{0,199}", re.ASCII)
_MOST_PARTS: Final = 8


def path_below(root: Path | None, name: str) -> Path:
    """The file or directory called ``name`` below ``root``.

    Raises ``StoreError`` for a name that is not a plain relative path, ``NotFoundError`` for one that does
    not exist or links outside ``root``; neither reveals anything about what lies outside.
    """
    parts = name.split("/")
    if len(parts) > _MOST_PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise StoreError("'name' must be names of letters, digits and . _ = + , @ - separated by '/'")
    missing = NotFoundError(f"there is nothing called '{name}'")
    if root is None:
        raise missing
    try:
        base = root.resolve(strict=True)
        path = base.joinpath(*parts).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise missing from error
    if not path.is_relative_to(base):
        raise missing
    return path
