"""Standard scores within the samples of a problem (GRPO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.rl.advantage.estimator import Credited
from surefoot.rl.advantage.tokens import group_advantages, settle
from surefoot.rl.credit.rule import FloatArray, Stream


class Group(BaseModel):
    """Group-relative advantages (GRPO; DeepSeekMath, arXiv 2402.03300, sections 4.1.2 and 4.1.3).

    All rewards of one source in a group are pooled, and r~ = (r - mean) / (std + ``epsilon``) takes the place
    of r; the advantage of a token is the sum of r~ at or after it. With one outcome a rollout that is GRPO's
    outcome supervision, with step rewards its process supervision. Without ``scale``, r~ = r - mean (Dr.
    GRPO, arXiv 2503.20783), which does not favour problems that are nearly always right or wrong.

    The paper prints std({r}) without saying of what: ``population`` divides by n, ``sample`` by n - 1, as the
    code of TRL and verl does. Rewards that are all equal, and groups in which fewer than two rollouts have a
    reward, give exactly 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["group"] = "group"
    needs_values: ClassVar[bool] = False
    compares: ClassVar[bool] = True
    scale: bool = True
    std: Literal["population", "sample"] = "population"
    epsilon: float = Field(default=1e-6, ge=0)
    """In units of reward; verl's value."""

    def advantages(self, batch: Sequence[Sequence[Credited]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group."""
        return settle(
            batch, [group_advantages(group, self._standardize, least=2) for group in batch], whiten=False
        )

    def _standardize(self, streams: Sequence[Stream]) -> list[FloatArray]:
        pool = np.concatenate([stream.values for stream in streams])
        if pool.min() == pool.max():
            return [np.zeros(len(stream.values)) for stream in streams]
        centred = [np.array(stream.values) - pool.mean() for stream in streams]
        if not self.scale:
            return centred
        spread = pool.std(ddof=1 if self.std == "sample" else 0) + self.epsilon
        return [values / spread for values in centred]
