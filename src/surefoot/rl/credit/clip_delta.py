"""Step rewards whose sum is bounded whatever the length (Clip and Delta)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.rl.credit.rule import Need, RewardStream, ScoredRollout


class ClipDelta(BaseModel):
    """Clip and Delta (Gao et al., arXiv 2410.15115), the clip first.

    - ``clip``: r_k <- min(r_k - eta, 0). No step earns, so more steps never do.
    - ``delta``: r_k <- r_k - r_{k+1} for k < K - 1, r_k for k = K - 1, and 0 for the last step K, which the
    outcome
      rewards. The return from step k < K is then r_k itself, and that of the whole r_1.

    Steps without a score are skipped: the difference is to the next scored one before K. The paper adds the
    outcome: use this within ``mixed``, whose ``process`` is the paper's α. It does not print η; by the
    default a step is bad if it is more likely wrong than correct. Choose one that most steps of the first
    policy exceed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["clip-delta"] = Field(default="clip-delta", description="Credit of bounded sum.")
    needs: ClassVar[frozenset[Need]] = frozenset({"scores"})
    clip: bool = Field(default=True, description="Bound step rewards above by 0, after subtracting eta.")
    delta: bool = Field(default=True, description="Reward the difference to the next step.")
    eta: float = Field(default=0.5, description="A step with this score or more costs nothing.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.clip or self.delta):
            raise ValueError("'clip' and 'delta' are both off: that is the rule 'summed', use it instead")
        return self

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """One stream per rollout, with a reward for each scored step."""
        return [[(self._stream(one),) for one in group] for group in batch]

    def _stream(self, rollout: ScoredRollout) -> RewardStream:
        steps = rollout.scored_steps()
        rewards = [min(score - self.eta, 0.0) if self.clip else score for _, _, score in steps]
        if self.delta and steps:
            final = steps[-1][0] == len(rollout.ends) - 1
            body = rewards[:-1] if final else rewards
            rewards = [reward - after for reward, after in pairwise([*body, 0.0])]
            rewards += [0.0] * final
        return RewardStream(at=tuple(end for _, end, _ in steps), values=tuple(rewards))
