"""Scored rollouts for tests of credit rules and advantage estimators; sums by their definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from surefoot.rl.sample import RewardStream, Sample

few = settings(max_examples=30, deadline=None)
"""Whole groups take a while to make up."""

rewards = st.floats(-3, 3).map(lambda value: round(value, 3))


def scored(scores: Sequence[float | None] = (), *, outcome: float | None = None, width: int = 2) -> Sample:
    """A rollout whose steps have ``width`` tokens each."""
    steps = max(len(scores), 1)
    ends = tuple(width * (step + 1) - 1 for step in range(steps))
    return Sample(tokens=width * steps, ends=ends, scores=tuple(scores), outcome=outcome)


def credited(tokens: int, *streams: RewardStream, values: Sequence[float] | None = None) -> Sample:
    """A rollout after the credit rule."""
    return Sample(tokens=tokens, rewards=streams, values=None if values is None else np.array(values))


def dense(*values: float, **options: object) -> Sample:
    """A rollout with a reward at each of its tokens, in one stream."""
    return credited(len(values), RewardStream(at=tuple(range(len(values))), values=values, **options))


@st.composite
def rollouts(draw: Callable, *, streams: int = 1, centred: bool = False, empty: bool = True) -> Sample:
    """A rollout of 1 to 8 tokens, with rewards at some of them; two may share a token."""
    tokens = draw(st.integers(1, 8))
    made = []
    for _ in range(streams):
        at = sorted(draw(st.lists(st.integers(0, tokens - 1), min_size=0 if empty else 1, max_size=5)))
        values = draw(st.lists(rewards, min_size=len(at), max_size=len(at)))
        made.append(RewardStream(at=tuple(at), values=tuple(values), centred=centred))
    return Sample(tokens=tokens, rewards=tuple(made))


def groups(**options: object) -> st.SearchStrategy[list[Sample]]:
    """1 to 5 rollouts of one problem."""
    return st.lists(rollouts(**options), min_size=1, max_size=5)


def later_sum(at: Sequence[int], values: Sequence[float], token: int) -> float:
    """Of the values at or after a token."""
    return sum(value for place, value in zip(at, values, strict=True) if place >= token)


def own_value(at: Sequence[int], values: Sequence[float], token: int) -> float:
    """The value of the first event at or after a token; 0 after the last."""
    return next((value for place, value in zip(at, values, strict=True) if place >= token), 0.0)
