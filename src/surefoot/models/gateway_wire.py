"""Scores from this package's own gateway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from surefoot.models.remote_wire import AnswerPart, Call, Reply, WireError, checked_score, parse_answer
from surefoot.protocols import ProblemTrace


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """``POST /v1/score`` of this package's own gateway: texts go out, the server encodes.

    Body: ``{"model": str | null, "items": [{"problem": str, "steps": [str, ...]}, ...]}``, the steps being
    the exact pieces of the solution. Answer: ``{"model": str, "results": [{"scores": [number | null, ...],
    "unscored_reason": str | null}, ...], "usage": {"verifier_tokens": int}}``, one result an item, in
    order, one score a step in [0, 1].
    """

    model: str | None = None
    path: str = "/v1/score"

    def call(self, items: Sequence[ProblemTrace]) -> Call:
        """The items' texts."""
        rows = [
            {
                "problem": item.problem.text,
                "steps": [item.trace.step_text(step) for step in range(len(item.trace.steps))],
            }
            for item in items
        ]
        steps = tuple(len(item.trace.steps) for item in items)
        return Call(body={"model": self.model, "items": rows}, steps=steps)

    def read(self, call: Call, answer: str) -> Reply:
        """Scores as they came. Raises :class:`WireError`."""
        parsed = parse_answer(_GatewayAnswer, answer)
        if len(parsed.results) != len(call.steps):
            raise WireError(f"{len(parsed.results)} results came for {len(call.steps)} items")
        for number, (result, steps) in enumerate(zip(parsed.results, call.steps, strict=True)):
            if len(result.scores) != steps:
                raise WireError(f"results[{number}]: {len(result.scores)} scores came for {steps} steps")
        scores = [tuple(checked_score(score) for score in result.scores) for result in parsed.results]
        reasons = [
            (result.unscored_reason or "the server gave no reason") if None in result.scores else None
            for result in parsed.results
        ]
        tokens = [parsed.usage.verifier_tokens] + [0] * (len(scores) - 1)
        return Reply(scores=scores, reasons=reasons, tokens=tokens[: len(scores)])


class _GatewayResult(AnswerPart):
    scores: list[float | None]
    unscored_reason: str | None = None


class _VerifierTokens(AnswerPart):
    verifier_tokens: int = Field(default=0, ge=0)


class _GatewayAnswer(AnswerPart):
    results: list[_GatewayResult]
    usage: _VerifierTokens = _VerifierTokens()
