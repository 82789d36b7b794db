"""The application: the gateway, and whatever pages are put beside it."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot import __version__
from surefoot.annotation.database import Database
from surefoot.gateway.attending import ClientLeftError
from surefoot.gateway.chat import chat_routes
from surefoot.gateway.gateway import CLIENT_LEFT, Gateway
from surefoot.gateway.http import errors
from surefoot.gateway.http.auth import Door, guarded
from surefoot.gateway.http.settings import ServerSettings
from surefoot.gateway.pooling import pooling_routes
from surefoot.gateway.scoring import scoring_routes
from surefoot.gateway.status import (
    admin_routes,
    description_routes,
    health_routes,
    missing_routes,
    model_routes,
)
from surefoot.gateway.verifying import verifying_routes


def create_app(
    settings: ServerSettings,
    *,
    gateway: Gateway | None = None,
    routers: Sequence[APIRouter] = (),
    pages: ASGIApp | None = None,
    db: Database | None = None,
) -> FastAPI:
    """The application.

    ``routers`` ask for sign-in themselves, and so does ``pages``, which answers what nothing else here
    does, and has limits of its own on bodies; the gateway's routes ask for a key of ``db``, which stays open.
    Their limits are those of ``gateway.limits`` and ``settings.limits`` alike, so give both the same. The
    gateway is closed with the application. Raises ``ValueError`` if keys are asked for without a ``db``.
    """
    if settings.asks_for_keys and db is None:
        raise ValueError("'db' is missing: keys are asked for, and it keeps them")
    door = Door(db, required=settings.asks_for_keys, rate_per_minute=settings.limits.rate_per_minute)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if gateway is not None:
            await gateway.open()
        yield
        if gateway is not None:
            await gateway.close()
        door.close()

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
    errors.install(app)
    app.add_exception_handler(ClientLeftError, _client_left)
    client = guarded("client", settings=settings, door=door)
    admin = guarded("admin", settings=settings, door=door)
    probe = guarded("client", settings=settings, door=door, free=settings.open_health)
    if gateway is not None:
        for routes in (chat_routes, scoring_routes, verifying_routes, pooling_routes, model_routes):
            app.include_router(routes(gateway, client))
        app.include_router(health_routes(gateway, probe))
        app.include_router(admin_routes(gateway, admin))
    app.include_router(description_routes(app, client))
    for router in routers:
        app.include_router(router)
    if gateway is not None:
        app.include_router(missing_routes(app, client))
    _describe_keys(app, with_keys=settings.asks_for_keys)
    if pages is not None:
        app.mount("/", pages)
    app.add_middleware(_Observed, gateway=gateway)
    return app


class _Observed:
    """ASGI middleware: an id for each request, in a header, and counts and times for the metrics."""

    def __init__(self, app: ASGIApp, *, gateway: Gateway | None) -> None:
        self.app, self.gateway = app, gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 500
        number = uuid.uuid4().hex.encode()

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", number)]}
            await send(message)

        try:
            await self.app(scope, receive, named)
        finally:
            if self.gateway is not None:
                endpoint = getattr(scope.get("route"), "path", "other")
                self.gateway.metrics.requests.labels(endpoint, str(status)).inc()
                self.gateway.metrics.seconds.labels(endpoint).observe(time.monotonic() - began)


async def _client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


def _describe_keys(app: FastAPI, *, with_keys: bool) -> None:
    """The OpenAPI document without FastAPI's own form of validation errors, and with the keys."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
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
