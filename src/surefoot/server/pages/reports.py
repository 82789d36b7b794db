"""Reports of finished runs: those in the folders given to the server, listed side by side and opened."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from heapq import nlargest
from html import escape, unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, Response

from surefoot.errors import NotFoundError
from surefoot.server.pages.page import Page
from surefoot.server.pages.render import HEADERS

_MOST: Final = 500
"""Reports that are listed."""
_HEAD: Final = 200_000
"""Characters in which a report's first screen is."""
_SENTENCE = re.compile(r"<h1>([^<]{1,2000})</h1>")
_CARD = re.compile(r'<td><span class="chip ([a-z]{1,20})">([^<]{1,20})</span></td><td>([^<]{1,200}?)[.;:] ')
_EXAMPLE = re.compile(r"<summary>Trace ([^<]{1,2000})</summary>")
# a report brings its own styles and drawings, and may do nothing else
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'none'"


def report_list(page: Page) -> Response:
    """Reports, newest first, with their sentence and cards; ``?id=`` (several): those alone, to compare."""
    files = _files(page)
    ids = page.request.query_params.getlist("id")
    reports = [_first_screen(name, files[name]) for name in files if not ids or name in ids]
    questions = dict.fromkeys(card["question"] for report in reports for card in report["cards"])
    data = {
        "folders": [str(folder) for folder in page.settings.reports],
        "questions": list(questions),
        "compared": bool(ids),
        "reports": reports,
    }
    return page.show("reports.html", data, query=urlencode({"id": ids}, doseq=True))


def report_page(page: Page) -> Response:
    """One report, without scripts; its examples lead to their runs, where a project has them."""
    name = page.query.required_id("id")
    path = _files(page).get(name)
    if path is None:
        raise NotFoundError(f"report '{name}' does not exist")
    report = path.read_text("utf-8", "replace")
    ids = {unescape(match[1]) for match in _EXAMPLE.finditer(report)}
    base, project_of = page.root, dict[str, int]()
    for project, _ in page.projects() if ids else ():
        project_of |= dict.fromkeys(page.db.traces.outcomes_of(project.id, ids), project.id)

    def linked(match: re.Match[str]) -> str:
        run = unescape(match[1])
        if run not in project_of:
            return match[0]
        address = escape(f"{base}/projects/{project_of[run]}/run?{urlencode({'id': run, 'report': name})}")
        return f'{match[0]}<p><a href="{address}">Open this run</a></p>'

    headers = {**HEADERS, "Content-Security-Policy": _POLICY}
    return HTMLResponse(_EXAMPLE.sub(linked, report), headers=headers)


def _files(page: Page) -> dict[str, Path]:
    """The newest pages in the folders by name, newest first; links out of a folder are left out."""
    files: dict[str, Path] = {}
    for folder in page.settings.reports:
        root = folder.resolve()
        for path in root.rglob("*.html"):
            if path.is_file() and path.resolve().is_relative_to(root):
                files[f"{root.name}/{path.relative_to(root)}"] = path
    return dict(nlargest(_MOST, files.items(), key=lambda item: item[1].stat().st_mtime))


def _first_screen(name: str, path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(_HEAD)
    sentence = _SENTENCE.search(head)
    cards = [
        {
            "question": word,
            "kind": kind,
            "chip": unescape(text),
            "number": "",
        }
        for kind, word, text in _CARD.findall(head)
    ]
    return {
        "id": name,
        "link": f"/report?{urlencode({'id': name})}",
        "sentence": unescape(sentence[1]) if sentence else name,
        "cards": cards,
        "finished": datetime.fromtimestamp(path.stat().st_mtime, UTC),
    }
