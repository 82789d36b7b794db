"""The application: routes, middleware, and a server that finishes running requests before it stops."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import uvicorn
from anyio import to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from surefoot import __version__
from surefoot.server.gateway.access import DirectPeer, KeyAuth, guarded_route
from surefoot.server.gateway.chat import chat_routes
from surefoot.server.gateway.errors import (
    EXPECTED_ERRORS,
    ApiError,
    ResponseModel,
    declared,
    error_response,
    install_error_handlers,
    response_of,
)
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.score import score_routes
from surefoot.server.gateway.settings import ServerSettings

if TYPE_CHECKING:
    from surefoot.server.store.keys import Keys


def create_app(
    settings: ServerSettings,
    *,
    gateway: Gateway | None = None,
    routers: Sequence[APIRouter] = (),
    pages: ASGIApp | None = None,
    keys: Keys | None = None,
) -> FastAPI:
    """The application.

    ``routers`` and ``pages`` check access themselves. ``pages`` gets every request that no route matches, and
    limits bodies itself; the gateway's routes require a key of ``keys``. Pass the same limits in
    ``gateway.limits`` and ``settings.limits``. The gateway is closed with the application. Raises
    ``ValueError`` for missing ``keys``.
    """
    if settings.needs_key and keys is None:
        raise ValueError("'keys' is missing: keys are required, and it is where they are looked up")
    auth = KeyAuth(
        keys,
        required=settings.needs_key,
        rate_per_minute=settings.limits.rate_per_minute,
        on_refusal=gateway.metrics.key_refused if gateway is not None else lambda _: None,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = _PAGE_THREADS
        if gateway is not None:
            await gateway.open()
        yield
        if gateway is not None:
            await gateway.close()
        auth.close()

    app = FastAPI(
        title="surefoot",
        version=__version__,
        description="An OpenAI-compatible gateway that verifies as it generates.",
        docs_url=None,  # its scripts would come from another server
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    app.router.redirect_slashes = False  # its redirects repeat the Host that the client sent
    install_error_handlers(app)
    client = guarded_route(None, settings=settings, auth=auth)
    probe = guarded_route(None, settings=settings, auth=auth, public=settings.open_health)
    operator = guarded_route("pages", settings=settings, auth=auth)
    direct: dict[str, APIRoute] = {}
    if gateway is not None:
        generating = chat_routes(gateway, guarded_route("chat", settings=settings, auth=auth))
        direct = {route.path: route for route in generating.routes if isinstance(route, APIRoute)}
        app.include_router(generating)
        app.include_router(score_routes(gateway, guarded_route("score", settings=settings, auth=auth)))
        for router in status_routes(gateway, client, probe, operator):
            app.include_router(router)
    app.include_router(_description_routes(app, client))
    for router in routers:
        app.include_router(router)
    if gateway is not None:
        app.include_router(_missing_routes(app, client))
    _adapt_openapi(app, with_keys=settings.needs_key)
    if pages is not None:
        app.mount("/", pages)
    app.middleware_stack = _Entry(app.build_middleware_stack(), direct, gateway)
    return app


class _Entry:
    """ASGI app: an id for each request, in a header, and counts and times for the metrics.

    A request must name one host: without keys, ``Host`` says whether it comes from this machine. Posts of
    JSON go to ``direct`` routes, by path, without the layers of FastAPI and its search for a route; ``app``
    answers everything else.
    """

    def __init__(self, app: ASGIApp, direct: Mapping[str, APIRoute], gateway: Gateway | None) -> None:
        self.app, self.direct, self.gateway = app, direct, gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 0
        request_id = secrets.token_hex(16).encode()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id)]}
            await send(message)

        try:
            if not _names_one_host(scope):
                error = ApiError(400, "the request does not have exactly one Host header", code="host")
                await response_of(error, scope["path"])(scope, receive, send_with_id)
                return
            if (route := self._direct_route(scope)) is None:
                await self.app(scope, receive, send_with_id)
                return
            scope["route"], scope["path_params"] = route, {}
            try:
                await route.handle(scope, receive, send_with_id)
            except Exception as error:
                if status:  # the answer has begun
                    raise
                response = await error_response(Request(scope), error)
                await response(scope, receive, send_with_id)
                if not isinstance(error, EXPECTED_ERRORS):  # for the log
                    raise
        finally:
            if self.gateway is not None:
                endpoint = getattr(scope.get("route"), "path", "other")
                self.gateway.metrics.count_request(endpoint, status or 500, time.monotonic() - started)

    def _direct_route(self, scope: Scope) -> APIRoute | None:
        """The route of a post of JSON, unless FastAPI's telemetry is to follow the request."""
        if scope["method"] != "POST" or scope.get("root_path") or scope.get("fastapi.telemetry") is not None:
            return None
        route = self.direct.get(scope["path"])
        return route if (b"content-type", b"application/json") in scope["headers"] else None


