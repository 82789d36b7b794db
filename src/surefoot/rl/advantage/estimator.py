"""From rewards at tokens to advantages at tokens: the protocol, and what all estimators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from surefoot.rl.credit.rule import FloatArray, RewardStream, ScoredRollout


class Estimator(Protocol):
    """Subtracts a baseline. Estimators are frozen pydantic models with a tag ``kind``."""

    needs_values: ClassVar[bool]
    """Reads :attr:`ScoredRollout.values`, so there must be a critic."""
    compares: ClassVar[bool]
    """Takes the other samples of a problem as baseline, so there must be two or more."""

    def advantages(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group, from its ``rewards``."""


SubtractBaseline: TypeAlias = Callable[[Sequence[RewardStream]], list[FloatArray]]
"""From the rewards of one source to rewards less a baseline, given a group's streams; none of them is
empty."""

_EPSILON = 1e-8


def at_tokens(stream: RewardStream, values: FloatArray, tokens: int) -> FloatArray:
    """``values`` of the stream's events as credit of every token [T], by its ``reach``."""
    credit = np.zeros(tokens)
    if stream.reach == "returns":
        np.add.at(credit, list(stream.at), values)  # two steps may end at one token: both count
        return np.asarray(credit[::-1].cumsum()[::-1])
    covered = np.repeat(values, event_lengths(stream))
    credit[: len(covered)] = covered
    return credit


def event_lengths(stream: RewardStream) -> NDArray[np.int64]:
    """Tokens of each event: those after the event before it, up to its own."""
    return np.diff(np.array((-1, *stream.at)))


def group_advantages(
    group: Sequence[ScoredRollout], subtract_baseline: SubtractBaseline, *, least: int
) -> list[FloatArray | None]:
    """Weighted sum over all sources, [T] of every rollout; ``None`` for a rollout without rewards.

    Empty streams are ignored. A source that fewer than ``least`` rollouts have is ignored too, unless it is
    centred: there is nothing to compare with.
    """
    totals: list[FloatArray | None] = [None] * len(group)
    for source in range(len(group[0].rewards) if group else 0):
        present = [index for index, one in enumerate(group) if one.rewards[source].at]
        streams = [group[index].rewards[source] for index in present]
        if not streams or (len(streams) < least and not streams[0].centred):
            continue
        values = (
            [np.array(one.values) for one in streams] if streams[0].centred else subtract_baseline(streams)
        )
        for index, stream, credit_at_events in zip(present, streams, values, strict=True):
            credit = stream.weight * at_tokens(stream, credit_at_events, group[index].tokens)
            before = totals[index]
            totals[index] = credit if before is None else before + credit
    return totals


def complete_batch(
    batch: Sequence[Sequence[ScoredRollout]],
    advantages: Sequence[Sequence[FloatArray | None]],
    *,
    whiten: bool,
) -> list[list[FloatArray]]:
    """Advantages of a batch: 0 where they are unknown, the rest whitened if ``whiten``.

    Whitening subtracts the mean over all known response tokens and divides by their (sample) standard
    deviation. Rollouts without rewards are not part of it and stay 0.
    """
    known = [array for group in advantages for array in group if array is not None]
    mean, scale = _moments(known) if whiten and known else (0.0, 1.0)
    return [
        [
            np.zeros(one.tokens) if array is None else (array - mean) * scale
            for one, array in zip(group, arrays, strict=True)
        ]
        for group, arrays in zip(batch, advantages, strict=True)
    ]


def _moments(known: Sequence[FloatArray]) -> tuple[float, float]:
    """Mean and inverse standard deviation; equal tokens have (that value, 0)."""
    flat = np.concatenate(known)
    if flat.min() == flat.max():
        return float(flat[0]), 0.0
    return float(flat.mean()), float(1 / np.sqrt(flat.var(ddof=1) + _EPSILON))


def total_return(rollout: ScoredRollout) -> float | None:
    """Return of the whole response: that of its first token, of all rewards together, weighted.

    The sum of the rewards, or, where a rule sets returns (``min-form``, strict), the first of these.
    Centred streams do not count. ``None`` if there is no reward, which is not 0.
    """
    rewards = [stream for stream in rollout.rewards if stream.at and not stream.centred]
    return float(token_returns(rollout)[0]) if rewards else None


def token_returns(rollout: ScoredRollout) -> FloatArray:
    """Return of every token [T], of all rewards together, weighted; 0 where there are none."""
    returns = np.zeros(rollout.tokens)
    for stream in rollout.rewards:
        if stream.at and not stream.centred:
            returns += stream.weight * at_tokens(stream, np.array(stream.values), rollout.tokens)
    return returns
