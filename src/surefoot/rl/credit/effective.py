"""Outcome plus the advantage of each step under a prover (PAV)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.errors import ScoreError
from surefoot.rl.credit.outcome import outcome_stream
from surefoot.rl.credit.rule import Need, Scored, Stream


class Effective(BaseModel):
    """Effective reward of process advantage verifiers (Setlur et al., arXiv 2410.08146).

    The policy gradient has Q^π + α A^μ in the place of the return: the outcome, of which Q^π is the mean, and
    for the tokens of step k alone

        A_k = q_k - q_{k-1},    q = 1 - (1 - v)^``best_of``,    v = the step's score,

    where v is the value (chance of success) after the step, of a prover μ, or of the policy itself with
    ``best_of`` K > 1, which makes the prover best-of-K of the policy. The policy as its own prover adds
    nothing to the gradient on average. q_0 comes from ``start``, else from the mean outcome of the *other*
    rollouts of the group, which is the policy's value: its own would punish a success for itself. Where there
    is neither, the first scored step has no advantage. The advantage of steps without a score is that of the
    stretch which they form with the next scored one, so that all sum to q_K - q_0.

    With ``scores`` = advantages, a score s stands for A = 2 s - 1 and nothing is subtracted. The paper has
    ``alpha`` 3 for a 9B policy and 5 for a 2B one (useful: 0.5 to 6).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["effective"] = "effective"
    needs: ClassVar[frozenset[Need]] = frozenset({"scores", "outcome"})
    alpha: float = Field(default=3.0, ge=0)
    scores: Literal["values", "advantages"] = "values"
    best_of: int = Field(default=1, ge=1)
    start: float | None = Field(default=None, ge=0, le=1)
    """v before the first step, the same for all problems."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scores == "advantages" and (self.best_of != 1 or self.start is not None):
            raise ValueError("'scores' = advantages are not values: leave out 'best_of' and 'start'")
        return self

    def credit(self, batch: Sequence[Sequence[Scored]]) -> list[list[tuple[Stream, ...]]]:
        """The outcome, and the advantages weighted by α.

        Raises ``ScoreError`` for a score outside [0, 1], which is no value.
        """
        return [
            [
                (outcome_stream(one), self._advantages(one, self._before(group, index)))
                for index, one in enumerate(group)
            ]
            for group in batch
        ]

    def _advantages(self, rollout: Scored, before: float | None) -> Stream:
        at, values = [], []
        for end, score in zip(rollout.ends, rollout.scores, strict=False):
            if score is None:
                if self.scores == "advantages":  # a fence: the next step's advantage is not this one's
                    at.append(end)
                    values.append(0.0)
                continue
            if not 0 <= score <= 1:
                raise ScoreError(f"a step's score is {score:g}: 'effective' reads values in [0, 1]")
            at.append(end)
            if self.scores == "advantages":
                values.append(2 * score - 1)
                continue
            value = self._proved(score)
            values.append(0.0 if before is None else value - before)
            before = value
        if not rollout.scored_steps():
            at, values = [], []
        return Stream(at=tuple(at), values=tuple(values), weight=self.alpha, reach="own", centred=True)

    def _before(self, group: Sequence[Scored], index: int) -> float | None:
        """q_0 of the rollout at ``index``."""
        if self.start is not None:
            return self._proved(self.start)
        others = [
            one.outcome for place, one in enumerate(group) if place != index and one.outcome is not None
        ]
        return self._proved(sum(others) / len(others)) if others else None

    def _proved(self, value: float) -> float:
        return float(1 - (1 - value) ** self.best_of) if self.best_of > 1 else value
