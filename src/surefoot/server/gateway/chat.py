"""``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from surefoot.server.errors import declared
from surefoot.server.gateway.admission import Ticket
from surefoot.server.gateway.answers import (
    ChatAnswer,
    CompletionAnswer,
    TokenUsage,
    chat_choice,
    extension,
    text_choice,
)
from surefoot.server.gateway.attending import Emit, EventStream, attend
from surefoot.server.gateway.chunks import ChatChunks, Chunks, TextChunks
from surefoot.server.gateway.entries import Asked, new_id
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.schemas import Candidates, ChatRequest, CompletionRequest, Drawing, Options
from surefoot.server.gateway.settings import GatewaySettings
from surefoot.server.gateway.tasks import Accepted, Generation, Task

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
        order = _Order.of(request, body, "chatcmpl", gateway.planner.chat(body), gateway.settings)
        return await _answer(gateway, order)

    @router.post("/v1/completions", response_model=CompletionAnswer, responses=responses)
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Continue a prompt, by the strategy that the model's name or `surefoot.strategy` says."""
        order = _Order.of(request, body, "cmpl", gateway.planner.completion(body), gateway.settings)
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
    def of(
        cls, request: Request, body: Drawing, prefix: str, task: Task, settings: GatewaySettings
    ) -> _Order:
        asked = Asked(
            id=new_id(prefix),
            endpoint=request.url.path,
            model=body.model,
            strategy=task.strategy.name,
            problem=task.problem,
            key=request.state.key,
            parameters={
                **body.model_dump(mode="json", exclude_none=True, exclude={"messages", "prompt", "model"}),
                "seed": task.seed,
            },
        )
        return cls(request=request, body=body, task=task, asked=asked, settings=settings)

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
        work = _written(gateway, order, ticket)
        generation = await attend(order.request.receive, gateway.jobs, work, gateway.metrics.left.inc)
    finally:
        ticket.close()
    return Response(order.whole(generation).model_dump_json(), media_type="application/json")


def _streamed(gateway: Gateway, order: _Order, ticket: Ticket) -> Callable[[Emit], Coroutine[Any, Any, None]]:
    async def work(emit: Emit) -> None:
        chunks = order.chunks(emit)
        chunks.begin(order.task.n)
        chunks.end(await _written(gateway, order, ticket, chunks.accepted))

    return work


async def _written(
    gateway: Gateway, order: _Order, ticket: Ticket, accepted: Accepted | None = None
) -> Generation:
    """The answer, once its record is kept."""
    with gateway.failures_recorded(order.asked):
        generation, seen = await gateway.generate(ticket, order.task, accepted)
        await gateway.record(
            order.asked.answered(
                policy=generation.policy,
                scorer=generation.scorer,
                usage=generation.usage,
                generation=generation,
                seen=seen,
            )
        )
        return generation
