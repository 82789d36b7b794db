"""A critic's values as baseline (PPO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.errors import TrainingError
from surefoot.rl.advantage.estimator import at_tokens, complete_batch
from surefoot.rl.credit.rule import FloatArray, ScoredRollout


class Gae(BaseModel):
    """Generalised advantage estimation (arXiv 1506.02438, equation 16), as PPO has it (arXiv 1707.06347).

        δ_t = r_t + γ V_{t+1} - V_t,    A_t = δ_t + γ λ A_{t+1},    V_T = A_T = 0

    with r_t all weighted rewards at token t, and V_t the critic's value of the state in which token t was
    sampled. λ = 1 is the return less V, λ = 0 the error of one step. The critic's targets are A + V
    (:meth:`targets`).

    Returns set directly (reach ``own``, not centred: the strict min-form) enter as the rewards that have
    these returns, G_t - γ G_{t+1}. Centred streams are added to the advantages unchanged and are not part of
    the targets. A rollout without rewards has advantage 0 and no target. ``whiten`` is usual in PPO code; the
    papers do not have it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["gae"] = Field(default="gae", description="Generalized advantage estimation (PPO).")
    needs_values: ClassVar[bool] = True
    compares: ClassVar[bool] = False
    gamma: float = Field(default=1.0, gt=0, le=1, description="Discount per token.")
    lam: float = Field(
        default=0.95, ge=0, le=1, description="1 = return less value, 0 = one-step error; between: a mixture."
    )
    whiten: bool = Field(default=False, description="Center and scale over the tokens of the batch.")

    def advantages(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group.

        Raises ``TrainingError`` for missing values.
        """
        advantages = [
            [_add(estimate, _centred(one)) for one, estimate in zip(group, estimates, strict=True)]
            for group, estimates in zip(batch, self._estimates(batch), strict=True)
        ]
        return complete_batch(batch, advantages, whiten=self.whiten)

    def targets(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[FloatArray | None]]:
        """What the critic should say [T], the λ-return A + V; ``None`` for a rollout without rewards.

        Raises ``TrainingError`` for missing values.
        """
        return [
            [_add(estimate, one.values) if estimate is not None else None
             for one, estimate in zip(group, estimates, strict=True)]
            for group, estimates in zip(batch, self._estimates(batch), strict=True)
        ]  # fmt: skip

    def _estimates(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[FloatArray | None]]:
        """A [T] of every rollout, ``None`` without rewards; one pass over the columns of all padded rows."""
        flat = [one for group in batch for one in group]
        rewards_rt = [self._rewards(one) for one in flat]
        width = max((one.tokens for one in flat), default=0)
        deltas_rt = np.zeros((len(flat), width))
        for row, (one, rewards_t) in enumerate(zip(flat, rewards_rt, strict=True)):
            if rewards_t is not None:
                values = _values(one)
                deltas_rt[row, : one.tokens] = rewards_t + self.gamma * np.append(values[1:], 0.0) - values
        for column in range(width - 2, -1, -1):
            deltas_rt[:, column] += self.gamma * self.lam * deltas_rt[:, column + 1]
        estimates = iter(
            None if rewards_t is None else deltas_rt[row, : one.tokens].copy()
            for row, (one, rewards_t) in enumerate(zip(flat, rewards_rt, strict=True))
        )
        return [[next(estimates) for _ in group] for group in batch]

    def _rewards(self, rollout: ScoredRollout) -> FloatArray | None:
        """r [T]; ``None`` if no stream has any."""
        total: FloatArray | None = None
        for stream in rollout.rewards:
            if not stream.at or stream.centred:
                continue
            values = stream.weight * np.array(stream.values)
            if stream.reach == "own":
                returns = at_tokens(stream, values, rollout.tokens)
                rewards = returns - self.gamma * np.append(returns[1:], 0.0)
            else:
                rewards = np.zeros(rollout.tokens)
                np.add.at(rewards, list(stream.at), values)
            total = _add(total, rewards)
        return total


def _centred(rollout: ScoredRollout) -> FloatArray | None:
    """Weighted sum of the streams that are advantages already [T]."""
    total: FloatArray | None = None
    for stream in rollout.rewards:
        if stream.centred and stream.at:
            total = _add(total, at_tokens(stream, stream.weight * np.array(stream.values), rollout.tokens))
    return total


def _values(rollout: ScoredRollout) -> FloatArray:
    if rollout.values is None:
        raise TrainingError(
            "advantage 'gae' needs a critic's 'values' for every rollout: give them, or choose another kind"
        )
    if rollout.values.shape != (rollout.tokens,):
        raise TrainingError(f"'values' has shape {rollout.values.shape} for {rollout.tokens} tokens")
    return rollout.values


def _add(one: FloatArray | None, other: FloatArray | None) -> FloatArray | None:
    """Sum of what is known."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
