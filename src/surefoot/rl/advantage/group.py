"""Standard scores within the samples of a problem (GRPO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.rl.advantage.estimator import complete_batch, group_advantages
from surefoot.rl.credit.rule import FloatArray, RewardStream, ScoredRollout


class Group(BaseModel):
    """Group-relative advantages (GRPO; DeepSeekMath, arXiv 2402.03300, sections 4.1.2 and 4.1.3).

    All rewards of one source in a group are pooled, and r~ = (r - mean) / (std + ``epsilon``) replaces
    r; the advantage of a token is the sum of r~ at or after it. With one outcome a rollout that is GRPO's
    outcome supervision, with step rewards its process supervision. Without ``scale``, r~ = r - mean (Dr.
    GRPO, arXiv 2503.20783), which does not favour problems that are nearly always correct or wrong.

    The paper writes std({r}) without saying which: ``population`` divides by n, ``sample`` by n - 1, as the
    code of TRL and verl does. Rewards that are all equal, and groups in which fewer than two rollouts have a
    reward, give exactly 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["group"] = Field(default="group", description="Group-relative advantages (GRPO).")
    needs_values: ClassVar[bool] = False
    compares: ClassVar[bool] = True
    scale: bool = Field(default=True, description="Divide by the standard deviation; not in Dr. GRPO.")
    std: Literal["population", "sample"] = Field(
        default="population",
        description="Standard deviation over n (population) or n - 1 (sample; TRL, verl).",
    )
    epsilon: float = Field(
        default=1e-6, ge=0, description="Added to the standard deviation, in units of reward; verl's value."
    )

    def advantages(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group."""
        return complete_batch(
            batch, [group_advantages(group, self._standardize, least=2) for group in batch], whiten=False
        )

    def _standardize(self, streams: Sequence[RewardStream]) -> list[FloatArray]:
        pool = np.concatenate([stream.values for stream in streams])
        if pool.min() == pool.max():
            return [np.zeros(len(stream.values)) for stream in streams]
        centred = [np.array(stream.values) - pool.mean() for stream in streams]
        if not self.scale:
            return centred
        spread = pool.std(ddof=1 if self.std == "sample" else 0) + self.epsilon
        return [values / spread for values in centred]
