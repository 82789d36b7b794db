"""Everything that the server answers, as one list of routes, the applications that serve it, and a server
that finishes running requests before it stops.

The pages are rendered on the server, load nothing from other hosts, and are usable without scripts. A page
with a JSON twin answers it at its address with ``.json``, or with ``Accept: application/json``. The pages of
traces and requests show everybody's labels. Annotators must not see each other's, so a project's pages of
that kind are for its administrators and viewers (``read``), the others for viewers of the whole server.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import random
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.routing import Route as Served
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.server.gateway import endpoints
from surefoot.server.gateway.access import GuardedRoute, KeyAuth, Route
from surefoot.server.gateway.changes import ChangeChart
from surefoot.server.gateway.errors import EXPECTED_ERRORS, ApiError, answered, error_response
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.settings import PageSettings, ServerSettings
from surefoot.server.logs import AUDIT, LogHandler
from surefoot.server.pages import files, labelling, live, projects, reports, run
from surefoot.server.pages.page import ERROR_HANDLERS, Pages, StaticFiles, page_endpoint
from surefoot.server.permissions import Action
from surefoot.server.records import new_id

if TYPE_CHECKING:
    from surefoot.server.store.accounts import Keys
    from surefoot.server.store.database import Database


async def models(gateway: Gateway, _: Request) -> Response:
    """The policy, and the strategies in front of it."""
    return answered({"object": "list", "data": [_model(name) for name in gateway.planner.models()]})


async def model(gateway: Gateway, _: Request, model: str) -> Response:
    """One of them."""
    if model not in gateway.planner.models():
        raise ApiError(404, f"model {model[:100]!r} does not exist", param="model", code="model_not_found")
    return answered(_model(model))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "surefoot"}


async def health(*_: object) -> Response:
    """The process lives."""
    return answered({"status": "ok"})


async def ready(gateway: Gateway, _: Request) -> Response:
    """Requests are accepted: the server is not stopping or full, and the latest answer was recorded."""
    gateway.admission.reserve().close()
    gateway.recorder.check()
    return answered({"status": "ok"})


async def metrics(gateway: Gateway, _: Request) -> Response:
    """Counts, times, score drift and alarms."""
    return Response(gateway.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def missing(_: Gateway, __: Request, path: str) -> Response:
    """Answer in the OpenAI form, not with a page."""
    message = f"there is no /v1/{path[:100]} here; this server generates, scores and verifies"
    raise ApiError(404, message, code="not_found")


def page(path: str, function: Callable[..., Response], action: Action) -> Route:
    """A page with its JSON twin."""
    return Route("GET", path, function, action, twin=True)


_PROJECT: Final = "/projects/{project_id:number}"
_ITEM: Final = f"{_PROJECT}/items/{{item_id:number}}"

GATEWAY: Final[tuple[Route, ...]] = (
    Route("POST", "/v1/chat/completions", endpoints.chat_completions, "chat"),
    Route("POST", "/v1/responses", endpoints.openai_responses, "chat"),
    Route("POST", "/v1/messages", endpoints.anthropic_messages, "chat"),
    Route("POST", "/v1/messages/count_tokens", endpoints.count_tokens, "chat"),
    Route("GET", "/v1/held/{number:number}", endpoints.held, "chat"),
    Route("POST", "/v1/score", endpoints.score, "score"),
    Route("GET", "/v1/models", models, "connect"),
    Route("GET", "/v1/models/{model:path}", model, "connect"),
    Route("GET", "/health", health, "probe"),
    Route("GET", "/ready", ready, "probe"),
    Route("GET", "/metrics", metrics, "operate"),
    Route("*", "/v1/{path:path}", missing, "connect"),
)

PAGES: Final[tuple[Route, ...]] = (
    Route("GET", "/sign-in", projects.sign_in_page, None),
    Route("POST", "/sign-in", projects.sign_in, None),
    Route("POST", "/sign-out", projects.sign_out, None),
    Route("GET", "/", projects.start, "enter"),
    page("/projects", projects.project_list, "enter"),
    Route("POST", "/projects", projects.create, "manage"),
    page("/people", projects.people, "manage"),
    Route("POST", "/people", projects.invite, "manage"),
    Route("POST", "/people/{user_id:number}", projects.change_account, "manage"),
    page(_PROJECT, projects.home, "enter"),
    page(f"{_PROJECT}/settings", projects.settings_page, "manage"),
    Route("POST", f"{_PROJECT}/settings", projects.change, "manage"),
    Route("POST", f"{_PROJECT}/members", projects.set_member, "manage"),
    Route("POST", f"{_PROJECT}/queue", projects.choose_policy, "manage"),
    page(f"{_PROJECT}/label", labelling.work_page, "enter"),
    Route("GET", f"{_PROJECT}/annotate", labelling.next_item, "label", twin=True, changes=True),
    page(_ITEM, labelling.item_page, "label"),
    Route("POST", f"{_ITEM}/label", labelling.label, "label"),
    Route("POST", f"{_ITEM}/undo", labelling.undo, "label"),
    Route("POST", f"{_ITEM}/skip", labelling.skip, "label"),
    page(f"{_PROJECT}/agreement", labelling.agreement_page, "read"),
    page(f"{_PROJECT}/adjudicate", labelling.disagreements, "manage"),
    page(f"{_PROJECT}/files", files.files_page, "read"),
    Route("POST", f"{_PROJECT}/files", files.upload, "manage", files=16),
    Route("GET", f"{_PROJECT}/export/{{name}}", files.export, "read"),
    Route("GET", f"{_PROJECT}/images/{{digest}}", files.image, "enter"),
    page(f"{_PROJECT}/runs", run.run_list, "read"),
    Route("POST", f"{_PROJECT}/runs", run.label_selection, "manage"),
    page(f"{_PROJECT}/run", run.run_page, "read"),
    Route("POST", f"{_PROJECT}/run", run.decide_here, "manage"),
    page(f"{_PROJECT}/compare", run.compare, "read"),
    page("/reports", reports.report_list, "read"),
    page("/reports/pair", reports.pair, "read"),
    page("/report", reports.report_page, "read"),
    Route("GET", "/report-file", reports.report_file, "read"),
    page("/requests", live.request_list, "read"),
    page("/request", live.request_page, "read"),
    Route("GET", "/requests/images/{digest}", files.image, "read"),
    Route("POST", "/requests/import", live.import_answers, "manage"),
    page("/held", live.held_list, "read"),
    page("/held/{number:number}", live.held_page, "read"),
    Route("POST", "/held/{number:number}", live.decide_held, "manage"),
    page("/monitor", live.monitor_page, "read"),
)


def create_app(
    settings: ServerSettings,
    *,
    gateway: Gateway | None = None,
    pages: ASGIApp | None = None,
    keys: Keys | None = None,
) -> Starlette:
    """The application.

    ``pages`` gets every request that no route matches, checks access and limits bodies itself; the gateway's
    routes require a key of ``keys``. Pass the same limits in ``gateway.limits`` and ``settings.limits``. The
    gateway is closed with the application. Raises ``ValueError`` for missing ``keys``.
    """
    if settings.needs_key and keys is None:
        raise ValueError("'keys' is missing: keys are required, and it is where they are looked up")
    auth = KeyAuth(keys, required=settings.needs_key, rate_per_minute=settings.limits.rate_per_minute)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = _PAGE_THREADS
        if gateway is not None:
            await gateway.open()
        yield
        if gateway is not None:
            await gateway.close()
        auth.close()

    app = _application(
        () if gateway is None else GATEWAY,
        lambda route: GuardedRoute(route, gateway=gateway, settings=settings, auth=auth),
        Starlette(lifespan=lifespan),
    )
    app.state.gateway = gateway
    if pages is not None:
        app.mount("/", pages)
    app.middleware_stack = _Entry(app.router, app.routes, gateway)
    return app


def create_pages_app(
    db: Database,
    settings: PageSettings | None = None,
    *,
    rng: random.Random | None = None,
    gateway_monitor: ChangeChart | None = None,
) -> Starlette:
    """The pages over a database, as an ASGI app to be mounted at the root, after the gateway's routes.

    ``rng`` chooses random items and those with known labels; the default is the system's.
    ``gateway_monitor`` has a page. ``surefoot.server.audit`` logs what people do, at least to standard error.
    """
    AUDIT.setLevel(AUDIT.level or logging.INFO)  # under another server too, these lines must not vanish
    if not AUDIT.hasHandlers():
        AUDIT.addHandler(LogHandler())
    pages = Pages(db, settings or PageSettings(), rng, gateway_monitor)
    app = _application(
        PAGES, lambda route: page_endpoint(route, pages), Starlette(exception_handlers=ERROR_HANDLERS)
    )
    app.state.pages = pages
    app.routes.append(Mount("/static", StaticFiles(), name="static"))
    return app


def _application(
    routes: Sequence[Route], endpoint: Callable[[Route], Callable[..., object]], app: Starlette
) -> Starlette:
    """``app`` with routes, in the order of the list."""
    app.state.routes = tuple(routes)
    app.router.redirect_slashes = False  # its redirects repeat the Host that the client sent
    for route in routes:
        for path in route.paths:
            served = Served(path, endpoint(route))
            if served.methods is not None:  # a gateway's route answers other methods itself
                served.methods = {route.method}  # without the HEAD that it adds to GET
            app.routes.append(served)
    return app


_PAGE_THREADS = 4
"""Pages that are made at the same time. More threads make no page sooner, and all share one interpreter with
the event loop, which then waits for each of them."""


class _Entry:
    """ASGI app: an id for each request, in a header, and counts and times for the metrics.

    Errors are answered in the form of the path. A request must name one host: without keys, ``Host`` says
    whether it comes from this machine.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute], gateway: Gateway | None) -> None:
        self.app, self.gateway = app, gateway
        # paths without parameters need no search among the patterns of all routes
        served = (route for route in routes if isinstance(route, Served))
        self._fixed = {route.path: route.app for route in served if not route.param_convertors}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 0
        request_id = new_id("").encode()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id)]}
            await send(message)

        try:
            hosts = sum(name == b"host" for name, _ in scope["headers"])
            if hosts != 1 and (hosts or scope["http_version"] != "1.0"):
                raise ApiError(400, "the request does not have exactly one Host header", code="host")
            app = self._fixed.get(scope["path"], self.app)
            await app(scope, receive, send_with_id)
        except Exception as error:
            if status:  # the answer has begun
                raise
            await error_response(scope["path"], error)(scope, receive, send_with_id)
            if not isinstance(error, EXPECTED_ERRORS):  # for the log
                raise
        finally:
            if self.gateway is not None:
                endpoint = getattr(scope.get("route"), "path", "other")
                self.gateway.metrics.count_request(endpoint, status or 500, time.monotonic() - started)


