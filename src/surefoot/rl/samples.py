"""Rollouts kept for reading: what the policy wrote in a round, and what its steps were worth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from surefoot.io import atomic_file
from surefoot.rl.assess import Assessed
from surefoot.rl.log import SampleRow


def write_samples(path: Path, update: int, groups: Sequence[Sequence[Assessed]], count: int) -> None:
    """At most ``count`` rollouts as JSON Lines: the first of every problem, then the second of every one."""
    by_turn = [one for turn in zip_longest(*groups) for one in turn if one is not None]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        for one in by_turn[:count]:
            stream.write(_row(update, one).model_dump_json().encode() + b"\n")


def _row(update: int, one: Assessed) -> SampleRow:
    rollout = one.rollout
    begins = (0, *(end + 1 for end in rollout.ends[:-1]))
    return SampleRow(
        update=update,
        problem=rollout.problem,
        trace=rollout.trace,
        scores=one.scored.scores if rollout.trace.steps else (),
        advantages=tuple(
            # a token can be the last of two steps; the second then has none of its own
            float(np.mean(one.advantages[min(begin, end) : end + 1]))
            for begin, end in zip(begins, rollout.ends, strict=True)
            if rollout.trace.steps  # else there is no step to show
        ),
    )
