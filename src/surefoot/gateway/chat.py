"""``/v1/chat/completions`` and ``/v1/completions``: request, plan, run, record, respond."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from surefoot.gateway.admission import Slot
from surefoot.gateway.errors import declared
from surefoot.gateway.gateway import Gateway
from surefoot.gateway.plan import Generation, Plan
from surefoot.gateway.request_log import LogEntry, new_id
from surefoot.gateway.requests import ChatRequest, CompletionRequest, GenerationRequest, StrategyOptions
from surefoot.gateway.responses import (
    ChatResponse,
    CompletionResponse,
    TokenUsage,
    chat_choice,
    extension,
    text_choice,
)
from surefoot.gateway.settings import Candidates, GatewaySettings
from surefoot.gateway.streaming import ChatChunks, Chunks, Emit, EventStream, TextChunks

_ERRORS = declared(400, 401, 403, 404, 413, 429, 500, 502, 503, 504)
_STREAM = {
    "description": "The answer; with `stream`, server-sent events.",
    "content": {"text/event-stream": {}},
}


def chat_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The generating interfaces."""
    router = APIRouter(route_class=route_class, tags=["generate"])
    responses: dict[int | str, dict[str, Any]] = {200: _STREAM, **_ERRORS}

    @router.post("/v1/chat/completions", response_model=ChatResponse, responses=responses)
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation, by the strategy that the model's name or `surefoot.strategy` says."""
        exchange = _Exchange.of(gateway, request, body, "chatcmpl", gateway.planner.chat(body))
        return await _respond(gateway, exchange)

    @router.post("/v1/completions", response_model=CompletionResponse, responses=responses)
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Continue a prompt, by the strategy that the model's name or `surefoot.strategy` says."""
        exchange = _Exchange.of(gateway, request, body, "cmpl", gateway.planner.completion(body))
        return await _respond(gateway, exchange)

    return router


async def _respond(gateway: Gateway, exchange: _Exchange) -> Response:
    if exchange.body.stream:
        slot = gateway.admission.reserve()
        return EventStream(
            _streamed(gateway, exchange, slot),
            jobs=gateway.jobs,
            keep_alive_s=gateway.limits.keep_alive_s,
            on_disconnect=gateway.metrics.disconnects.inc,
            on_end=slot.close,
        )
    generation = await gateway.serve(
        exchange.request, lambda slot: gateway.generate(slot, exchange.entry, exchange.plan)
    )
    return Response(exchange.response(generation).model_dump_json(), media_type="application/json")


def _streamed(
    gateway: Gateway, exchange: _Exchange, slot: Slot
) -> Callable[[Emit], Coroutine[Any, Any, None]]:
    async def work(emit: Emit) -> None:
        chunks = exchange.chunks(emit)
        chunks.begin(exchange.plan.n)
        chunks.end(await gateway.generate(slot, exchange.entry, exchange.plan, chunks))

    return work


@dataclass(frozen=True, kw_only=True)
class _Exchange:
    """A request with its plan and its entry in the log, and the form of its answer."""

    request: Request
    body: GenerationRequest
    plan: Plan
    entry: LogEntry
    settings: GatewaySettings

    @classmethod
    def of(
        cls, gateway: Gateway, request: Request, body: GenerationRequest, prefix: str, plan: Plan
    ) -> _Exchange:
        entry = LogEntry(
            id=new_id(prefix),
            endpoint=request.url.path,
            model=body.model,
            strategy=plan.strategy.name,
            problem=plan.problem,
            key=request.state.key,
            policy=gateway.policy.name,
            scorer=gateway.planner.scorer if plan.strategy.needs_scorer else None,
            parameters=_parameters(body, plan),
        )
        return cls(request=request, body=body, plan=plan, entry=entry, settings=gateway.settings)

    @property
    def candidates(self) -> Candidates:
        return (self.body.surefoot or StrategyOptions()).candidates or self.settings.candidates

    @property
    def created(self) -> int:
        return int(self.entry.created.timestamp())

    def response(self, generation: Generation) -> BaseModel:
        fields: dict[str, Any] = {
            "id": self.entry.id,
            "created": self.created,
            "model": self.body.model,
            "usage": TokenUsage.of(generation.usage),
            "surefoot": extension(generation, self.candidates),
        }
        numbered = list(enumerate(generation.choices))
        if isinstance(self.body, ChatRequest):
            as_text = self.settings.refusal_as_text
            choices = [chat_choice(*pair, refusal_as_text=as_text) for pair in numbered]
            return ChatResponse(choices=choices, **fields)
        return CompletionResponse(choices=[text_choice(*pair) for pair in numbered], **fields)

    def chunks(self, emit: Emit) -> Chunks:
        form = ChatChunks if isinstance(self.body, ChatRequest) else TextChunks
        return form(
            emit,
            id=self.entry.id,
            created=self.created,
            model=self.body.model,
            candidates=self.candidates,
            usage=bool(self.body.stream_options and self.body.stream_options.include_usage),
            refusal_as_text=self.settings.refusal_as_text,
        )


def _parameters(body: GenerationRequest, plan: Plan) -> dict[str, Any]:
    """The parameters of a request, without texts that are elsewhere or may be long."""
    excluded: dict[str, Any] = {"messages": True, "prompt": True, "model": True, "tools": True}
    excluded["surefoot"] = {"problem"}
    parameters = body.model_dump(mode="json", exclude_none=True, exclude=excluded)
    tools = getattr(body, "tools", None)
    return {**parameters, "seed": plan.seed, **({"tools": len(tools)} if tools else {})}
