"""The app with all pages: rendered on the server, nothing loaded from other hosts, usable without scripts.

Each page has a JSON twin: the same address with ``.json``, or with ``Accept: application/json``. The pages of
traces and requests show everybody's labels. Annotators must not see each other's, so
a project's pages of that kind are for its administrators and viewers, the others for server-wide ones.
"""

from __future__ import annotations

import logging
import random
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope

from surefoot.errors import (
    ConflictError,
    ExpiredKeyError,
    ForbiddenError,
    NotFoundError,
    SurefootError,
    UnavailableError,
)
from surefoot.server.gateway.monitor import Monitor
from surefoot.server.pages import (
    adjudicate,
    agreement,
    annotate,
    files,
    monitor,
    projects,
    reports,
    request_log,
    run,
    runs,
    session,
)
from surefoot.server.pages.access import Pages, SignInNeeded, bearer_key, proxied_user, visitor_of
from surefoot.server.pages.render import FOLDER, HEADERS, show, wants_json
from surefoot.server.pages.settings import PageSettings
from surefoot.server.store.database import Database

_MODULES = (
    *(session, projects, annotate, agreement, adjudicate, files),
    *(runs, run, reports, request_log, monitor),
)
_LOG = logging.getLogger("surefoot.server")
_LONGEST_QUERY = 1000
"""Characters of a query that survive signing in."""
_STATUS: dict[type[Exception], int] = {
    ExpiredKeyError: 401,  # before its base
    NotFoundError: 404,
    ForbiddenError: 403,
    ConflictError: 409,
    UnavailableError: 503,
    SurefootError: 400,
    RequestValidationError: 400,
}
_MESSAGES = {
    500: "an unforeseen error; the server's log has it",
    503: "the database does not answer; try again in a moment",
}


class _StaticFiles(StaticFiles):
    """Static files that keep their declared type, and run nothing if a browser opens them by themselves."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        for name in ("Content-Security-Policy", "X-Content-Type-Options"):
            response.headers[name] = HEADERS[name]
        return response


def create_pages_app(
    db: Database,
    settings: PageSettings | None = None,
    *,
    rng: random.Random | None = None,
    gateway_monitor: Monitor | None = None,
) -> FastAPI:
    """The pages over a database, as an ASGI app to be mounted at the root, after the gateway's routes.

    ``rng`` chooses random and control items; the default is the system's. ``gateway_monitor`` has a page.
    """
    app = FastAPI(
        title="surefoot pages",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(proxied_user)],  # on every route: it refuses a forged header
    )
    app.router.redirect_slashes = False  # its redirects repeat the Host that the client sent
    app.state.pages = Pages(db, settings or PageSettings(), rng, gateway_monitor)
    for module in _MODULES:
        app.include_router(module.router)
    app.mount("/static", _StaticFiles(directory=FOLDER / "static"), name="static")
    app.add_exception_handler(SignInNeeded, _sign_in_needed)
    for kind in (SurefootError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refused)
    return app


async def _sign_in_needed(request: Request, _: Exception) -> Response:
    if wants_json(request) or bearer_key(request) is not None:
        headers = {**HEADERS, "WWW-Authenticate": "Bearer"}
        return JSONResponse({"error": "sign in, or send a valid API key"}, status_code=401, headers=headers)
    to = request.scope.get("root_path", "") + "/sign-in"
    if request.method == "GET":
        here, query = request.url.path, request.url.query
        to += "?" + urlencode({"next": f"{here}?{query}" if 0 < len(query) <= _LONGEST_QUERY else here})
    return RedirectResponse(to, status_code=303, headers=HEADERS)


def _refused(request: Request, error: Exception) -> Response:
    """The page of an error of this package, of HTTP, or of anything else."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    message, headers = _MESSAGES.get(status, str(error)), {}
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif isinstance(error, RequestValidationError):
        message = "the address or the form contains a value of the wrong type"
    elif status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    elif status == 503:
        _LOG.warning("%s", error)  # it may name hosts and files
        headers["Retry-After"] = "5"
    response = _error_page(request, status, message)
    response.headers.update(headers)
    return response


def _error_page(request: Request, status: int, message: str) -> Response:
    data: dict[str, Any] = {"error": message}
    extra = {"status": status, "title": HTTPStatus(status).phrase}
    try:
        visitor = visitor_of(request)
    except Exception:  # whatever failed, such as the database, may fail here again
        visitor = None
    return show(request, visitor, "error.html", data, status=status, extra=extra)
