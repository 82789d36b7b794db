"""Training and RL runs with their curves, from the directory of runs."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.annotation.inspect.access import asked, needed, path_below, require_reader, settings_of
from surefoot.annotation.inspect.charts import HEIGHT, WIDTH, charts
from surefoot.annotation.inspect.run_files import CURVES, changed, read_about, read_curves, run_names, series
from surefoot.annotation.pages.render import show, twin
from surefoot.annotation.pages.visitors import SignedIn
from surefoot.errors import NotFoundError

router = APIRouter()

_LIST = 200
"""Runs of one page."""


@twin(router, "/runs")
def run_list(request: Request, visitor: SignedIn) -> Response:
    """Runs by name; ``?text=`` must occur in it."""
    require_reader(visitor)
    text, root = asked(request, "text"), settings_of(request).runs
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
    return show(request, visitor, "inspect/runs.html", data, extra={"query": query})


@twin(router, "/run")
def run_page(request: Request, visitor: SignedIn) -> Response:
    """One run: its curves, alarms and settings."""
    require_reader(visitor)
    settings, name = settings_of(request), needed(request, "name")
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
    found = series(rows)
    log, drawn = _log(about), charts(found)
    data = {
        "name": name,
        "rows": len(rows),
        "series": found,
        "alarms": log.get("alarms", []),
        "stopped": log.get("stopped"),
        "about": about,
    }
    extra: dict[str, Any] = {
        "query": urlencode({"name": name}),
        "charts": [one for one in drawn if one["least"] != one["most"]],
        "constant": [one for one in drawn if one["least"] == one["most"]],
        "width": WIDTH,
        "height": HEIGHT,
        "files": {one: json.dumps(content, indent=1, ensure_ascii=False) for one, content in about.items()},
    }
    return show(request, visitor, "inspect/run.html", data, extra=extra)


def _log(about: dict[str, Any]) -> dict[str, Any]:
    """The log of an RL run, as far as it has the expected form."""
    log = about.get("rl.json", {}).get("log") if isinstance(about.get("rl.json"), dict) else None
    if not isinstance(log, dict):
        return {}
    alarms = log.get("alarms")
    return {
        "alarms": [one for one in alarms if isinstance(one, dict)] if isinstance(alarms, list) else [],
        "stopped": log.get("stopped") if isinstance(log.get("stopped"), str) else None,
    }
