"""What a gateway says of itself: models, health, readiness, metrics, its description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from surefoot.gateway.extension import Told
from surefoot.gateway.gateway import Gateway
from surefoot.gateway.http.errors import ApiError, declared, response_of

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


class ToldModel(Told):
    """A name that may be given as ``model``."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "surefoot"


class ModelList(Told):
    """Answer of ``/v1/models``."""

    object: Literal["list"] = "list"
    data: list[ToldModel]


class Health(Told):
    """Answer of ``/health`` and ``/ready``."""

    status: Literal["ok"] = "ok"


def model_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The list of models."""
    router = APIRouter(route_class=route_class, tags=["status"])

    @router.get("/v1/models", response_model=ModelList, responses=declared(401, 403, 429))
    async def models() -> ModelList:
        """The policy, and the strategies in front of it."""
        return ModelList(data=[ToldModel(id=name) for name in gateway.planner.models()])

    @router.get("/v1/models/{model:path}", response_model=ToldModel, responses=declared(401, 403, 404, 429))
    async def model(model: str) -> ToldModel:
        """One of them."""
        if model not in gateway.planner.models():
            raise ApiError(404, f"there is no model {model[:100]!r}", param="model", code="model_not_found")
        return ToldModel(id=model)

    return router


def health_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """For probes."""
    router = APIRouter(route_class=route_class, tags=["status"])

    @router.get("/health", response_model=Health, responses=declared(401, 403, 429))
    async def health() -> Health:
        """The process lives."""
        return Health()

    @router.get("/ready", response_model=Health, responses=declared(401, 403, 429, 503))
    async def ready() -> Health:
        """Requests are taken: the server is not stopping, there is a seat, and the record can be written."""
        gateway.admission.ticket().close()
        await gateway.recorder.probe()
        return Health()

    return router


def admin_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """For those who run it."""
    router = APIRouter(route_class=route_class, tags=["status"])
    text: dict[int | str, dict[str, Any]] = {
        200: {
            "content": {"text/plain": {"schema": {"type": "string"}}},
            "description": "Prometheus's text format.",
        }
    }

    @router.get("/metrics", response_class=Response, responses={**text, **declared(401, 403, 429)})
    async def metrics() -> Response:
        """Counts, times, shares, score drift and alarms."""
        return Response(gateway.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def missing_routes(app: FastAPI, route_class: type[APIRoute]) -> APIRouter:
    """What OpenAI's interface has and ``app`` has not; include it when ``app`` has all other routes."""
    router = APIRouter(route_class=route_class)
    others = tuple(app.routes)

    @router.api_route("/v1/{path:path}", methods=list(_METHODS), include_in_schema=False)
    async def missing(request: Request, path: str) -> Response:
        """Say so as that interface does, not as a page."""
        allowed = [method for method in _METHODS if _takes(others, request.scope, method)]
        if not allowed:
            message = f"there is no /v1/{path[:100]} here; this server generates, scores and verifies"
            raise ApiError(404, message, code="not_found")
        message = f"/v1/{path[:100]} takes {', '.join(allowed)}"
        answer = response_of(ApiError(405, message, code="method_not_allowed"))
        answer.headers["Allow"] = ", ".join(allowed)
        return answer

    return router


def _takes(routes: Sequence[BaseRoute], scope: Scope, method: str) -> bool:
    """Whether one of ``routes`` would have answered the request, had its method been ``method``."""
    asked = {name: scope.get(name, "") for name in ("type", "path", "root_path", "headers")}
    return any(route.matches({**asked, "method": method})[0] is Match.FULL for route in routes)


def description_routes(app: FastAPI, route_class: type[APIRoute]) -> APIRouter:
    """The OpenAPI document of ``app``."""
    router = APIRouter(route_class=route_class)

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> dict[str, Any]:  # noqa: ARG001 - FastAPI needs none, the route has it
        """What this server offers, for programs."""
        return app.openapi()

    return router
