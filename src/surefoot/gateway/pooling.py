"""``/pooling`` and ``/classify``: step scores in the form of vLLM (``entrypoints/pooling`` of vLLM 0.32).

A row holds the chances of "bad" and "good", as a classifier of two classes has them after its softmax.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from surefoot.gateway.errors import ApiError
from surefoot.gateway.gateway import Gateway
from surefoot.gateway.requests import ChatMessage, RequestModel
from surefoot.gateway.responses import ResponseModel
from surefoot.gateway.score import SCORING_ERRORS, require_scorer, segmented_solution
from surefoot.gateway.upstream import UpstreamScorer

if TYPE_CHECKING:
    from surefoot.models.scorer import Scorer
import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import Field, model_validator

from surefoot.records import Problem, Usage


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """Scores of one prompt."""

    scores: list[float]
    """In [0, 1], in the order of the positions asked for."""
    tokens: int
    """Tokens of the prompt."""
    read: int
    """Of these, tokens that went through the trunk; what prompts share is read once."""


class TokenScorer:
    """Computes scores at tokens with a classifier of steps. Made by :func:`token_scorer`."""

    def __init__(self, shared: UpstreamScorer, scorer: Scorer) -> None:
        self._shared, self._scorer = shared, scorer

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, as it stands."""
        ids: list[int] = self._scorer.model.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def score(self, prompts: Sequence[Sequence[int]], *, last: bool) -> list[TokenScores]:
        """Scores at the last token of each prompt, or at all. Runs the model; call it from a thread."""
        import torch

        from surefoot.models.engine.packing import read_states

        model = self._scorer.model
        sequences = [tuple(ids) for ids in prompts]
        positions = [(len(ids) - 1,) if last else tuple(range(len(ids))) for ids in sequences]
        found: dict[int, list[float]] = {}
        read: dict[int, int] = dict.fromkeys(range(len(prompts)), 0)
        with self._shared.lock, torch.no_grad():
            budget = self._scorer.batch_tokens
            for reading in read_states(model.trunk, sequences, positions, batch_tokens=budget):
                read |= reading.new
                for number, states in reading.states.items():
                    found[number] = model.read(states).double().tolist()
        return [
            TokenScores(scores=found[number], tokens=len(ids), read=read[number])
            for number, ids in enumerate(sequences)
        ]

    def require_readable(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raises :class:`ApiError` for an id that is no token, or a prompt beyond the model's context."""
        model = self._scorer.model
        size = model.trunk.get_input_embeddings().num_embeddings
        longest = model.card.encoding.max_length
        for number, ids in enumerate(prompts):
            if not ids or not all(0 <= token < size for token in ids):
                raise ApiError(400, f"input[{number}]: token ids lie in [0, {size})", param="input")
            if len(ids) > longest:
                message = f"input[{number}]: {len(ids)} tokens, and the model reads {longest}"
                raise ApiError(400, message, param="input", code="context_length_exceeded")


def token_scorer(shared: UpstreamScorer | None) -> TokenScorer | None:
    """A scorer at tokens; ``None`` where the reward model is no classifier that reads them."""
    if shared is None:
        return None
    # if no code has imported its module, there is no such scorer, and torch need not be imported to find out
    module = sys.modules.get("surefoot.models.scorer")
    if module is None or type(shared.scorer) is not module.Scorer:
        return None
    return TokenScorer(shared, cast("Scorer", shared.scorer))


LABELS = ("bad", "good")
Ids = Annotated[list[int], Field(min_length=1, max_length=100_000)]
Row = list[float]


class _ScoringRequest(RequestModel):
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
            raise ValueError("the last of 'messages' must be the assistant's solution")
        if False in (self.use_activation, self.activation):
            raise ValueError("scores come with their activation here; logits are not available")
        return self


class PoolingRequest(_ScoringRequest):
    """Body of ``/pooling``."""

    task: Literal["token_classify"] | None = None
    encoding_format: Literal["float"] = "float"


class ClassifyRequest(_ScoringRequest):
    """Body of ``/classify``."""


class PoolingRow(ResponseModel):
    """One prompt: a row for each token, or for each step of a conversation."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[Row]


class ClassifyRow(ResponseModel):
    """One prompt, read at its last token, or a conversation at its last step."""

    index: int
    label: str
    probs: Row
    num_classes: int = len(LABELS)


class PoolingUsage(ResponseModel):
    """Tokens of the prompts; ``completion_tokens`` is there for clients that look for it."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class PoolingResponse(ResponseModel):
    """Answer of ``/pooling``."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PoolingRow]
    usage: PoolingUsage


class ClassifyResponse(ResponseModel):
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
    reading = asyncio.Lock()  # one at a time; the others wait here, not in a thread each

    async def rows(request: Request, body: _ScoringRequest, *, last: bool) -> _Rows:
        require_scorer(gateway, body.model)
        if body.messages:
            work = _conversation(gateway, body.messages)
        else:
            work = _prompts(gateway, tokens, body, reading, last=last)
        return await gateway.serve(request, lambda slot: gateway.run_in_slot(slot, work))

    @router.post("/pooling", response_model=PoolingResponse, responses=SCORING_ERRORS)
    async def pooling(request: Request, body: PoolingRequest) -> PoolingResponse:
        """Rows of each token of prompts, or of each step of a conversation."""
        found = await rows(request, body, last=False)
        data = [
            PoolingRow(index=number, data=[_row(score) for score in scores])
            for number, scores in enumerate(found.scores)
        ]
        return PoolingResponse(**_head("pool", gateway), data=data, usage=found.usage)

    @router.post("/classify", response_model=ClassifyResponse, responses=SCORING_ERRORS)
    async def classify(request: Request, body: ClassifyRequest) -> ClassifyResponse:
        """Classes at the last token of prompts, or at the last step of a conversation."""
        found = await rows(request, body, last=True)
        data = [
            ClassifyRow(index=number, label=LABELS[scores[-1] >= 0.5], probs=_row(scores[-1]))
            for number, scores in enumerate(found.scores)
        ]
        return ClassifyResponse(**_head("classify", gateway), data=data, usage=found.usage)

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
        raise ApiError(400, "messages: there is no user message with text", param="messages")
    item = segmented_solution(Problem(text=problem), messages[-1].text)

    async def work() -> _Rows:
        [record] = await gateway.score([item])
        known = [score for score in record.scores if score is not None]
        if len(known) < len(record.scores):
            message = f"steps have no score, which this form cannot express: {record.unscored_reason}"
            raise ApiError(400, message, code="unscored")
        tokens = record.usage.verifier_tokens
        return _Rows(scores=[known], usage=PoolingUsage(prompt_tokens=tokens, total_tokens=tokens))

    return work


def _prompts(
    gateway: Gateway, scorer: TokenScorer | None, body: _ScoringRequest, reading: asyncio.Lock, *, last: bool
) -> Work:
    """Scores at tokens of prompts."""
    if scorer is None:
        message = "this reward model takes no tokens; send 'messages', or use /v1/score"
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
        gateway.metrics.add_usage(Usage(verifier_tokens=sum(one.read for one in found)))
        tokens = sum(one.tokens for one in found)
        usage = PoolingUsage(prompt_tokens=tokens, total_tokens=tokens)
        return _Rows(scores=[one.scores for one in found], usage=usage)

    return work


_PROMPTS_AN_ITEM = 64
"""``/classify`` is sent a prompt for each step of an item."""


def _listed(prompts: str | list[int] | list[str] | list[list[int]]) -> list[str] | list[list[int]]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]
    return cast("list[str] | list[list[int]]", prompts)


def _row(score: float) -> Row:
    return [1 - score, score]


def _head(prefix: str, gateway: Gateway) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": gateway.planner.scorer or "",
    }
