"""The other samples of a problem as baseline (RLOO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.rl.advantage.estimator import complete_batch, event_lengths, group_advantages
from surefoot.rl.credit.rule import FloatArray, RewardStream, ScoredRollout

Baseline = Literal["event", "token", "prime"]


class LeaveOneOut(BaseModel):
    """Leave-one-out baseline (RLOO; Ahmadian et al., arXiv 2402.14740).

    With one reward a rollout, A_i = r_i - mean of r_j over j != i, for all tokens: unbiased, as the baseline
    knows nothing of rollout i. With several, r_i^t at each event t and m_i their mean, the reward is first
    replaced, and later sums are the advantage:

    - ``event``: r_i^t - mean of m_j over j != i. PURE's ``reward_baseline`` step.
    - ``token``: r_i^t - n_t · (all rewards of the others) / (all their tokens), n_t the tokens of the event:
      the one of PURE's scripts (arXiv 2504.15275). Where every rollout has one event, ``event`` is used, as
      in PURE for the outcome.
    - ``prime``: r_i^t · K / (K - 1) - sum of m_j over all j / (K - 1), the form of PRIME's code (arXiv
      2502.01456). It equals ``event`` plus (r_i^t - m_i) / (K - 1): the same for one event a
      rollout and at the first token, else not free of the rollout's own rewards.

    With several events the subtracted baseline grows with their number, so what is maximized is the reward
    less the group's average: writing more average steps does not pay.

    K counts the rollouts that have a reward of that source; one alone gets 0. ``whiten`` (PRIME) then centres
    and scales over all response tokens of the batch: a group of equal rewards is then no longer 0, which is
    why PRIME drops such groups (``accuracy_band``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["leave-one-out"] = Field(
        default="leave-one-out", description="The other samples of the problem as baseline (RLOO)."
    )
    needs_values: ClassVar[bool] = False
    compares: ClassVar[bool] = True
    baseline: Baseline = Field(
        default="event",
        description="Baseline of rollouts with several rewards: event, token (PURE) or prime.",
    )
    whiten: bool = Field(default=False, description="Center and scale over the tokens of the batch (PRIME).")

    def advantages(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group."""
        advantages = [group_advantages(group, self._centre, least=2) for group in batch]
        return complete_batch(batch, advantages, whiten=self.whiten)

    def _centre(self, streams: Sequence[RewardStream]) -> list[FloatArray]:
        if self.baseline == "token" and any(len(stream.values) > 1 for stream in streams):
            return _minus_token_baseline(streams)
        # subtracting one of them first makes equal rewards give exactly 0 despite rounding
        values = [np.array(stream.values) - streams[0].values[0] for stream in streams]
        means = np.array([one.mean() for one in values])
        others = len(streams) - 1
        if self.baseline == "prime":
            return [one * len(streams) / others - means.sum() / others for one in values]
        return [one - (means.sum() - mean) / others for one, mean in zip(values, means, strict=True)]


def _minus_token_baseline(streams: Sequence[RewardStream]) -> list[FloatArray]:
    lengths = [event_lengths(stream) for stream in streams]
    # a reward of reach "own" counts once per token of its step, any other once in total
    totals = np.array([
        float(np.dot(stream.values, tokens if stream.reach == "own" else np.ones(len(tokens))))
        for stream, tokens in zip(streams, lengths, strict=True)
    ])  # fmt: skip
    counts = np.array([tokens.sum() for tokens in lengths])
    rates = (totals.sum() - totals) / (counts.sum() - counts)
    return [
        np.array(stream.values) - rate * (1 if stream.reach == "own" else tokens)
        for stream, tokens, rate in zip(streams, lengths, rates, strict=True)
    ]
