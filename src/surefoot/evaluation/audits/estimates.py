"""Means and AUCs with intervals over problems, for items some of which are unknown."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from surefoot.evaluation.intervals import Interval, Resample, bootstrap_mean, bootstrap_statistic
from surefoot.evaluation.steps import step_auc

UNKNOWN = Interval(value=math.nan, low=math.nan, high=math.nan)


def mean_interval(
    values: ArrayLike, problems: Sequence[Hashable], *, draws: int, rng: np.random.Generator
) -> Interval:
    """Mean over problems of each problem's mean; NaN is left out. Both have shape [items]."""
    groups: dict[Hashable, list[float]] = {}
    for value, problem in zip(np.asarray(values, dtype=float), problems, strict=True):
        if not math.isnan(value):
            groups.setdefault(problem, []).append(float(value))
    if not groups:
        return UNKNOWN
    return bootstrap_mean([math.fsum(g) / len(g) for g in groups.values()], draws=draws, rng=rng)


def auc_interval(
    scores: ArrayLike,
    good: ArrayLike,
    problems: Sequence[Hashable],
    *,
    draws: int,
    rng: np.random.Generator,
) -> Interval:
    """Share of (good, bad) pairs in which the good item scores higher; all have shape [items].

    NaN scores are left out.
    """
    score, truth = np.asarray(scores, dtype=float), np.asarray(good, dtype=float)
    if not len(score):
        return UNKNOWN

    def statistic(draw: Resample) -> float:
        return step_auc(score[draw.items], truth[draw.items]).value

    return bootstrap_statistic(problems, statistic, draws=draws, rng=rng)


def correlation_interval(
    first: ArrayLike,
    second: ArrayLike,
    problems: Sequence[Hashable],
    *,
    draws: int,
    rng: np.random.Generator,
) -> Interval:
    """Pearson's correlation; items with a NaN are left out; NaN where one side does not vary."""
    x, y = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    known = np.flatnonzero(~(np.isnan(x) | np.isnan(y))).tolist()
    if not known:
        return UNKNOWN
    x, y = x[known], y[known]

    def statistic(draw: Resample) -> float:
        a, b = x[draw.items], y[draw.items]
        if np.ptp(a) < _FLAT or np.ptp(b) < _FLAT:
            return math.nan
        return float(np.corrcoef(a, b)[0, 1])

    return bootstrap_statistic([problems[at] for at in known], statistic, draws=draws, rng=rng)


_FLAT = 1e-12
"""A side that varies less than this does not vary."""
