"""What lies below the directory of runs: which are runs, their curves, their settings, their saved trees."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from surefoot.annotation.inspect.access import path_below
from surefoot.errors import NotFoundError, StoreError
from surefoot.io.files import ENDINGS

CURVES: Final = "curves.jsonl"
ABOUT: Final = ("rl.json", "training.json", "manifest.json")
"""Files that tell what a run is, the most telling first."""
EVALUATION: Final = "evaluation"
"""``kind`` of a row that measures the policy on held-out problems."""
_DEPTH: Final = 5
_MOST: Final = 2_000
_LISTS: Final = 50
"""Entries of a list that the page of a run shows."""


def run_names(root: Path | None) -> tuple[list[str], bool]:
    """Runs below ``root`` by name, and whether there are more than are looked for. Links are not followed."""
    found = []
    for seen, (folder, files) in enumerate(_folders(root), start=1):
        if CURVES in files or any(name in files for name in ABOUT):
            found.append(folder)
        if seen >= _MOST:
            return sorted(found), True
    return sorted(found), False


def changed(root: Path | None, run: str) -> datetime | None:
    """When one of a run's own files was last written; ``None`` if there are none any more."""
    if root is None:
        return None
    times = []
    for name in (CURVES, *ABOUT):
        with suppress(OSError):
            times.append((root / run / name).lstat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC) if times else None


def tree_names(root: Path | None) -> list[str]:
    """Files below ``root`` that may hold saved trees: ``*trees*`` of a known ending."""
    found = []
    for seen, (folder, files) in enumerate(_folders(root), start=1):
        found += [
            f"{folder}/{name}" if folder else name
            for name in files
            if "trees" in name and name.endswith(ENDINGS)
        ]
        if seen >= _MOST:
            break
    return sorted(found)


def read_curves(path: Path, most: int) -> list[dict[str, Any]]:
    """Rows of a run's curves. A last line that is still being written is left out.

    Raises ``StoreError`` for a file that is too large or holds something else.
    """
    rows = []
    lines = _bytes(path, most).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise StoreError(f"{path.name}, line {number}: not JSON") from error
        if not isinstance(row, dict):
            raise StoreError(f"{path.name}, line {number}: not an object")
        rows.append(row)
    return rows


def read_about(root: Path | None, run: str, most: int) -> dict[str, Any]:
    """The run's own files, with long lists cut; what cannot be read is named with its reason."""
    found: dict[str, Any] = {}
    for name in ABOUT:
        try:
            path = path_below(root, f"{run}/{name}")
        except NotFoundError:
            continue
        try:
            found[name] = _cut(json.loads(_bytes(path, most)))
        except (StoreError, ValueError, RecursionError) as error:
            found[name] = {"unreadable": str(error)[:200]}
    return found


def series(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Points (update, value) of each number in the rows, in the order in which names appear.

    A number that updates and evaluations both have is two curves: that of the evaluations is named so.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    trained = {name for row in rows if row.get("kind") != EVALUATION for name in row}
    for place, row in enumerate(rows, start=1):
        at = row.get("update", place)
        for name, value in row.items():
            if name not in ("kind", "update") and _number(value) and _number(at):
                apart = row.get("kind") == EVALUATION and name in trained
                key = f"{EVALUATION}_{name}" if apart else name
                found.setdefault(key, []).append((float(at), float(value)))
    return found


def _folders(root: Path | None) -> Iterator[tuple[str, list[str]]]:
    """Folders below ``root`` by relative name with their files; hidden ones and links are passed over."""
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
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _cut(value: Any, depth: int = 0) -> Any:
    if depth > 12:
        return "…"
    if isinstance(value, dict):
        return {str(key): _cut(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        more = [f"… {len(value) - _LISTS} more"] if len(value) > _LISTS else []
        return [_cut(inner, depth + 1) for inner in value[:_LISTS]] + more
    return value
