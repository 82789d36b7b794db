"""Figures over several seeds."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.common.figures import over_seeds
from surefoot.stats import bootstrap_mean


def rng(seed=0):
    return np.random.default_rng(seed)


def test_seeds_of_their_own_problems_count_as_more_problems():
    problems = (rng(6).random(100) < 0.5).astype(float)
    alone, apart = bootstrap_mean(problems, rng=rng()), over_seeds([problems] * 3, rng=rng())
    assert apart.value == pytest.approx(problems.mean())
    widths = [np.ptp(interval.bounds) for interval in (alone, apart)]
    assert widths[1] == pytest.approx(widths[0] / np.sqrt(3), rel=0.15)


def test_seeds_may_differ_in_size_and_problems_count_alike():
    interval = over_seeds([[1.0, 1.0, 1.0], [0.0]], rng=rng())
    assert (interval.low, interval.value, interval.high) == (0.75, 0.75, 0.75)
