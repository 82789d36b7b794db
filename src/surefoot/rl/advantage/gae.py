"""A critic's values as baseline (PPO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.errors import TrainingError
from surefoot.rl.advantage.estimator import Credited
from surefoot.rl.advantage.tokens import at_tokens, settle
from surefoot.rl.credit.rule import FloatArray


class Gae(BaseModel):
    """Generalised advantage estimation (arXiv 1506.02438, equation 16), as PPO has it (arXiv 1707.06347).

        δ_t = r_t + γ V_{t+1} - V_t,    A_t = δ_t + γ λ A_{t+1},    V_T = A_T = 0

    with r_t all weighted rewards at token t, and V_t the critic's value of the state in which token t was
    drawn. λ = 1 is the return less V, λ = 0 the error of one step. The critic's targets are A + V
    (:meth:`targets`).

    Returns given to tokens at once (reach ``own``, not centred: the strict min-form) come in as the rewards
    of which they are the returns, G_t - γ G_{t+1}. Centred streams are added to the advantages as they are
    and are no part of the targets. A rollout without rewards has advantage 0 and no target. ``whiten`` is
    usual in PPO code; the papers do not have it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["gae"] = "gae"
    needs_values: ClassVar[bool] = True
    compares: ClassVar[bool] = False
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=0.95, ge=0, le=1)
    whiten: bool = False

    def advantages(self, batch: Sequence[Sequence[Credited]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group.

        Raises ``TrainingError`` for values that are missing.
        """
        found = [
            [_add(estimate, _centred(one)) for one, estimate in zip(group, estimates, strict=True)]
            for group, estimates in zip(batch, self._estimates(batch), strict=True)
        ]
        return settle(batch, found, whiten=self.whiten)

    def targets(self, batch: Sequence[Sequence[Credited]]) -> list[list[FloatArray | None]]:
        """What the critic should say [T], the λ-return A + V; ``None`` for a rollout without rewards.

        Raises ``TrainingError`` for values that are missing.
        """
        return [
            [_add(estimate, one.values) if estimate is not None else None
             for one, estimate in zip(group, estimates, strict=True)]
            for group, estimates in zip(batch, self._estimates(batch), strict=True)
        ]  # fmt: skip

    def _estimates(self, batch: Sequence[Sequence[Credited]]) -> list[list[FloatArray | None]]:
        """A [T] of every rollout, ``None`` without rewards; one pass over the columns of all padded rows."""
        flat = [one for group in batch for one in group]
        rewards = [self._rewards(one) for one in flat]
        width = max((one.tokens for one in flat), default=0)
        deltas_rt = np.zeros((len(flat), width))
        for row, (one, mine) in enumerate(zip(flat, rewards, strict=True)):
            if mine is not None:
                values = _values(one)
                deltas_rt[row, : one.tokens] = mine + self.gamma * np.append(values[1:], 0.0) - values
        for column in range(width - 2, -1, -1):
            deltas_rt[:, column] += self.gamma * self.lam * deltas_rt[:, column + 1]
        found = iter(
            None if mine is None else deltas_rt[row, : one.tokens].copy()
            for row, (one, mine) in enumerate(zip(flat, rewards, strict=True))
        )
        return [[next(found) for _ in group] for group in batch]

    def _rewards(self, rollout: Credited) -> FloatArray | None:
        """r [T]; ``None`` if no stream has any."""
        total: FloatArray | None = None
        for stream in rollout.streams:
            if not stream.at or stream.centred:
                continue
            values = stream.weight * np.array(stream.values)
            if stream.reach == "own":
                returns = at_tokens(stream, values, rollout.tokens)
                mine = returns - self.gamma * np.append(returns[1:], 0.0)
            else:
                mine = np.zeros(rollout.tokens)
                np.add.at(mine, list(stream.at), values)
            total = _add(total, mine)
        return total


def _centred(rollout: Credited) -> FloatArray | None:
    """Weighted sum of what is an advantage already [T]."""
    total: FloatArray | None = None
    for stream in rollout.streams:
        if stream.centred and stream.at:
            total = _add(total, at_tokens(stream, stream.weight * np.array(stream.values), rollout.tokens))
    return total


def _values(rollout: Credited) -> FloatArray:
    if rollout.values is None:
        raise TrainingError(
            "'gae' needs a critic's values of every rollout: give 'values', or choose another kind"
        )
    if rollout.values.shape != (rollout.tokens,):
        raise TrainingError(f"'values' has shape {rollout.values.shape} for {rollout.tokens} tokens")
    return rollout.values


def _add(one: FloatArray | None, other: FloatArray | None) -> FloatArray | None:
    """Sum of what is known."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