def _names_one_host(scope: Scope) -> bool:
    """Whether a request has one ``Host`` header, or none in HTTP/1.0."""
    hosts = sum(name == b"host" for name, _ in scope["headers"])
    return hosts == 1 or (not hosts and scope["http_version"] == "1.0")


def _adapt_openapi(app: FastAPI, *, with_keys: bool) -> None:
    """Take FastAPI's form of validation errors out of the OpenAPI document, and put the keys in."""
    make_document = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make_document()
            for path in document.get("paths", {}).values():
                for operation in path.values():
                    operation.get("responses", {}).pop("422", None)
            schemas = document.get("components", {}).get("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            if with_keys:
                scheme = {"type": "http", "scheme": "bearer"}
                document.setdefault("components", {})["securitySchemes"] = {"key": scheme}
                document["security"] = [{"key": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


_PAGE_THREADS = 4
"""Pages that are made at the same time. More threads make no page sooner, and all share one interpreter with
the event loop, which then waits for each of them."""
_SWITCH_S = 0.001
"""Seconds for which a thread that computes keeps the interpreter while the event loop waits for it."""
_CANCEL_S = 10
"""Seconds for answering requests that were not done in time."""


_ARENAS = 2
"""Heaps of the C library, which would otherwise make one for each of some hundred threads and keep them."""
_M_ARENA_MAX = -8
_OBJECTS_PER_COLLECTION = 10_000
"""Of new objects; a request makes some hundred."""
_TICKS_PER_TRIM = 100
"""Between two looks whether the server is idle; uvicorn ticks ten times a second."""


class GracefulServer(uvicorn.Server):
    """Stops in order: at a signal, or once ``should_exit`` is set, it accepts no more connections, running
    requests have ``grace_s`` seconds, and the rest is answered 503. A second interrupt ends it at once.

    With glibc, threads share ``_ARENAS`` heaps, and free memory is returned to the system when no request
    runs.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway | None) -> None:
        super().__init__(config)
        self.gateway = gateway
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._trim = getattr(libc, "malloc_trim", None)
        self._trimmed = 0
        if self._trim is not None:
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """See the base class. Objects that exist before the start are not searched for garbage."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
        super().run(sockets)

    async def on_tick(self, counter: int) -> bool:
        """See the base class; returns free memory to the system after requests."""
        served = self.server_state.total_requests
        is_idle = self.gateway is None or not self.gateway.admission.admitted
        if self._trim is not None and not counter % _TICKS_PER_TRIM and is_idle and served > self._trimmed:
            self._trimmed = served
            await asyncio.to_thread(self._trim, 0)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and wait for running requests."""
        stopping = asyncio.ensure_future(self.gateway.stop()) if self.gateway is not None else None
        await super().shutdown(sockets)
        if stopping is not None:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)


def make_server(app: FastAPI, settings: ServerSettings, *, log_level: str = "warning") -> GracefulServer:
    """A server that is not running yet; ``.run()`` runs it until a signal comes."""
    gateway: Gateway | None = app.state.gateway
    served = ProxyHeadersMiddleware(app, list(settings.proxies)) if settings.proxies else app  # type: ignore[arg-type]
    config = uvicorn.Config(
        DirectPeer(served),  # type: ignore[arg-type]
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


_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


class ModelResponse(ResponseModel):
    """A name that a client may send as ``model``."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "surefoot"


class ModelList(ResponseModel):
    """Answer of ``/v1/models``."""

    object: Literal["list"] = "list"
    data: list[ModelResponse]


class Health(ResponseModel):
    """Answer of ``/health`` and ``/ready``."""

    status: Literal["ok"] = "ok"


def status_routes(
    gateway: Gateway, client: type[APIRoute], probe: type[APIRoute], operator: type[APIRoute]
) -> list[APIRouter]:
    """The list of models for clients, the state of the server for probes, and metrics for operators."""
    routers = [APIRouter(route_class=kind, tags=["status"]) for kind in (client, probe, operator)]
    for_clients, for_probes, for_operators = routers

    @for_clients.get("/v1/models", response_model=ModelList, responses=declared(401, 403, 429))
    async def models() -> ModelList:
        """The policy, and the strategies in front of it."""
        return ModelList(data=[ModelResponse(id=name) for name in gateway.planner.models()])

    @for_clients.get(
        "/v1/models/{model:path}", response_model=ModelResponse, responses=declared(401, 403, 404, 429)
    )
    async def model(model: str) -> ModelResponse:
        """One of them."""
        if model not in gateway.planner.models():
            raise ApiError(404, f"there is no model {model[:100]!r}", param="model", code="model_not_found")
        return ModelResponse(id=model)

    @for_probes.get("/health", response_model=Health, responses=declared(401, 403, 429))
    async def health() -> Health:
        """The process lives."""
        return Health()

    @for_probes.get("/ready", response_model=Health, responses=declared(401, 403, 429, 503))
    async def ready() -> Health:
        """Requests are accepted: the server is not stopping or full, and answers can be recorded."""
        gateway.admission.reserve().close()
        await gateway.recorder.probe()
        return Health()

    text: dict[int | str, dict[str, Any]] = {
        200: {
            "content": {"text/plain": {"schema": {"type": "string"}}},
            "description": "Prometheus's text format.",
        }
    }

    @for_operators.get("/metrics", response_class=Response, responses={**text, **declared(401, 403, 429)})
    async def metrics() -> Response:
        """Counts, times, shares, score drift and alarms."""
        return Response(gateway.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routers


def _missing_routes(app: FastAPI, route_class: type[APIRoute]) -> APIRouter:
    """Errors for the rest of ``/v1``; include it when ``app`` has all other routes."""
    router = APIRouter(route_class=route_class)
    routes = tuple(app.routes)

    @router.api_route("/v1/{path:path}", methods=list(_METHODS), include_in_schema=False)
    async def missing(request: Request, path: str) -> Response:
        """Answer in the OpenAI form, not with a page."""
        allowed = [method for method in _METHODS if _accepts(routes, request.scope, method)]
        if not allowed:
            message = f"there is no /v1/{path[:100]} here; this server generates, scores and verifies"
            raise ApiError(404, message, code="not_found")
        message = f"/v1/{path[:100]} allows {', '.join(allowed)}"
        answer = response_of(ApiError(405, message, code="method_not_allowed"))
        answer.headers["Allow"] = ", ".join(allowed)
        return answer

    return router


def _accepts(routes: Sequence[BaseRoute], scope: Scope, method: str) -> bool:
    """Whether one of ``routes`` would have answered the request, had its method been ``method``."""
    request = {name: scope.get(name, "") for name in ("type", "path", "root_path", "headers")}
    return any(route.matches({**request, "method": method})[0] is Match.FULL for route in routes)


def _description_routes(app: FastAPI, route_class: type[APIRoute]) -> APIRouter:
    router = APIRouter(route_class=route_class)

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> dict[str, Any]:  # noqa: ARG001 - the guarded route needs it
        """The OpenAPI document of this server."""
        return app.openapi()

    return router
