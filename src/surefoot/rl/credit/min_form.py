"""Credit by the worst step rather than the sum (PURE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.rl.credit.rule import FloatArray, Need, RewardStream, ScoredRollout


class MinForm(BaseModel):
    """Min-form credit (PURE, Cheng et al., arXiv 2504.15275): the return is the worst reward to come.

    With r_k = 2 p_k - 1 = P(+) - P(-) over the K scored steps of a rollout,

    - ``soft``: w = softmax(-r / T), reward w_k r_k at the last token of step k. The sum goes to min_k r_k for
      T -> 0, to the mean for T -> infinity, and lies between them.
    - ``strict``: every token of step k has the return min_{j >= k} r_j, which no softmax blurs.

    Another good step cannot raise the return much, so length does not pay. ``temperature`` 0.1 is that of
    the paper's code. Without ``signed``, r_k = p_k, and no rollout is worth less than nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["min-form"] = Field(default="min-form", description="Credit by the worst step.")
    needs: ClassVar[frozenset[Need]] = frozenset({"scores"})
    form: Literal["soft", "strict"] = Field(
        default="soft", description="Soft minimum by a softmax, or the strict suffix minimum."
    )
    temperature: float = Field(default=0.1, gt=0, description="Temperature of the softmax of the soft form.")
    signed: bool = Field(default=True, description="Reward 2 p - 1 rather than the score p.")

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """One stream per rollout; steps without a score weigh nothing."""
        return [[(self._stream(one),) for one in group] for group in batch]

    def _stream(self, rollout: ScoredRollout) -> RewardStream:
        steps = rollout.scored_steps()
        if not steps:
            return RewardStream(at=(), values=(), reach="own" if self.form == "strict" else "returns")
        at = tuple(end for _, end, _ in steps)
        scores_s = np.array([score for _, _, score in steps])
        rewards_s = 2 * scores_s - 1 if self.signed else scores_s
        if self.form == "soft":
            return RewardStream(
                at=at, values=tuple((min_weights(rewards_s, self.temperature) * rewards_s).tolist())
            )
        # reach "own" gives an unscored step the return of the next scored one, its suffix minimum
        suffix_s = np.minimum.accumulate(rewards_s[::-1])[::-1]
        return RewardStream(at=at, values=tuple(suffix_s.tolist()), reach="own")


def min_weights(rewards_s: FloatArray, temperature: float) -> FloatArray:
    """softmax(-r / T) [S], positive and summing to 1."""
    powers = np.exp((rewards_s.min() - rewards_s) / temperature)
    return np.asarray(powers / powers.sum())