_M_ARENA_MAX, _ARENAS = -8, 2
"""Option of glibc: heaps of the C library."""
_SWITCH_S = 0.001
"""Seconds for which a thread that computes keeps the interpreter while the event loop waits for it."""
_CANCEL_S = 10
"""Seconds for answering requests that were not done in time."""
_OBJECTS_PER_COLLECTION = 50_000
"""Of new objects; a request makes some hundred."""


class GracefulServer(uvicorn.Server):
    """Stops in order: at a signal, or once ``should_exit`` is set, it accepts no more connections, running
    requests have ``grace_s`` seconds, and the rest is answered 503. A second interrupt ends it at once."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway | None) -> None:
        super().__init__(config)
        self.gateway = gateway
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        if sys.platform == "linux":  # else the C library makes a heap for each thread, and keeps them
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """See the base class. Objects that exist before the start are not searched for garbage."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
        super().run(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and wait for running requests."""
        stopping = asyncio.ensure_future(self.gateway.stop()) if self.gateway is not None else None
        await super().shutdown(sockets)
        if stopping is not None:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)


def make_server(app: Starlette, settings: ServerSettings, *, log_level: str = "warning") -> GracefulServer:
    """A server that is not running yet; ``.run()`` runs it until a signal comes."""
    gateway: Gateway | None = app.state.gateway
    config = uvicorn.Config(
        app,
        http="httptools",
        limit_concurrency=settings.limits.connections,
        proxy_headers=False,
        host=settings.host,
        port=settings.port,
        log_level=log_level,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.limits.grace_s) + _CANCEL_S,
    )
    return GracefulServer(config, gateway)
