"""Wire formats of scoring servers: vLLM's pooling, and this package's gateway.

Those that take a prompt for each step are in :mod:`surefoot.models.remote.step_prompts`. A wire format turns
items into JSON bodies and a body's answer into one list of scores per item; it does no network. vLLM 0.32
defines its requests and answers in ``entrypoints/pooling/pooling/protocol.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, Field, ValidationError

from surefoot.models.encoding import EncodedTrace
from surefoot.protocols import ProblemTrace

T = TypeVar("T", bound=BaseModel)

Scores = tuple[float | None, ...]

Rule = Callable[[Sequence[float]], float]
"""Score of a step from the probabilities of all classes, where it is not simply one of them."""


class WireError(Exception):
    """An answer that is not of the documented shape; the message names what came."""


class Encoder(Protocol):
    """Token ids and read-out positions; every :class:`surefoot.models.scorer.StepModel` is one."""

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]: ...


@dataclass(frozen=True, kw_only=True)
class WireRequest:
    """One request: its JSON body, and the tokens in it where they were made here."""

    body: dict[str, Any]
    encoded: tuple[EncodedTrace, ...] = ()
    """One per item; a trace that the model cannot read has no tokens, and is not sent."""


class ItemScores(NamedTuple):
    """The answer for one item."""

    scores: Scores
    """In [0, 1], or ``None`` for a step that was cut off."""
    reason: str | None
    """Why some scores are ``None``."""
    tokens: int
    """Tokens the server read."""


class Wire(Protocol):
    """One server interface. ``path`` is relative to the server's base URL, without ``/v1``."""

    @property
    def path(self) -> str: ...

    def call(self, items: Sequence[ProblemTrace]) -> WireRequest:
        """Raises ``ScoreError`` for a trace without steps."""

    def read(self, call: WireRequest, answer: str) -> list[ItemScores]:
        """Raises :class:`WireError`."""


