"""``/pooling`` and ``/classify``: step scores in the form of vLLM (``entrypoints/pooling`` of vLLM 0.32).

A row holds the chances of "bad" and "good", as a classifier of two classes has them after its softmax.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, cast

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import Field, model_validator

from surefoot.gateway.attending import attend
from surefoot.gateway.extension import Told
from surefoot.gateway.gateway import Gateway
from surefoot.gateway.given import cut
from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.schemas import ChatMessage, Sent
from surefoot.gateway.scoring import SCORING_ERRORS, require_scorer
from surefoot.gateway.tokens import TokenScorer, token_scorer
from surefoot.records import Problem, Usage

LABELS = ("bad", "good")
Ids = Annotated[list[int], Field(min_length=1, max_length=100_000)]
Row = list[float]


class _Asked(Sent):
    model: str | None = Field(default=None, max_length=300)
    input: str | Ids | Annotated[list[str] | list[Ids], Field(min_length=1)] | None = None
    """Prompts of the reward model, as texts or token ids; for a classifier of steps only."""
    messages: list[ChatMessage] | None = Field(default=None, min_length=2, max_length=1000)
    """A conversation that ends with the solution; it is cut into steps here. For any reward model."""
    use_activation: bool | None = None
    activation: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise ValueError("give either 'input' or 'messages'")
        if self.messages and self.messages[-1].role != "assistant":
            raise ValueError("the last of 'messages' must be the assistant's: the solution")
        if False in (self.use_activation, self.activation):
            raise ValueError("scores come with their activation here; logits are not told")
        return self


class PoolingRequest(_Asked):
    """Body of ``/pooling``."""

    task: Literal["token_classify"] | None = None
    encoding_format: Literal["float"] = "float"


class ClassifyRequest(_Asked):
    """Body of ``/classify``."""


class PoolingRow(Told):
    """One prompt: a row for each token, or for each step of a conversation."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[Row]


class ClassifyRow(Told):
    """One prompt, read at its last token, or a conversation at its last step."""

    index: int
    label: str
    probs: Row
    num_classes: int = len(LABELS)


class PoolingUsage(Told):
    """Tokens of the prompts; ``completion_tokens`` is there for clients that look for it."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class PoolingAnswer(Told):
    """Answer of ``/pooling``."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PoolingRow]
    usage: PoolingUsage


class ClassifyAnswer(Told):
    """Answer of ``/classify``."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ClassifyRow]
    usage: PoolingUsage


def pooling_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The interfaces in vLLM's form."""
    router = APIRouter(route_class=route_class, tags=["score"])
    tokens = token_scorer(gateway.scorer)
    reading = asyncio.Lock()  # one reads at a time; the others wait here, and not in a thread each

    async def rows(request: Request, body: _Asked, *, last: bool) -> _Rows:
        require_scorer(gateway, body.model)
        if body.messages:
            work = _conversation(gateway, body.messages)
        else:
            work = _prompts(gateway, tokens, body, reading, last=last)
        ticket = gateway.admission.ticket()
        try:
            done = gateway.in_turn(ticket, work)
            return await attend(request.receive, gateway.jobs, done, gateway.metrics.left.inc)
        finally:
            ticket.close()

    @router.post("/pooling", response_model=PoolingAnswer, responses=SCORING_ERRORS)
    async def pooling(request: Request, body: PoolingRequest) -> PoolingAnswer:
        """Rows of each token of prompts, or of each step of a conversation."""
        found = await rows(request, body, last=False)
        data = [
            PoolingRow(index=number, data=[_row(score) for score in scores])
            for number, scores in enumerate(found.scores)
        ]
        return PoolingAnswer(**_head("pool", gateway), data=data, usage=found.usage)

    @router.post("/classify", response_model=ClassifyAnswer, responses=SCORING_ERRORS)
    async def classify(request: Request, body: ClassifyRequest) -> ClassifyAnswer:
        """Classes at the last token of prompts, or at the last step of a conversation."""
        found = await rows(request, body, last=True)
        data = [
            ClassifyRow(index=number, label=LABELS[scores[-1] >= 0.5], probs=_row(scores[-1]))
            for number, scores in enumerate(found.scores)
        ]
        return ClassifyAnswer(**_head("classify", gateway), data=data, usage=found.usage)

    return router


@dataclass(frozen=True, kw_only=True)
class _Rows:
    scores: list[list[float]]
    usage: PoolingUsage


Work = Callable[[], Coroutine[Any, Any, _Rows]]


def _conversation(gateway: Gateway, messages: Sequence[ChatMessage]) -> Work:
    """Scores of each step of the assistant's last message."""
    problem = next((message.text for message in reversed(messages) if message.role == "user"), "")
    if not problem:
        raise ApiError(400, "messages: there is no message of the user with text", param="messages")
    item = cut(Problem(text=problem), messages[-1].text)

    async def work() -> _Rows:
        [record] = await gateway.score([item])
        known = [score for score in record.scores if score is not None]
        if len(known) < len(record.scores):
            message = f"steps have no score, which this form cannot tell: {record.unscored_reason}"
            raise ApiError(400, message, code="unscored")
        tokens = record.usage.verifier_tokens
        return _Rows(scores=[known], usage=PoolingUsage(prompt_tokens=tokens, total_tokens=tokens))

    return work


def _prompts(
    gateway: Gateway, scorer: TokenScorer | None, body: _Asked, reading: asyncio.Lock, *, last: bool
) -> Work:
    """Scores at tokens of prompts."""
    if scorer is None:
        message = "this reward model reads no tokens; send 'messages', or use /v1/score"
        raise ApiError(400, message, param="input", code="unsupported")
    prompts = [
        scorer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in _listed(body.input or [])
    ]
    if len(prompts) > gateway.limits.max_items * _PROMPTS_AN_ITEM:
        raise ApiError(400, f"input: {len(prompts)} prompts are too many", param="input")
    scorer.require_readable(prompts)

    async def work() -> _Rows:
        async with reading:
            found = await asyncio.to_thread(scorer.score, prompts, last=last)
        gateway.metrics.spent(Usage(verifier_tokens=sum(one.read for one in found)))
        tokens = sum(one.tokens for one in found)
        usage = PoolingUsage(prompt_tokens=tokens, total_tokens=tokens)
        return _Rows(scores=[one.scores for one in found], usage=usage)

    return work


_PROMPTS_AN_ITEM = 64
"""``/classify`` is sent a prompt for each step of an item."""


def _listed(given: str | list[int] | list[str] | list[list[int]]) -> list[str] | list[list[int]]:
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [given]
    return cast("list[str] | list[list[int]]", given)


def _row(score: float) -> Row:
    return [1 - score, score]


def _head(prefix: str, gateway: Gateway) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": gateway.planner.scorer or "",
    }
