"""The pages where people label steps: server-rendered, nothing from a network, usable without a script.

``create_pages_app`` makes an ASGI app to be mounted at the root, after the gateway's routes. Each page has a
JSON twin: the same address with ``.json``, or with ``Accept: application/json``.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from surefoot.annotation.pages import (
    adjudicate,
    agreement,
    annotate,
    flags,
    people,
    projects,
    queue,
    session,
    transfer,
)
from surefoot.annotation.pages.context import FOLDER, Pages, PageSettings
from surefoot.annotation.pages.render import HEADERS, show, wants_json
from surefoot.annotation.pages.visitors import SignInNeeded, visitor_of
from surefoot.errors import ConflictError, ForbiddenError, NotFoundError, SurefootError

if TYPE_CHECKING:
    from surefoot.annotation.database import Database

__all__ = ["PageSettings", "create_pages_app"]

_MODULES = (session, projects, people, annotate, queue, agreement, adjudicate, flags, transfer)
_STATUS: dict[type[Exception], int] = {NotFoundError: 404, ForbiddenError: 403, ConflictError: 409}
_TITLES = {
    400: "That does not fit",
    403: "Not for you",
    404: "Not found",
    405: "Not that way",
    409: "Somebody was first",
    411: "How long is it?",
    413: "Too large",
    429: "Too often",
}


def create_pages_app(
    db: Database, settings: PageSettings | None = None, *, rng: random.Random | None = None
) -> FastAPI:
    """The pages over a database. ``rng`` draws random and control items; left out, it is the system's."""
    app = FastAPI(title="surefoot pages", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.pages = Pages(db, settings or PageSettings(), rng)
    for module in _MODULES:
        app.include_router(module.router)
    app.mount("/static", StaticFiles(directory=FOLDER / "static"), name="static")
    app.add_exception_handler(SignInNeeded, _sign_in_needed)
    app.add_exception_handler(SurefootError, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    return app


async def _sign_in_needed(request: Request, _: Exception) -> Response:
    if wants_json(request) or "authorization" in request.headers:
        headers = {**HEADERS, "WWW-Authenticate": "Bearer"}
        return JSONResponse({"error": "sign in, or send a valid API key"}, status_code=401, headers=headers)
    to = request.scope.get("root_path", "") + "/sign-in"
    if request.method == "GET":
        to += "?" + urlencode({"next": request.url.path})
    return RedirectResponse(to, status_code=303, headers=HEADERS)


def _refused(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
    return _error_page(request, status, str(error))


def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    answer = _error_page(request, error.status_code, str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _invalid(request: Request, _: Exception) -> Response:
    return _error_page(request, 400, "the address or the form holds a value of the wrong kind")


def _error_page(request: Request, status: int, message: str) -> Response:
    data: dict[str, Any] = {"error": message}
    extra = {"status": status, "title": _TITLES.get(status, "That did not work")}
    return show(request, visitor_of(request), "error.html", data, status=status, extra=extra)
