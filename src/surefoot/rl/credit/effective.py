"""Outcome plus the advantage of each step under a prover (PAV)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.errors import ScoreError
from surefoot.rl.credit.outcome import outcome_stream
from surefoot.rl.credit.rule import Need, RewardStream, ScoredRollout


class Effective(BaseModel):
    """Effective reward of process advantage verifiers (Setlur et al., arXiv 2410.08146).

    The policy gradient uses Q^π + α A^μ as return: the outcome, whose mean is Q^π, and for the tokens of step
    k alone

        A_k = q_k - q_{k-1},    q = 1 - (1 - v)^``best_of``,    v = the step's score,

    where v is the value (chance of success) after the step, of a prover μ, or of the policy itself with
    ``best_of`` K > 1, which makes the prover best-of-K of the policy. The policy as its own prover adds
    nothing to the gradient on average. q_0 comes from ``start``, else from the mean outcome of the *other*
    rollouts of the group, which is the policy's value: its own outcome would cancel part of its reward. Where
    there is neither, the first scored step has no advantage. Steps without a score share the advantage of the
    next scored one, so that all sum to q_K - q_0.

    With ``scores`` = advantages, a score s stands for A = 2 s - 1 and nothing is subtracted. The paper has
    ``alpha`` 3 for a 9B policy and 5 for a 2B one (useful: 0.5 to 6).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["effective"] = Field(
        default="effective", description="Credit by the outcome and by step advantages under a prover."
    )
    needs: ClassVar[frozenset[Need]] = frozenset({"scores", "outcome"})
    alpha: float = Field(default=3.0, ge=0, description="Weight of the step advantages; useful: 0.5 to 6.")
    scores: Literal["values", "advantages"] = Field(
        default="values", description="Whether scores are values (v) or advantages (A = 2 s - 1)."
    )
    best_of: int = Field(
        default=1, ge=1, description="Values are of the policy; the prover is its best-of-K."
    )
    start: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Value before the first step, for all problems; by default the other rollouts' mean "
        "outcome.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scores == "advantages" and (self.best_of != 1 or self.start is not None):
            raise ValueError(
                "'best_of' and 'start' are about values: leave them out with 'scores' = advantages"
            )
        return self

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
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

    def _advantages(self, rollout: ScoredRollout, before: float | None) -> RewardStream:
        at, values = [], []
        for end, score in zip(rollout.ends, rollout.scores, strict=False):
            if score is None:
                if (
                    self.scores == "advantages"
                ):  # a boundary, so that the next step's advantage does not reach back here
                    at.append(end)
                    values.append(0.0)
                continue
            if not 0 <= score <= 1:
                raise ScoreError(
                    f"a step's score is {score:g}, but credit 'effective' needs values in [0, 1]"
                )
            at.append(end)
            if self.scores == "advantages":
                values.append(2 * score - 1)
                continue
            value = self._prover_value(score)
            values.append(0.0 if before is None else value - before)
            before = value
        if not rollout.scored_steps():
            at, values = [], []
        return RewardStream(at=tuple(at), values=tuple(values), weight=self.alpha, reach="own", centred=True)

    def _before(self, group: Sequence[ScoredRollout], index: int) -> float | None:
        """q_0 of the rollout at ``index``."""
        if self.start is not None:
            return self._prover_value(self.start)
        others = [
            one.outcome for place, one in enumerate(group) if place != index and one.outcome is not None
        ]
        return self._prover_value(sum(others) / len(others)) if others else None

    def _prover_value(self, value: float) -> float:
        return float(1 - (1 - value) ** self.best_of) if self.best_of > 1 else value
