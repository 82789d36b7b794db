"""No baseline (REINFORCE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.rl.advantage.estimator import complete_batch, group_advantages
from surefoot.rl.credit.rule import FloatArray, RewardStream, ScoredRollout


class Reinforce(BaseModel):
    """REINFORCE (Williams 1992): A_t = the return from token t, sum of the rewards at or after it.

    Unbiased, with the highest variance. If all rewards have one sign, all rollouts are pushed the same way;
    ``whiten`` (REINFORCE++, arXiv 2501.03262) centers and scales over the tokens of the batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none"] = Field(default="none", description="No baseline (REINFORCE).")
    needs_values: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    whiten: bool = Field(
        default=False, description="Center and scale over the tokens of the batch (REINFORCE++)."
    )

    def advantages(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group."""
        advantages = [group_advantages(group, _unchanged, least=1) for group in batch]
        return complete_batch(batch, advantages, whiten=self.whiten)


def _unchanged(streams: Sequence[RewardStream]) -> list[FloatArray]:
    return [np.array(stream.values) for stream in streams]
