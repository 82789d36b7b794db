"""Reports of finished runs in the folders given to the server: listed by their JSON, opened, and paired."""

from __future__ import annotations

from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import HTMLResponse, Response

from surefoot.errors import NotFoundError, StoreError
from surefoot.server.pages.listing import Filter, show_list
from surefoot.server.pages.page import Page
from surefoot.server.pages.render import HEADERS

_MOST: Final = 500
"""Newest reports among which words are searched."""
_HEAD: Final = 200_000
"""Characters in which the heading of a page without JSON is."""
_LARGEST: Final = 50_000_000
"""Bytes of a JSON file that is read."""
_PAIRED: Final = 200
"""Examples of a pair that are listed."""
# a report brings its own styles and drawings, and may do nothing else
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'self'"


def report_list(page: Page) -> Response:
    """Reports, newest first, with their sentence and verdicts; words search the sentences and names."""
    files, size = list(_files(page).items()), page.settings.rows
    number = max(1, page.query.natural("page", default=1))
    try:
        box = Filter.of(page, {})
    except StoreError as error:
        return show_list(page, "reports", [], error=str(error))
    if words := box.words.casefold().split():
        rows = [_row(*file) for file in files[:_MOST]]
        texts = [f"{row['sentence']} {row['id']}".casefold() for row in rows]
        rows = [row for row, text in zip(rows, texts, strict=True) if all(word in text for word in words)]
        total, rows = len(rows), rows[(number - 1) * size : number * size]
    else:
        total, rows = len(files), [_row(*file) for file in files[(number - 1) * size : number * size]]
    pages = max(1, -(-total // size))
    data = {"folders": [str(folder) for folder in page.settings.reports], "total": total, "page": number}
    data |= {"pages": pages, "previous": page.link(page=number - 1) if number > 1 else None}
    data["next"] = page.link(page=number + 1) if number < pages else None
    return show_list(page, "reports", rows, where=box, past=number > pages, data=data)


def report_page(page: Page) -> Response:
    """One report below the menu, and links to the runs of its examples."""
    name = page.query.required_id("id")
    path = _file(page, name)
    examples = _list(_content(path).get("examples"))
    ids = [
        one["trace_id"] for one in examples if isinstance(one, dict) and isinstance(one.get("trace_id"), str)
    ]
    data = {**_row(name, path), "runs": _runs(page, ids, report=name)}
    return page.show("report.html", data, file=f"/report-file?{urlencode({'id': name})}")


def report_file(page: Page) -> Response:
    """The page of a report as it was written, without scripts."""
    report = _file(page, page.query.required_id("id")).read_text("utf-8", "replace")
    headers = {**HEADERS, "Content-Security-Policy": _POLICY, "X-Frame-Options": "SAMEORIGIN"}
    return HTMLResponse(report, headers=headers)


def pair(page: Page) -> Response:
    """Two reports (``?id=`` twice) example by example: what the newer one fixed, and what it broke."""
    ids, files = page.query.ids("id"), _files(page)
    if len(ids) != 2:
        raise StoreError(f"choose two reports to compare, not {len(ids)}")
    new, old = sorted((_file(page, name) for name in ids), key=lambda path: -path.stat().st_mtime)
    before, after = (_content(path).get("right_by_example") for path in (old, new))
    before, after = (right if isinstance(right, dict) else {} for right in (before, after))
    shared = [name for name in after if isinstance(before.get(name), bool) and isinstance(after[name], bool)]
    fixed = [name for name in shared if after[name] and not before[name]]
    broke = [name for name in shared if before[name] and not after[name]]
    names = {path: name for name, path in files.items()}
    data = {
        "old": _row(names[old], old),
        "new": _row(names[new], new),
        "shared": len(shared),
        "fixed": fixed,
        "broke": broke,
        "both_right": sum(after[name] and before[name] for name in shared),
    }
    return page.show("pair.html", data, runs=_runs(page, [*fixed[:_PAIRED], *broke[:_PAIRED]]), most=_PAIRED)


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
                files[f"{root.name}/{path.relative_to(root)}"] = path
    return dict(sorted(files.items(), key=lambda item: -item[1].stat().st_mtime))


def _file(page: Page, name: str) -> Path:
    path = _files(page).get(name)
    if path is None:
        raise NotFoundError(f"report '{name}' does not exist")
    return path


def _content(path: Path) -> dict[str, Any]:
    """The JSON file beside a page; empty without a readable one."""
    path = path.with_suffix(".json")
    try:
        content = from_json(path.read_bytes()) if path.stat().st_size <= _LARGEST else {}
    except (OSError, ValueError):
        content = {}
    return content if isinstance(content, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _row(name: str, path: Path) -> dict[str, Any]:
    screen = _content(path).get("first_screen")
    screen = screen if isinstance(screen, dict) else {}
    sentence = screen.get("sentence")
    if not isinstance(sentence, str):
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD)
        heading, end, _ = head.partition("<h1>")[2].partition("</h1>")
        sentence = unescape(heading) if end and "<" not in heading else name
    verdicts = [one for one in _list(screen.get("verdicts")) if isinstance(one, dict)]
    return {
        "id": name,
        "link": f"/report?{urlencode({'id': name})}",
        "sentence": sentence,
        "title": sentence,
        "cards": [{name: str(one.get(name, "")) for name in ("tone", "short", "claim")} for one in verdicts],
        "created": datetime.fromtimestamp(path.stat().st_mtime, UTC),
    }
