"""Every step's score as its reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from surefoot.rl.credit.rule import Need, RewardStream, ScoredRollout


class Summed(BaseModel):
    """Step rewards summed: r_k = p_k at the last token of step k, return G_t = sum of r_k with end_k >= t.

    Step-by-step PPO of Math-Shepherd (Wang et al., arXiv 2312.08935) with the estimator ``gae``;
    process supervision of DeepSeekMath (arXiv 2402.03300, section 4.1.3) with ``group``. ``signed`` has
    r_k = 2 p_k - 1, so that a step more likely wrong than right costs.

    More steps bring more reward: this is the rule that policies game by writing empty or repeated steps.
    A step that is not scored has no reward.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["summed"] = Field(default="summed", description="Credit by the sum of step scores.")
    needs: ClassVar[frozenset[Need]] = frozenset({"scores"})
    signed: bool = Field(default=False, description="Reward 2 p - 1 rather than the score p.")

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """One stream per rollout, with a reward for each scored step."""
        return [[(self._stream(one),) for one in group] for group in batch]

    def _stream(self, rollout: ScoredRollout) -> RewardStream:
        steps = rollout.scored_steps()
        return RewardStream(
            at=tuple(end for _, end, _ in steps),
            values=tuple(2 * score - 1 if self.signed else score for _, _, score in steps),
        )
