"""Percentile bootstrap intervals. The unit that is resampled is the problem (or trace), never the step.

Steps of one trace and samples of one problem stand or fall together; resampling them one by one would give
intervals that are too narrow. Method: Efron and Tibshirani 1993, chapters 8 and 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.stats.groups import group_numbers
from surefoot.stats.intervals import UNKNOWN, Interval

_CHUNK = 1 << 21
"""Indices drawn at once; bounds memory at about 32 MB."""
_FLAT = 1e-12
"""A side that varies less than this does not vary."""


@dataclass(frozen=True, kw_only=True)
class Resample:
    """One bootstrap draw, as a statistic sees it; both arrays have shape [items drawn]."""

    items: NDArray[np.intp]
    """Indices into the original items; an index repeats when its cluster was drawn more than once."""
    clusters: NDArray[np.intp]
    """Cluster of each item, numbered afresh for each copy, so that two copies are two problems."""


def bootstrap_mean(
    values: ArrayLike, *, level: float = 0.95, draws: int = 10_000, rng: np.random.Generator
) -> Interval:
    """Mean over problems with its interval; ``values`` has shape [problems].

    With a single problem the interval has no width: nothing is known of the spread. Raises ``ValueError`` if
    ``values`` is empty or holds NaN.
    """
    array = _values(values, "values")
    return _interval(float(array.mean()), _resampled_sums(array, draws, rng) / len(array), level)


def bootstrap_difference(
    first: ArrayLike,
    second: ArrayLike,
    *,
    level: float = 0.95,
    draws: int = 10_000,
    rng: np.random.Generator,
) -> Interval:
    """Mean of ``first - second`` over problems; both have shape [problems], in the same order.

    Paired: what makes a problem hard for both sides cancels. Raises ``ValueError`` as ``bootstrap_mean``,
    and if the lengths differ.
    """
    left, right = _values(first, "first"), _values(second, "second")
    if len(left) != len(right):
        raise ValueError(
            f"'first' has {len(left)} problems and 'second' has {len(right)}; pair them by problem"
        )
    return bootstrap_mean(left - right, level=level, draws=draws, rng=rng)


def bootstrap_seeds(
    per_seed: Sequence[ArrayLike],
    *,
    same_problems: bool,
    level: float = 0.95,
    draws: int = 10_000,
    rng: np.random.Generator,
) -> Interval:
    """Mean over the problems of several runs that differ in their seed; one array [problems] per seed.

    Every problem of every seed counts alike. Seeds are kept and problems are resampled within them: two or
    three seeds are too few to resample, so the interval holds for these seeds and says nothing of others;
    print the values per seed beside it. ``same_problems=True`` (row i is the same problem in each seed)
    draws the same problems for all seeds, because their results are correlated; ``False`` draws each seed's
    own problems independently. Raises ``ValueError`` for no seeds, empty or NaN values, or unequal lengths
    with ``same_problems``.
    """
    arrays = [_values(values, f"per_seed[{seed}]") for seed, values in enumerate(per_seed)]
    if not arrays:
        raise ValueError("'per_seed' is empty; give one array of values for each seed")
    if same_problems:
        if len({len(array) for array in arrays}) > 1:
            lengths = [len(array) for array in arrays]
            raise ValueError(
                f"'same_problems' needs equal lengths, got {lengths}; align the seeds by problem"
            )
        return bootstrap_mean(np.mean(arrays, axis=0), level=level, draws=draws, rng=rng)
    problems = sum(len(array) for array in arrays)
    sums = sum((_resampled_sums(array, draws, rng) for array in arrays), np.zeros(draws))
    return _interval(float(np.concatenate(arrays).mean()), sums / problems, level)


def bootstrap_statistic(
    cluster_ids: Sequence[Hashable],
    statistic: Callable[[Resample], float],
    *,
    level: float = 0.95,
    draws: int = 1_000,
    rng: np.random.Generator,
) -> Interval:
    """Interval of any statistic of items that come in clusters (steps of a trace, traces of a problem).

    ``cluster_ids`` has shape [items]; clusters are drawn with replacement and keep all their items, in the
    items' order. ``statistic`` maps a draw to one number; a NaN is left out of the bounds and counted. A
    statistic that compares items inside a cluster must group by ``Resample.clusters``, not by its own ids:
    otherwise a problem drawn twice would be compared with its copy. Raises ``ValueError`` if there are no
    items.
    """
    if not len(cluster_ids):
        raise ValueError("'cluster_ids' is empty; there is nothing to resample")
    clusters = group_numbers(cluster_ids)
    order = np.argsort(clusters, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
    sizes = np.array([len(items) for items in members])
    results = np.empty(draws)
    for draw in range(draws):
        drawn = rng.integers(len(members), size=len(members))
        items = np.concatenate([members[cluster] for cluster in drawn])
        copies = np.repeat(np.arange(len(drawn)), sizes[drawn])
        results[draw] = statistic(Resample(items=items, clusters=copies))
    value = float(statistic(Resample(items=np.arange(len(clusters)), clusters=clusters)))
    return _interval(value, results, level)


def bootstrap_totals(
    strata: Sequence[ArrayLike],
    statistics: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    level: float = 0.95,
    draws: int = 1_000,
    rng: np.random.Generator,
) -> list[Interval]:
    """Intervals of statistics of totals over problems, such as ratios of counts; all from the same draws.

    ``strata`` has one array [problems, C] each, the counts of every problem; problems are drawn within their
    stratum, so that each draw has as many of each as the data. ``statistics`` maps totals [n, strata, C] to
    [n, K] and gives K intervals; it is called for many draws at once. A NaN is left out of the bounds and
    counted. Raises ``ValueError`` if there is no stratum, or one is empty or not of the others' width.
    """
    arrays = [np.asarray(counts, dtype=float) for counts in strata]
    if not arrays or any(a.ndim != 2 or not len(a) or a.shape[1] != arrays[0].shape[1] for a in arrays):
        shapes = [array.shape for array in arrays]
        raise ValueError(
            f"'strata' must be arrays [problems, C] of one C with problems in each, not {shapes}"
        )
    totals = np.stack([_resampled_totals(array, draws, rng) for array in arrays], axis=1)
    results = statistics(totals)
    values = statistics(np.stack([array.sum(axis=0) for array in arrays])[None])[0]
    return [_interval(float(value), results[:, k], level) for k, value in enumerate(values)]


def bootstrap_cluster_mean(
    values: ArrayLike, problems: Sequence[Hashable], *, draws: int, rng: np.random.Generator
) -> Interval:
    """Mean over problems of each problem's mean; NaN is left out. Both have shape [items].

    ``UNKNOWN`` if nothing is left, as in the two functions below.
    """
    groups: dict[Hashable, list[float]] = {}
    for value, problem in zip(np.asarray(values, dtype=float), problems, strict=True):
        if not math.isnan(value):
            groups.setdefault(problem, []).append(float(value))
    if not groups:
        return UNKNOWN
    return bootstrap_mean([math.fsum(g) / len(g) for g in groups.values()], draws=draws, rng=rng)


def bootstrap_auc(
    scores: ArrayLike,
    good: ArrayLike,
    problems: Sequence[Hashable] | NDArray[np.integer],
    *,
    draws: int,
    rng: np.random.Generator,
) -> Interval:
    """Share of (good, bad) pairs in which the good item scores higher; all have shape [items].

    NaN scores are left out. Items are sorted once, and not for each draw.
    """
    score, truth = np.asarray(scores, dtype=float), np.asarray(good, dtype=float)
    if not len(score):
        return UNKNOWN
    problem = group_numbers(problems)
    count = int(problem.max()) + 1
    known = ~(np.isnan(score) | np.isnan(truth))
    is_good, is_bad = known & (truth == 1), known & (truth != 1)
    order = np.argsort(score[is_bad], kind="stable")
    bad_score, bad_problem = score[is_bad][order], problem[is_bad][order]
    order = np.argsort(score[is_good], kind="stable")  # neighbours then look at neighbouring places
    good_score, good_problem = score[is_good][order], problem[is_good][order]
    low, high = (np.searchsorted(bad_score, good_score, side) for side in ("left", "right"))
    below = np.zeros(len(bad_score) + 1, dtype=np.int64)

    def area(times: NDArray[np.int64]) -> float:
        """With each problem as often as ``times`` [problems] says; a tie counts one half."""
        np.cumsum(times[bad_problem], out=below[1:])
        copies = times[good_problem]
        pairs = int(copies.sum()) * int(below[-1])
        return int(copies @ below[low] + copies @ below[high]) / (2 * pairs) if pairs else math.nan

    results = np.array(
        [area(np.bincount(rng.integers(count, size=count), minlength=count)) for _ in range(draws)]
    )
    return _interval(area(np.ones(count, dtype=np.int64)), results, 0.95)


def bootstrap_correlation(
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


def _values(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not len(array):
        raise ValueError(
            f"'{name}' must be a flat list with at least one problem, not of shape {array.shape}"
        )
    unknown = np.flatnonzero(np.isnan(array))
    if len(unknown):
        raise ValueError(
            f"{name}[{unknown[0]}] is NaN ({len(unknown)} in all); drop undefined values and count them"
        )
    return array


def _resampled_sums(array: NDArray[np.float64], draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Sum of n values drawn with replacement, ``draws`` times over."""
    if draws < 1:
        raise ValueError(f"'draws' must be at least 1, not {draws}")
    n = len(array)
    sums = np.empty(draws)
    rows = max(1, _CHUNK // n)
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        sums[start : start + count] = array[rng.integers(n, size=(count, n))].sum(axis=1)
    return sums


def _resampled_totals(
    array: NDArray[np.float64], draws: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Column sums [draws, C] of as many rows as ``array`` [n, C] has, drawn with replacement."""
    if draws < 1:
        raise ValueError(f"'draws' must be at least 1, not {draws}")
    n = len(array)
    totals = np.empty((draws, array.shape[1]))
    rows = max(1, _CHUNK // n)
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        drawn = rng.integers(n, size=(count, n)) + n * np.arange(count)[:, None]
        times = np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n)
        totals[start : start + count] = times @ array
    return totals


def _interval(value: float, draws: NDArray[np.float64], level: float) -> Interval:
    if not 0 < level < 1:
        raise ValueError(f"'level' must lie between 0 and 1, not {level}")
    defined = draws[~np.isnan(draws)]
    if not len(defined):
        return Interval(value=value, low=np.nan, high=np.nan, undefined=len(draws))
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value=value, low=float(low), high=float(high), undefined=len(draws) - len(defined))
