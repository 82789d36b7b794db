"""Scores from vLLM's pooling and classification interfaces.

The request and answer models of vLLM 0.32 are ``entrypoints/pooling/{pooling,classify}/protocol.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from surefoot.models.encoding import EncodedTrace
from surefoot.models.remote_wire import (
    AnswerPart,
    Call,
    Encoder,
    Reply,
    Scores,
    WireError,
    checked_score,
    parse_answer,
)
from surefoot.protocols import ProblemTrace


@dataclass(frozen=True, kw_only=True)
class VllmPooling:
    """``POST /pooling`` with task ``token_classify``: scores of tokens, from the very ids made here.

    ``rows`` says what the server was started with: ``steps``, pooler config ``{"tok_pooling_type": "STEP",
    "step_tag_id": step_tag_id, ...}``, which answers with one row for each token ``step_tag_id``; or
    ``tokens`` (pooling type ``ALL``), one row a token, from which the steps' rows are taken here. A row holds
    the probabilities of the classes (softmax; sigmoid for a single one), of which ``column`` is the score.
    With ``returned_token_ids: [good, bad]`` it is column 0; for Qwen2.5-Math-PRM, [bad, good], column 1.
    """

    encoder: Encoder
    model: str
    rows: Literal["steps", "tokens"] = "tokens"
    step_tag_id: int | None = None
    column: int = -1
    path: str = "/pooling"

    def __post_init__(self) -> None:
        if (self.rows == "steps") != (self.step_tag_id is not None):
            raise ValueError("rows='steps' needs step_tag_id, and rows='tokens' has none")

    def call(self, items: Sequence[ProblemTrace]) -> Call:
        """All items in one body: a list of prompts as token ids."""
        encoded = tuple(self.encoder.encode(items))
        body = {
            "model": self.model,
            "task": "token_classify",
            "input": [list(trace.ids) for trace in encoded],
            "encoding_format": "float",
            "use_activation": True,
        }
        return Call(body=body, encoded=encoded)

    def read(self, call: Call, answer: str) -> Reply:
        """One score for each read-out position, in order. Raises :class:`WireError`."""
        parsed = parse_answer(_PoolingAnswer, answer)
        rows = _in_order(parsed.data, len(call.encoded))
        scores = [self._scores(trace, row.data) for trace, row in zip(call.encoded, rows, strict=True)]
        return _reply(call, scores, [len(trace.ids) for trace in call.encoded])

    def _scores(self, trace: EncodedTrace, data: list[list[float]]) -> Scores:
        places = [at for at in trace.positions if at is not None]
        wanted = self._places(trace, places)
        if len(data) != len(wanted):
            raise WireError(
                f"{len(data)} rows came for {len(wanted)} "
                f"{'step tags' if self.rows == 'steps' else 'tokens'}; is the server's pooling type "
                f"{'STEP' if self.rows == 'steps' else 'ALL'}?"
            )
        row_of = dict(zip(wanted, data, strict=True))
        return tuple(None if at is None else _probability(row_of[at], self.column) for at in trace.positions)

    def _places(self, trace: EncodedTrace, places: list[int]) -> list[int]:
        """Token positions that the server answers for."""
        if self.rows == "tokens":
            return list(range(len(trace.ids)))
        tags = [at for at, token in enumerate(trace.ids) if token == self.step_tag_id]
        if not set(places) <= set(tags):
            raise WireError(f"a step is read at a token that is not step_tag_id={self.step_tag_id}")
        return tags  # the solution may hold the tag too; its rows are passed over


@dataclass(frozen=True, kw_only=True)
class VllmClassify:
    """``POST /classify``: one prompt a step, cut right after the step's read-out token.

    The server reads a prompt at its last token (pooling type ``LAST``) and answers with the probabilities of
    the classes, of which ``column`` is the score. Prefix caching makes the prompts of one trace cheap.
    """

    encoder: Encoder
    model: str
    column: int = -1
    path: str = "/classify"

    def call(self, items: Sequence[ProblemTrace]) -> Call:
        """All steps of all items in one body."""
        encoded = tuple(self.encoder.encode(items))
        prompts = [list(trace.ids[: at + 1]) for trace in encoded for at in trace.positions if at is not None]
        return Call(body={"model": self.model, "input": prompts, "use_activation": True}, encoded=encoded)

    def read(self, call: Call, answer: str) -> Reply:
        """One score for each prompt, in order. Raises :class:`WireError`."""
        parsed = parse_answer(_ClassifyAnswer, answer)
        rows = iter(_in_order(parsed.data, len(call.body["input"])))
        scores = [
            tuple(None if at is None else _probability(next(rows).probs, self.column) for at in t.positions)
            for t in call.encoded
        ]
        tokens = [sum(at + 1 for at in t.positions if at is not None) for t in call.encoded]
        return _reply(call, scores, tokens)


class _PoolingRow(AnswerPart):
    index: int
    data: list[list[float]]


class _PoolingAnswer(AnswerPart):
    data: list[_PoolingRow]


class _ClassifyRow(AnswerPart):
    index: int
    probs: list[float]


class _ClassifyAnswer(AnswerPart):
    data: list[_ClassifyRow]


R = TypeVar("R", _PoolingRow, _ClassifyRow)


def _reply(call: Call, scores: list[Scores], tokens: list[int]) -> Reply:
    cut = [trace.truncated_steps for trace in call.encoded]
    reasons = [f"{steps} steps lie beyond the model's context" if steps else None for steps in cut]
    return Reply(scores=scores, reasons=reasons, tokens=tokens)


def _in_order(rows: list[R], count: int) -> list[R]:
    rows = sorted(rows, key=lambda row: row.index)
    if [row.index for row in rows] != list(range(count)):
        raise WireError(f"results {[row.index for row in rows][:20]} came for {count} prompts")
    return rows


def _probability(row: list[float], column: int) -> float:
    if not -len(row) <= column < len(row):
        raise WireError(f"column {column} was asked for, but a row has {len(row)} classes")
    if len(row) > 1 and not math.isclose(math.fsum(row), 1.0, abs_tol=0.02):
        raise WireError(
            f"a row of {len(row)} classes adds up to {math.fsum(row):.4g}, so is no probabilities"
        )
    value = checked_score(row[column])
    if value is None:
        raise WireError("a row holds no number")
    return value
