"""Step rewards whose sum is bounded whatever the length (Clip and Delta)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from surefoot.rl.credit.rule import Need, Scored, Stream


class ClipDelta(BaseModel):
    """Clip and Delta (Gao et al., arXiv 2410.15115), the clip first.

    - ``clip``: r_k <- min(r_k - eta, 0). No step earns, so more steps never do.
    - ``delta``: r_k <- r_k - r_{k+1} for k < K - 1, r_k for k = K - 1, and 0 for the last step K, whose worth
      the outcome tells. The return from step k < K is then r_k itself, and that of the whole r_1.

    Steps without a score are skipped: the difference is to the next scored one before K. The paper adds the
    outcome: use it within ``mixed``, whose ``process`` is the paper's α. It prints no η; the default takes a
    step that is more likely wrong than right as bad. Choose one that most steps of the first policy exceed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["clip-delta"] = "clip-delta"
    needs: ClassVar[frozenset[Need]] = frozenset({"scores"})
    clip: bool = True
    delta: bool = True
    eta: float = 0.5
    """Score from which on a step costs nothing."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.clip or self.delta):
            raise ValueError("'clip' and 'delta' are both off, which is the rule 'summed': use that")
        return self

    def credit(self, batch: Sequence[Sequence[Scored]]) -> list[list[tuple[Stream, ...]]]:
        """One stream a rollout, with a reward for each scored step."""
        return [[(self._stream(one),) for one in group] for group in batch]

    def _stream(self, rollout: Scored) -> Stream:
        steps = rollout.scored_steps()
        rewards = [min(score - self.eta, 0.0) if self.clip else score for _, _, score in steps]
        if self.delta and steps:
            final = steps[-1][0] == len(rollout.ends) - 1
            body = rewards[:-1] if final else rewards
            rewards = [mine - after for mine, after in pairwise([*body, 0.0])]
            rewards += [0.0] * final
        return Stream(at=tuple(end for _, end, _ in steps), values=tuple(rewards))
