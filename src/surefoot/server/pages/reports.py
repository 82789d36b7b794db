"""Reports of finished runs in the folders given to the server: listed by their JSON, opened, and paired."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from pydantic import Field, ValidationError
from starlette.responses import HTMLResponse, Response

from surefoot.errors import NotFoundError
from surefoot.records import FrozenModel
from surefoot.server.pages.page import Filter, Page, show_list
from surefoot.server.pages.render import HEADERS

_MOST: Final = 200_000_000
"""Bytes of JSON that a search reads, of the newest reports."""
_MOST_REPORTS: Final = 10_000
"""Reports that a search reads, the newest: those without JSON cost time as well."""
_LARGEST: Final = 50_000_000
"""Largest JSON file that is read, in bytes."""
# a report may use only its own styles and drawings
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'self'"
)


class _Verdict(FrozenModel, extra="ignore"):
    tone: str
    short: str = ""
    claim: str = ""


class _Screen(FrozenModel, extra="ignore"):
    sentence: str = ""
    verdicts: tuple[_Verdict, ...] = ()


class _Example(FrozenModel, extra="ignore"):
    trace_id: str


class _Content(FrozenModel, extra="ignore"):
    """The fields that the pages read from a report's JSON file."""

    first_screen: _Screen = _Screen()
    examples: tuple[_Example, ...] = ()
    right_by_example: dict[str, bool] = Field(default_factory=dict)


def report_list(page: Page) -> Response:
    """Reports, newest first, with their sentence and verdicts; words search the sentences and names."""
    files, size, left_out = list(_files(page).items()), page.settings.rows, 0
    start = (max(1, page.query.natural("page", default=1)) - 1) * size
    if words := Filter.of(page, {}).words.casefold().split():
        read = sum(total <= _MOST for total in accumulate(_size(path) for _, path in files[:_MOST_REPORTS]))
        left_out = len(files) - read
        texts = (f"{_row(*file)['title']} {file[0]}".casefold() for file in files[:read])
        hits = zip(files[:read], texts, strict=True)
        files = [file for file, text in hits if all(word in text for word in words)]
    rows = [_row(*file) for file in files[start : start + size]]
    data = {"total": len(files), "left_out": left_out, "folders": list(map(str, page.settings.reports))}
    return show_list(page, "reports", rows, data)


def report_page(page: Page) -> Response:
    """One report below the menu, and links to the runs of its examples."""
    name, path = next(iter(_chosen(page, 1).items()))
    ids = [example.trace_id for example in _content(path).examples]
    file = f"/report-file?{urlencode({'id': name})}"
    return page.show("report.html", {**_row(name, path), "runs": _runs(page, ids, report=name)}, file=file)


def report_file(page: Page) -> Response:
    """The page of a report as it was written, without scripts."""
    (path,) = _chosen(page, 1).values()
    headers = {**HEADERS, "Content-Security-Policy": _POLICY, "X-Frame-Options": "SAMEORIGIN"}
    try:
        return HTMLResponse(path.read_text("utf-8", "replace"), headers=headers)
    except OSError as error:
        raise NotFoundError("this report cannot be read any more") from error


def pair(page: Page) -> Response:
    """Two reports (``?id=`` twice) example by example: examples that the newer one fixed or broke."""
    (new, new_path), (old, old_path) = _chosen(page, 2).items()
    old_right, new_right = (_content(path).right_by_example for path in (old_path, new_path))
    shared = [name for name in new_right if name in old_right]
    fixed = [name for name in shared if new_right[name] and not old_right[name]]
    broke = [name for name in shared if old_right[name] and not new_right[name]]
    data: dict[str, Any] = {"old": _row(old, old_path), "new": _row(new, new_path), "shared": len(shared)}
    both_right = sum(new_right[name] and old_right[name] for name in shared)
    data |= {"fixed": fixed, "broke": broke, "both_right": both_right}
    return page.show("pair.html", data, runs=_runs(page, [*fixed, *broke]))


def _runs(page: Page, ids: list[str], **more: str) -> dict[str, str]:
    """Addresses of runs, where a project of the visitor has them."""
    links: dict[str, str] = {}
    for project, _ in page.projects() if ids else ():
        for run in page.db.traces.outcomes_of(project.id, ids):
            links[run] = f"/projects/{project.id}/run?{urlencode({'id': run, **more})}"
    return {run: links[run] for run in ids if run in links}


def _files(page: Page) -> dict[str, Path]:
    """The pages in the folders by name, newest first; links out of a folder are left out."""
    files: dict[str, Path] = {}
    for folder in page.settings.reports:
        root = folder.resolve()
        for path in root.rglob("*.html"):
            if path.is_file() and path.resolve().is_relative_to(root):
                name = f"{root.name}/{path.relative_to(root)}".encode("utf-8", "replace").decode()
                files[name if name not in files else f"{path}"] = path  # two folders may have one name
    return dict(sorted(files.items(), key=lambda item: -_stat(item[1])[1]))


def _chosen(page: Page, count: int) -> dict[str, Path]:
    """The ``count`` reports of the address, newest first. Raises ``NotFoundError``."""
    ids = page.query.ids("id", exactly=count)
    chosen = {name: path for name, path in _files(page).items() if name in ids}
    if len(chosen) < count:
        missing = next((name for name in ids if name not in chosen), "")
        raise NotFoundError(f"report '{missing}' does not exist")
    return chosen


def _stat(path: Path) -> tuple[int, float]:
    """Size of a file, and time of its last change; zeros if it is gone."""
    with suppress(OSError):
        return (facts := path.stat()).st_size, facts.st_mtime
    return 0, 0.0


def _size(path: Path) -> int:
    """Bytes that are read of the JSON file of a report; 0 without one, and of one that is too large."""
    size, _ = _stat(path.with_suffix(".json"))
    return size if size <= _LARGEST else 0


def _content(path: Path) -> _Content:
    """The JSON file of a report; empty without a readable one."""
    try:
        text = path.with_suffix(".json").read_bytes() if _size(path) else b"{}"
        return _Content.model_validate_json(text)
    except (OSError, ValidationError):
        return _Content()


def _row(name: str, path: Path) -> dict[str, Any]:
    screen = _content(path).first_screen
    sentence = screen.sentence or name
    link, created = f"/report?{urlencode({'id': name})}", datetime.fromtimestamp(_stat(path)[1], UTC)
    about = {"id": name, "link": link, "title": sentence, "sentence": sentence, "created": created}
    return {**about, "verdicts": screen.verdicts}
