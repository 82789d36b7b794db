"""``/pooling`` and ``/classify``: step scores in the form of vLLM (``entrypoints/pooling`` of vLLM 0.32).

A row holds the chances of "bad" and "good", as a classifier of two classes has them after its softmax.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import Field, model_validator

from surefoot.records import Problem, Usage
from surefoot.server.gateway.access import body_size
from surefoot.server.gateway.admission import Slot
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.request_log import new_id
from surefoot.server.gateway.schemas import ChatMessage, RequestModel, ResponseModel
from surefoot.server.gateway.score import SCORING_ERRORS, require_scorer, segmented_solution
from surefoot.server.gateway.upstream import UpstreamScorer

if TYPE_CHECKING:
    from surefoot.models.scorer import Scorer


@dataclass(frozen=True, kw_only=True)
class TokenScorer:
    """Computes scores at tokens with a classifier of steps. Made by :func:`token_scorer`."""

    upstream: UpstreamScorer
    scorer: Scorer

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, as it stands."""
        ids: list[int] = self.scorer.model.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def score(self, prompts: Sequence[Sequence[int]], *, last: bool) -> tuple[list[list[float]], int]:
        """Scores in [0, 1] at the last token of each prompt, or at all; and how many tokens went through the
        trunk, where what prompts share is read once. Runs the model; call it from a thread."""
        import torch

        from surefoot.models.engine.packing import read_states

        model = self.scorer.model
        sequences = [tuple(ids) for ids in prompts]
        positions = [(len(ids) - 1,) if last else tuple(range(len(ids))) for ids in sequences]
        scores: dict[int, list[float]] = {}
        read: dict[int, int] = {}
        with self.upstream.lock, torch.no_grad():
            budget = self.scorer.batch_tokens
            for reading in read_states(model.trunk, sequences, positions, batch_tokens=budget):
                read |= reading.new
                for number, states in reading.states.items():
                    scores[number] = model.read(states).double().tolist()
        return [scores[number] for number in range(len(prompts))], sum(read.values())

    def require_readable(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raises :class:`ApiError` for an id that is no token, or a prompt beyond the model's context."""
        model = self.scorer.model
        size = model.trunk.get_input_embeddings().num_embeddings
        longest = model.card.encoding.max_length
        for number, ids in enumerate(prompts):
            if not ids or not all(0 <= token < size for token in ids):
                raise ApiError(400, f"input[{number}]: token ids lie in [0, {size})", param="input")
            if len(ids) > longest:
                message = f"input[{number}]: {len(ids)} tokens, and the model reads {longest}"
                raise ApiError(400, message, param="input", code="context_length_exceeded")


def token_scorer(upstream: UpstreamScorer | None) -> TokenScorer | None:
    """A scorer at tokens; ``None`` where the reward model is no classifier that reads them."""
    # if no code has imported its module, there is no such scorer, and torch need not be imported to find out
    module = sys.modules.get("surefoot.models.scorer")
    if upstream is None or module is None or type(upstream.scorer) is not module.Scorer:
        return None
    return TokenScorer(upstream=upstream, scorer=cast("Scorer", upstream.scorer))


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


class _ListResponse(ResponseModel):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    usage: PoolingUsage


class PoolingResponse(_ListResponse):
    """Answer of ``/pooling``."""

    data: list[PoolingRow]


class ClassifyResponse(_ListResponse):
    """Answer of ``/classify``."""

    data: list[ClassifyRow]


def pooling_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The interfaces in vLLM's form."""
    router = APIRouter(route_class=route_class, tags=["score"])
    tokens = token_scorer(gateway.scorer)
    reading = asyncio.Lock()  # one at a time; the others wait here, not in a thread each

    async def rows(request: Request, body: _ScoringRequest, *, last: bool) -> _Rows:
        require_scorer(gateway, body.model)
        caller, size = request.state.caller, await body_size(request)

        def prepared() -> Work:
            if body.messages:
                return _conversation(gateway, body.messages)
            return _prompts(gateway, tokens, body, reading, last=last)

        async def work(slot: Slot) -> _Rows:
            return await gateway.run_in_slot(slot, await gateway.compute(caller, size, prepared))

        found = await gateway.serve(request, work)
        request.state.allowance.spent = found.verifier_tokens
        return found

    def head(prefix: str, rows: _Rows) -> dict[str, Any]:
        usage = PoolingUsage(prompt_tokens=rows.tokens, total_tokens=rows.tokens)
        model = gateway.planner.scorer or ""
        return {"id": new_id(prefix), "created": int(time.time()), "model": model, "usage": usage}

    @router.post("/pooling", response_model=PoolingResponse, responses=SCORING_ERRORS)
    async def pooling(request: Request, body: PoolingRequest) -> PoolingResponse:
        """Rows of each token of prompts, or of each step of a conversation."""
        scored = await rows(request, body, last=False)
        data = [
            PoolingRow(index=number, data=[[1 - score, score] for score in scores])
            for number, scores in enumerate(scored.scores)
        ]
        return PoolingResponse(**head("pool", scored), data=data)

    @router.post("/classify", response_model=ClassifyResponse, responses=SCORING_ERRORS)
    async def classify(request: Request, body: ClassifyRequest) -> ClassifyResponse:
        """Classes at the last token of prompts, or at the last step of a conversation."""
        scored = await rows(request, body, last=True)
        data = [
            ClassifyRow(index=number, label=LABELS[scores[-1] >= 0.5], probs=[1 - scores[-1], scores[-1]])
            for number, scores in enumerate(scored.scores)
        ]
        return ClassifyResponse(**head("classify", scored), data=data)

    return router


@dataclass(frozen=True, kw_only=True)
class _Rows:
    scores: list[list[float]]
    tokens: int
    """Of all prompts."""
    verifier_tokens: int
    """That went through the reward model; what prompts share counts once."""


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
        spent = record.usage.verifier_tokens
        return _Rows(scores=[known], tokens=spent, verifier_tokens=spent)

    return work


def _prompts(
    gateway: Gateway, scorer: TokenScorer | None, body: _ScoringRequest, reading: asyncio.Lock, *, last: bool
) -> Work:
    """Scores at tokens of prompts."""
    if scorer is None:
        message = "this reward model takes no tokens; send 'messages', or use /v1/score"
        raise ApiError(400, message, param="input", code="unsupported")
    listed: Sequence[Any] = body.input or []
    if isinstance(listed, str) or (listed and isinstance(listed[0], int)):  # one prompt
        listed = [listed]
    prompts = [scorer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in listed]
    if len(prompts) > gateway.limits.max_items * _PROMPTS_AN_ITEM:
        raise ApiError(400, f"input: {len(prompts)} prompts are too many", param="input")
    scorer.require_readable(prompts)

    async def work() -> _Rows:
        async with reading:
            scores, read = await asyncio.to_thread(scorer.score, prompts, last=last)
        gateway.metrics.add_usage(Usage(verifier_tokens=read))
        tokens = sum(len(prompt) for prompt in prompts)
        return _Rows(scores=scores, tokens=tokens, verifier_tokens=read)

    return work


_PROMPTS_AN_ITEM = 64
"""``/classify`` is sent a prompt for each step of an item."""