def parse_answer(model: type[T], answer: str) -> T:
    """An answer's text as ``model``; ``true`` and texts are no numbers. Raises :class:`WireError` naming the
    field."""
    try:
        return model.model_validate_json(answer, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise WireError(f"{where}: {first['msg']}; the answer begins {answer[:200]!r}") from error


def checked_score(score: float | None) -> float | None:
    """``score`` without rounding beyond [0, 1]. Raises :class:`WireError` if it lies further outside."""
    if score is not None and not -1e-6 <= score <= 1 + 1e-6:  # False for NaN
        raise WireError(
            f"a score is {score}, outside [0, 1]: raw logits? the server must apply its activation"
        )
    return None if score is None else min(1.0, max(0.0, score))


@dataclass(frozen=True, kw_only=True)
class GatewayScore:
    """``POST /v1/score`` of this package's own gateway: texts and messages go out, the server encodes.

    Body: ``{"model": str | null, "items": [{"problem": str, "steps": [str, ...]}, ...]}``, the steps being
    the exact pieces of the solution; an agent's run goes as its record, ``{"problem": str, "trace": {...}}``,
    with images by their address. Answer: ``{"model": str, "results": [{"scores": [number | null, ...],
    "unscored_reason": str | null}, ...], "usage": {"verifier_tokens": int}}``, one result an item, in
    order, one score a step in [0, 1].
    """

    model: str | None = None
    path: str = "/v1/score"

    def call(self, items: Sequence[ProblemTrace]) -> WireRequest:
        """The items' texts, or records of messages."""
        return WireRequest(body={"model": self.model, "items": list(map(self._row, items))})

    @staticmethod
    def _row(item: ProblemTrace) -> dict[str, Any]:
        if item.trace.text is None:
            fields = {"problem_id", "messages", "tools", "steps"}
            trace = item.trace.model_dump(mode="json", include=fields, exclude_defaults=True)
            return {"problem": item.problem.text, "trace": trace}
        steps = [item.trace.step_text(step) for step in range(len(item.trace.steps))]
        return {"problem": item.problem.text, "steps": steps}

    def read(self, call: WireRequest, answer: str) -> list[ItemScores]:
        """Scores as they came. Raises :class:`WireError`."""
        parsed, items = parse_answer(_GatewayAnswer, answer), call.body["items"]
        if len(parsed.results) != len(items):
            raise WireError(f"{len(parsed.results)} results came for {len(items)} items")
        tokens, scored = parsed.usage.verifier_tokens, []
        for number, (result, item) in enumerate(zip(parsed.results, items, strict=True)):
            steps = len(item["steps"] if "steps" in item else item["trace"]["steps"])
            if len(result.scores) != steps:
                raise WireError(f"results[{number}]: {len(result.scores)} scores came for {steps} steps")
            scores = tuple(checked_score(score) for score in result.scores)
            reason = (result.unscored_reason or "the server gave no reason") if None in scores else None
            scored.append(ItemScores(scores, reason, 0 if number else tokens))
        return scored


@dataclass(frozen=True, kw_only=True)
class VllmPooling:
    """``POST /pooling`` with task ``token_classify``: scores of tokens, from the very ids made here.

    ``rows`` says what the server was started with: ``steps``, pooler config ``{"tok_pooling_type": "STEP",
    "step_tag_id": step_tag_id, ...}``, which answers with one row for each token ``step_tag_id``; or
    ``tokens`` (pooling type ``ALL``), one row per token, from which the steps' rows are selected here. A row
    holds the probabilities of the classes (softmax; sigmoid for a single one), and ``column`` is the score:
    column 0 with ``returned_token_ids: [good, bad]``, column 1 for Qwen2.5-Math-PRM, [bad, good].
    """

    encoder: Encoder
    model: str
    rows: Literal["steps", "tokens"] = "tokens"
    step_tag_id: int | None = None
    column: int = -1
    rule: Rule | None = None
    """In place of ``column``."""
    path: str = "/pooling"

    def __post_init__(self) -> None:
        if (self.rows == "steps") != (self.step_tag_id is not None):
            raise ValueError("rows='steps' needs step_tag_id, and rows='tokens' has none")

    def call(self, items: Sequence[ProblemTrace]) -> WireRequest:
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

    def read(self, call: WireRequest, answer: str) -> list[ItemScores]:
        """One score for each read-out position, in order. Raises :class:`WireError`."""
        parsed = parse_answer(_PoolingAnswer, answer)
        rows = iter(in_order(parsed.data, sum(bool(trace.ids) for trace in call.encoded)))
        scores = [
            self._scores(trace, next(rows).data) if trace.ids else trace.positions for trace in call.encoded
        ]
        return reply(call, scores, [len(trace.ids) for trace in call.encoded])

    def _scores(self, trace: EncodedTrace, data: list[list[float]]) -> Scores:
        places = [at for at in trace.positions if at is not None]
        positions = self._places(trace, places)
        if len(data) != len(positions):
            raise WireError(
                f"{len(data)} rows came for {len(positions)} "
                f"{'step tags' if self.rows == 'steps' else 'tokens'}; is the server's pooling type "
                f"{'STEP' if self.rows == 'steps' else 'ALL'}?"
            )
        row_of = dict(zip(positions, data, strict=True))
        return tuple(
            None if at is None else probability(row_of[at], self.column, self.rule) for at in trace.positions
        )

    def _places(self, trace: EncodedTrace, places: list[int]) -> list[int]:
        """Token positions that the server answers for."""
        if self.rows == "tokens":
            return list(range(len(trace.ids)))
        tags = [at for at, token in enumerate(trace.ids) if token == self.step_tag_id]
        if not set(places) <= set(tags):
            raise WireError(f"a step is read at a token that is not step_tag_id={self.step_tag_id}")
        return tags  # the solution may hold the tag too; its rows are passed over


class Indexed(BaseModel):
    """A row of an answer, with the number of its prompt."""

    index: int


class _PoolingRow(Indexed):
    data: list[list[float]]


class _PoolingAnswer(BaseModel):
    data: list[_PoolingRow]


R = TypeVar("R", bound=Indexed)


def reply(call: WireRequest, scores: list[Scores], tokens: list[int]) -> list[ItemScores]:
    """The answer for each encoded trace, with the reason for steps without a score."""
    reasons = [trace.unscored_reason(len(trace.ids)) for trace in call.encoded]  # cut at the context
    return [ItemScores(*item) for item in zip(scores, reasons, tokens, strict=True)]


def in_order(rows: list[R], count: int) -> list[R]:
    """Rows in the order of their prompts. Raises :class:`WireError` unless there is one for each."""
    rows = sorted(rows, key=lambda row: row.index)
    if [row.index for row in rows] != list(range(count)):
        raise WireError(f"results {[row.index for row in rows][:20]} came for {count} prompts")
    return rows


def probability(row: list[float], column: int, rule: Rule | None = None) -> float:
    """Score of one step from a row of probabilities. Raises :class:`WireError` for another row."""
    if not -len(row) <= column < len(row):
        raise WireError(f"column {column} was asked for, but a row has {len(row)} classes")
    if len(row) > 1 and not math.isclose(math.fsum(row), 1.0, abs_tol=0.02):
        raise WireError(
            f"a row of {len(row)} classes adds up to {math.fsum(row):.4g}, so is no probabilities"
        )
    known = [checked_score(value) for value in row]
    if None in known:
        raise WireError("a row holds no number")
    clean = [float(value or 0.0) for value in known]
    return clean[column] if rule is None else rule(clean)


class _GatewayResult(BaseModel):
    scores: list[float | None]
    unscored_reason: str | None = None


class _VerifierTokens(BaseModel):
    verifier_tokens: int = Field(default=0, ge=0)


class _GatewayAnswer(BaseModel):
    results: list[_GatewayResult]
    usage: _VerifierTokens = _VerifierTokens()
