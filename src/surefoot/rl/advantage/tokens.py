"""From rewards at events to numbers at tokens: what all estimators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from surefoot.rl.advantage.estimator import Credited
from surefoot.rl.credit.rule import FloatArray, Stream

Centre: TypeAlias = Callable[[Sequence[Stream]], list[FloatArray]]
"""Takes the baseline off the rewards of one source, given the streams of a group; none of them is empty."""

_EPSILON = 1e-8


def at_tokens(stream: Stream, values: FloatArray, tokens: int) -> FloatArray:
    """``values`` of the stream's events as credit of every token [T], by its ``reach``."""
    credit = np.zeros(tokens)
    if stream.reach == "returns":
        np.add.at(credit, list(stream.at), values)  # two steps may end at one token: both count
        return np.asarray(credit[::-1].cumsum()[::-1])
    covered = np.repeat(values, event_lengths(stream))
    credit[: len(covered)] = covered
    return credit


def event_lengths(stream: Stream) -> NDArray[np.int64]:
    """Tokens of each event: those after the event before it, up to its own."""
    return np.diff(np.array((-1, *stream.at)))


def group_advantages(group: Sequence[Credited], centre: Centre, *, least: int) -> list[FloatArray | None]:
    """Weighted sum of all sources, [T] of every rollout; ``None`` for one of which nothing is known.

    Empty streams take no part. A source that fewer than ``least`` rollouts have gives nothing, unless it is
    centred: there is nobody to compare with.
    """
    totals: list[FloatArray | None] = [None] * len(group)
    for source in range(len(group[0].streams) if group else 0):
        present = [index for index, one in enumerate(group) if one.streams[source].at]
        streams = [group[index].streams[source] for index in present]
        if not streams or (len(streams) < least and not streams[0].centred):
            continue
        values = [np.array(one.values) for one in streams] if streams[0].centred else centre(streams)
        for index, stream, mine in zip(present, streams, values, strict=True):
            credit = stream.weight * at_tokens(stream, mine, group[index].tokens)
            before = totals[index]
            totals[index] = credit if before is None else before + credit
    return totals


def settle(
    batch: Sequence[Sequence[Credited]], found: Sequence[Sequence[FloatArray | None]], *, whiten: bool
) -> list[list[FloatArray]]:
    """Advantages of a batch: 0 where nothing is known, the rest whitened if wished.

    Whitening subtracts the mean over all known response tokens and divides by their standard deviation (of a
    sample). Rollouts of which nothing is known are not part of it and stay 0.
    """
    known = [array for group in found for array in group if array is not None]
    mean, scale = _moments(known) if whiten and known else (0.0, 1.0)
    return [
        [
            np.zeros(one.tokens) if array is None else (array - mean) * scale
            for one, array in zip(group, arrays, strict=True)
        ]
        for group, arrays in zip(batch, found, strict=True)
    ]


def _moments(known: Sequence[FloatArray]) -> tuple[float, float]:
    """Mean and inverse standard deviation; tokens that are all alike have (that value, 0)."""
    flat = np.concatenate(known)
    if flat.min() == flat.max():
        return float(flat[0]), 0.0
    return float(flat.mean()), float(1 / np.sqrt(flat.var(ddof=1) + _EPSILON))


def total(credited: Credited) -> float | None:
    """The return of the whole response: its first token's, of all rewards together, weighted.

    The sum of the rewards, or, where a rule sets returns (``min-form``, strict), the first of these.
    Advantages do not count. ``None`` if there is no reward, which is not 0.
    """
    rewards = [stream for stream in credited.streams if stream.at and not stream.centred]
    return float(token_returns(credited)[0]) if rewards else None


def token_returns(credited: Credited) -> FloatArray:
    """Return of every token [T], of all rewards together, weighted; 0 where there are none."""
    returns = np.zeros(credited.tokens)
    for stream in credited.streams:
        if stream.at and not stream.centred:
            returns += stream.weight * at_tokens(stream, np.array(stream.values), credited.tokens)
    return returns
