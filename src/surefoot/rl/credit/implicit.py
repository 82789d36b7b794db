"""Token rewards of an implicit reward model (the process part of PRIME)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.rl.credit.rule import FloatArray, Need, RewardStream, ScoredRollout

_EPSILON = 1e-6


class Implicit(BaseModel):
    """Implicit process reward (PRIME, Cui et al., arXiv 2502.01456): r_t = log π_φ(y_t) / π_ref(y_t).

    A reward at every token, from a model that learns from outcomes alone (implicit PRM, arXiv 2412.01981) and
    keeps learning with the policy. As in the paper's code, it is not scaled by β, but (``normalize``)
    divided by the largest |sum of r_s over s >= t| (return-to-go) of any token of the batch, plus 1e-6.
    PRIME is this within ``mixed``, with ``leave-one-out`` as estimator.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["implicit"] = Field(
        default="implicit", description="Credit by the log-ratios of an implicit reward model."
    )
    needs: ClassVar[frozenset[Need]] = frozenset({"log_ratios"})
    normalize: bool = Field(
        default=True, description="Divide by the largest absolute return-to-go of the batch."
    )

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """One stream per rollout; empty where there are no log-ratios."""
        known = [one.log_ratios for group in batch for one in group if one.log_ratios is not None]
        scale = largest_return(known) + _EPSILON if self.normalize else 1.0
        return [[(_stream(one, scale),) for one in group] for group in batch]


def largest_return(rewards: Sequence[FloatArray]) -> float:
    """Largest |return-to-go| of any token of rewards [T] each; 0 where there are none."""
    return max((float(np.abs(one[::-1].cumsum()).max()) for one in rewards if one.size), default=0.0)


def _stream(rollout: ScoredRollout, scale: float) -> RewardStream:
    if rollout.log_ratios is None:
        return RewardStream(at=(), values=())
    return RewardStream(at=tuple(range(rollout.tokens)), values=tuple((rollout.log_ratios / scale).tolist()))
