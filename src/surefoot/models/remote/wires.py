"""The interfaces of scoring servers: this package's gateway and vLLM's pooling.

A wire turns items into one JSON body and the response into one list of scores per item; it does no network.
Requests and responses follow vLLM 0.32 (``entrypoints/pooling/pooling/protocol.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from surefoot.models.encoding import EncodedTrace
from surefoot.printable import quoted
from surefoot.protocols import ProblemTrace
from surefoot.records import Count, as_json

T = TypeVar("T", bound=BaseModel)

Scores = tuple[float | None, ...]
_MOST_READS = 1000
"""Tokens per byte of a request that a gateway may report: a verifier may read a text once per step and chain.
"""

Rule = Callable[[Sequence[float]], float]
"""Score of a step from the probabilities of all classes."""


class ShapeError(Exception):
    """A response that does not have the documented shape; the message quotes it."""


@dataclass(frozen=True, kw_only=True)
class WireRequest:
    """One request: its JSON body, and its token ids if they were encoded here."""

    body: dict[str, Any]
    encoded: tuple[EncodedTrace, ...] = ()
    """One per item. A trace that the model cannot read is empty and not sent."""


class ItemScores(NamedTuple):
    """The scores of one item."""

    scores: Scores
    """In [0, 1]; ``None`` for a step that was cut off."""
    reason: str | None
    """Why some scores are ``None``."""
    tokens: int
    """Tokens that the server read."""


@dataclass(frozen=True, kw_only=True)
class GatewayScore:
    """``POST /v1/score`` of this package's gateway: the server encodes texts and messages.

    Body: ``{"model": str | null, "items": [{"problem": str, "steps": [str, ...]}, ...]}``. The steps are the
    exact pieces of the solution. An agent's run is sent as its record, ``{"problem": str, "trace": {...}}``,
    with images by their bytes alone. Response: ``{"model": str, "results": [{"scores": [number | null, ...],
    "unscored_reason": str | null}, ...], "usage": {"verifier_tokens": int}}``, one result per item in order,
    one score per step in [0, 1].
    """

    model: str | None = None
    path: str = "/v1/score"

    def request(self, items: Sequence[ProblemTrace]) -> WireRequest:
        """The items as texts, or as records of messages."""
        return WireRequest(body={"model": self.model, "items": list(map(self._row, items))})

    @staticmethod
    def _row(item: ProblemTrace) -> dict[str, Any]:
        if item.trace.text is None:
            fields = {"problem_id", "messages", "tools", "steps"}
            trace = item.trace.model_dump(mode="json", include=fields, exclude_defaults=True)
            for message in trace["messages"]:
                for held in message.get("attachments", ()):
                    if not held.get("uri", "").startswith("data:"):  # the server would open it
                        held.pop("uri", None)
            return {"problem": item.problem.text, "trace": trace}
        steps = [item.trace.step_text(step) for step in range(len(item.trace.steps))]
        return {"problem": item.problem.text, "steps": steps}

    def read(self, request: WireRequest, response: str) -> list[ItemScores]:
        """Raises :class:`ShapeError`."""
        parsed, items = _parse(_GatewayResponse, response), request.body["items"]
        if len(parsed.results) != len(items):
            raise ShapeError(f"{len(parsed.results)} results came for {len(items)} items")
        most = _MOST_READS * len(as_json(items).encode("utf-8", "replace"))
        tokens, scored = min(parsed.usage.verifier_tokens, most), []
        for number, (result, item) in enumerate(zip(parsed.results, items, strict=True)):
            steps = len(item["steps"] if "steps" in item else item["trace"]["steps"])
            if len(result.scores) != steps:
                raise ShapeError(f"results[{number}]: {len(result.scores)} scores came for {steps} steps")
            scores = tuple(_checked_score(score) for score in result.scores)
            reason = quoted(result.unscored_reason or "the server gave no reason") if None in scores else None
            scored.append(ItemScores(scores, reason, 0 if number else tokens))
        return scored


@dataclass(frozen=True, kw_only=True)
class VllmPooling:
    """``POST /pooling`` of vLLM with task ``token_classify``: scores of tokens for the exact ids sent.

    ``step_tag_id`` says that the server was started with pooler config ``{"tok_pooling_type": "STEP",
    "step_tag_id": step_tag_id, ...}``, which returns one row for each such token. Without it (pooling type
    ``ALL``) there is one row per token; the rows of the steps are selected here. A row holds the
    probabilities of the classes (softmax; sigmoid if there is a single class). ``rule`` makes the score of
    it: by default the last, class 1 of Qwen2.5-Math-PRM's [bad, good].
    """

    encoder: Any
    """What has ``encode(items)``, as every :class:`surefoot.models.scorer.StepModel`: token ids and read-out
    positions."""
    model: str
    step_tag_id: int | None = None
    rule: Rule = itemgetter(-1)
    path: str = "/pooling"

    def request(self, items: Sequence[ProblemTrace]) -> WireRequest:
        """All items in one body: a list of prompts as token ids."""
        encoded = tuple(self.encoder.encode(items))
        body = {
            "model": self.model,
            "task": "token_classify",
            "input": [list(trace.ids) for trace in encoded if trace.ids],
            "encoding_format": "float",
            "use_activation": True,
        }
        return WireRequest(body=body, encoded=encoded)

    def read(self, request: WireRequest, response: str) -> list[ItemScores]:
        """One score for each read-out position, in order. Raises :class:`ShapeError`."""
        parsed = _parse(_PoolingResponse, response)
        rows = iter(_in_order(parsed.data, sum(bool(trace.ids) for trace in request.encoded)))
        answers = []
        for trace in request.encoded:
            scores = self._scores(trace, next(rows).data) if trace.ids else trace.positions
            cut_at = len(trace.ids)  # the context, where a step was cut off
            answers.append(ItemScores(scores, trace.unscored_reason(cut_at), cut_at))
        return answers

    def _scores(self, trace: EncodedTrace, data: list[list[float]]) -> Scores:
        positions = self._row_positions(trace)
        if len(data) != len(positions):
            tokens, pooling = ("tokens", "ALL") if self.step_tag_id is None else ("step tags", "STEP")
            raise ShapeError(
                f"{len(data)} rows came for {len(positions)} {tokens}; "
                f"is the server's pooling type {pooling}?"
            )
        row_of = dict(zip(positions, data, strict=True))
        reads = trace.positions
        return tuple(None if at is None else _probability(row_of[at], self.rule) for at in reads)

    def _row_positions(self, trace: EncodedTrace) -> list[int]:
        """Token positions for which the server returns a row."""
        if self.step_tag_id is None:
            return list(range(len(trace.ids)))
        tags = [at for at, token in enumerate(trace.ids) if token == self.step_tag_id]
        if not {at for at in trace.positions if at is not None} <= set(tags):
            raise ShapeError(f"a step is read at a token that is not step_tag_id={self.step_tag_id}")
        return tags  # a solution may contain the tag; those rows are ignored


Wire: TypeAlias = GatewayScore | VllmPooling
"""One server interface: its ``path`` below the base URL without ``/v1``, ``request`` and ``read``."""


def _parse(model: type[T], response: str) -> T:
    """Parse strictly: booleans and strings are not numbers. Raises :class:`ShapeError` naming the field."""
    try:
        return model.model_validate_json(response, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise ShapeError(f"{where}: {first['msg']}; the answer begins {response[:200]!r}") from error


def _checked_score(score: float | None) -> float | None:
    """Clip rounding errors to [0, 1]. Raises :class:`ShapeError` for a score further outside."""
    if score is not None and not -1e-6 <= score <= 1 + 1e-6:  # False for NaN
        raise ShapeError(
            f"a score is {score}, outside [0, 1]: raw logits? the server must apply its activation"
        )
    return None if score is None else min(1.0, max(0.0, score))


def _probability(row: list[float], rule: Rule) -> float:
    """Score of one step from a row of probabilities. Raises :class:`ShapeError` for any other row."""
    if not row or (len(row) > 1 and not math.isclose(math.fsum(row), 1.0, abs_tol=0.02)):
        raise ShapeError(f"a row of {len(row)} classes sums to {math.fsum(row):.4g}: not probabilities")
    try:
        return rule([float(_checked_score(value) or 0.0) for value in row])
    except IndexError as error:
        raise ShapeError(f"a row has {len(row)} classes, fewer than the rule reads") from error


def _in_order(rows: list[_PoolingRow], count: int) -> list[_PoolingRow]:
    """Rows in the order of their prompts. Raises :class:`ShapeError` unless there is one row per prompt."""
    rows = sorted(rows, key=lambda row: row.index)
    if [row.index for row in rows] != list(range(count)):
        raise ShapeError(f"results {[row.index for row in rows][:20]} came for {count} prompts")
    return rows


class _GatewayResult(BaseModel):
    scores: list[float | None]
    unscored_reason: str | None = None


class _VerifierTokens(BaseModel):
    verifier_tokens: Count = 0


class _GatewayResponse(BaseModel):
    results: list[_GatewayResult]
    usage: _VerifierTokens = _VerifierTokens()


class _PoolingRow(BaseModel):
    index: int
    """Number of the prompt."""
    data: list[list[float]]


class _PoolingResponse(BaseModel):
    data: list[_PoolingRow]
