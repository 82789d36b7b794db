"""The pages where people look: traces and their scores, candidates, search trees, labels, runs, the gateway.

``install_inspection`` adds them to the app of ``surefoot.annotation.pages``, whose sign-in, forms and
templates they use. Each has a JSON twin. They show everybody's labels, so annotators, who are blind to each
other, do not get them: a project's pages are for its administrators and viewers, the others for those of the
server.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from jinja2 import BaseLoader, ChoiceLoader, FileSystemLoader

from surefoot.annotation.inspect import (
    candidates,
    exchange,
    gateway_log,
    monitor_page,
    run_pages,
    taking,
    traces,
    tree_pages,
)
from surefoot.annotation.inspect.access import InspectSettings
from surefoot.annotation.inspect.figures import axis_text, bounded, figure, hard_text
from surefoot.annotation.pages.context import Pages

__all__ = ["InspectSettings", "install_inspection"]

FOLDER = Path(__file__).parent
_MODULES = (traces, candidates, tree_pages, run_pages, gateway_log, taking, monitor_page, exchange)
# address, name, and how the addresses begin that belong to it, too
_PROJECT_TABS = (
    ("/traces", "Traces", "/trace"),
    ("/problems", "Candidates", "/problem"),
    ("/formats", "Formats", "/formats"),
)
_SITE_TABS = (
    ("/runs", "Runs", "/run"),
    ("/trees", "Trees", "/tree"),
    ("/requests", "Requests", "/request"),
    ("/monitor", "Monitor", "/monitor"),
)


def install_inspection(app: FastAPI, settings: InspectSettings | None = None) -> None:
    """Add the pages to an app that ``create_pages_app`` made."""
    pages: Pages = app.state.pages
    app.state.inspect = settings or InspectSettings()
    there = pages.templates.loader
    ours: list[BaseLoader] = [FileSystemLoader(FOLDER / "templates")]
    pages.templates.loader = ChoiceLoader(ours if there is None else [there, *ours])
    pages.templates.filters.update(figure=figure, hard=hard_text, axis=axis_text, bounded=bounded)
    pages.templates.globals.update(project_tabs=_PROJECT_TABS, site_tabs=_SITE_TABS)
    for module in _MODULES:
        app.include_router(module.router)
    app.mount("/inspect-static", StaticFiles(directory=FOLDER / "static"), name="inspect-static")
