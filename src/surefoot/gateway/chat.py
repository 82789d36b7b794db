"""``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from surefoot.gateway.admission import Ticket
from surefoot.gateway.answers import ChatAnswer, CompletionAnswer, chat_choice, text_choice
from surefoot.gateway.attending import Emit, EventStream, attend
from surefoot.gateway.chunks import ChatChunks, Chunks, TextChunks
from surefoot.gateway.entries import Asked, new_id
from surefoot.gateway.extension import TokenUsage, extension
from surefoot.gateway.gateway import Gateway
from surefoot.gateway.http.errors import declared
from surefoot.gateway.schemas import Candidates, ChatRequest, CompletionRequest, Drawing, Options
from surefoot.gateway.settings import GatewaySettings
from surefoot.gateway.tasks import Generation, Task

_ERRORS = declared(400, 401, 403, 404, 413, 429, 500, 502, 503, 504)
_STREAM = {
    "description": "The answer; with `stream`, server-sent events.",
    "content": {"text/event-stream": {}},
}


def chat_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The generating interfaces."""
    router = APIRouter(route_class=route_class, tags=["generate"])
    responses: dict[int | str, dict[str, Any]] = {200: _STREAM, **_ERRORS}

    @router.post("/v1/chat/completions", response_model=ChatAnswer, responses=responses)
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation, by the strategy that the model's name or `surefoot.strategy` says."""
        order = _Order.of(gateway, request, body, "chatcmpl", gateway.planner.chat(body))
        return await _answer(gateway, order)

    @router.post("/v1/completions", response_model=CompletionAnswer, responses=responses)
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Continue a prompt, by the strategy that the model's name or `surefoot.strategy` says."""
        order = _Order.of(gateway, request, body, "cmpl", gateway.planner.completion(body))
        return await _answer(gateway, order)

    return router


@dataclass(frozen=True, kw_only=True)
class _Order:
    """A request that is understood, and what its answer is called."""

    request: Request
    body: Drawing
    task: Task
    asked: Asked
    settings: GatewaySettings

    @classmethod
    def of(cls, gateway: Gateway, request: Request, body: Drawing, prefix: str, task: Task) -> _Order:
        asked = Asked(
            id=new_id(prefix),
            endpoint=request.url.path,
            model=body.model,
            strategy=task.strategy.name,
            problem=task.problem,
            key=request.state.key,
            policy=gateway.policy.name,
            scorer=gateway.planner.scorer if task.strategy.needs_scorer else None,
            parameters=_parameters(body, task),
        )
        return cls(request=request, body=body, task=task, asked=asked, settings=gateway.settings)

    @property
    def candidates(self) -> Candidates:
        return (self.body.surefoot or Options()).candidates or self.settings.candidates

    @property
    def created(self) -> int:
        return int(self.asked.created.timestamp())

    def whole(self, generation: Generation) -> BaseModel:
        fields: dict[str, Any] = {
            "id": self.asked.id,
            "created": self.created,
            "model": self.body.model,
            "usage": TokenUsage.of(generation.usage),
            "surefoot": extension(generation, self.candidates),
        }
        numbered = list(enumerate(generation.choices))
        if isinstance(self.body, ChatRequest):
            as_text = self.settings.refusal_as_text
            choices = [chat_choice(*pair, refusal_as_text=as_text) for pair in numbered]
            return ChatAnswer(choices=choices, **fields)
        return CompletionAnswer(choices=[text_choice(*pair) for pair in numbered], **fields)

    def chunks(self, emit: Emit) -> Chunks:
        kind = ChatChunks if isinstance(self.body, ChatRequest) else TextChunks
        return kind(
            emit,
            id=self.asked.id,
            created=self.created,
            model=self.body.model,
            candidates=self.candidates,
            usage=bool(self.body.stream_options and self.body.stream_options.include_usage),
            refusal_as_text=self.settings.refusal_as_text,
        )


def _parameters(body: Drawing, task: Task) -> dict[str, Any]:
    """What was asked for, without texts that are elsewhere or may be long."""
    left_out: dict[str, Any] = {"messages": True, "prompt": True, "model": True, "tools": True}
    left_out["surefoot"] = {"problem"}
    found = body.model_dump(mode="json", exclude_none=True, exclude=left_out)
    tools = getattr(body, "tools", None)
    return {**found, "seed": task.seed, **({"tools": len(tools)} if tools else {})}


async def _answer(gateway: Gateway, order: _Order) -> Response:
    ticket = gateway.admission.ticket()
    if order.body.stream:
        return EventStream(
            _streamed(gateway, order, ticket),
            jobs=gateway.jobs,
            keep_alive_s=gateway.limits.keep_alive_s,
            left=gateway.metrics.left.inc,
            ended=ticket.close,
        )

    try:
        work = gateway.answer(ticket, order.asked, order.task)
        generation = await attend(order.request.receive, gateway.jobs, work, gateway.metrics.left.inc)
    finally:
        ticket.close()
    return Response(order.whole(generation).model_dump_json(), media_type="application/json")


def _streamed(gateway: Gateway, order: _Order, ticket: Ticket) -> Callable[[Emit], Coroutine[Any, Any, None]]:
    async def work(emit: Emit) -> None:
        chunks = order.chunks(emit)
        chunks.begin(order.task.n)
        chunks.end(await gateway.answer(ticket, order.asked, order.task, chunks))

    return work
