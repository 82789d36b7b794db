"""95 % percentile bootstrap intervals. The resampled unit is the problem (or trace), never the step.

Steps of one trace and samples of one problem are correlated; resampling them one by one would give
intervals that are too narrow. Method: Efron and Tibshirani 1993, chapters 8 and 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.stats.intervals import UNKNOWN, Interval

FloatArray = NDArray[np.float64]

_CHUNK = 1 << 21
"""Indices sampled at once; bounds memory at about 32 MB."""
_BOUNDS = (1 - 0.95) / 2, (1 + 0.95) / 2
_CONSTANT = 1e-12
"""A variable with a smaller range counts as constant."""


@dataclass(frozen=True, kw_only=True)
class Resample:
    """One bootstrap sample, as a statistic sees it; both arrays have shape [sampled items]."""

    items: NDArray[np.intp]
    """Indices into the original items; an index repeats if its cluster was sampled more than once."""
    clusters: NDArray[np.intp]
    """Cluster of each item. Copies of one cluster have different numbers, so they count as two problems."""


def bootstrap_mean(values: ArrayLike, *, draws: int = 10_000, rng: np.random.Generator) -> Interval:
    """Mean over problems with its 95 % interval; ``values`` has shape [problems].

    Of two sides give the difference by problem: a problem that is hard for both cancels out. With a single
    problem the interval has zero width, because one value says nothing about the spread. Raises
    ``ValueError`` if ``values`` is empty or contains NaN.
    """
    array = _values(values, "values")
    return _interval(float(array.mean()), _resampled_sums(array, draws, rng) / len(array))


def mean_over_runs(values: ArrayLike, *, draws: int = 10_000, rng: np.random.Generator) -> Interval:
    """Mean of ``values`` [runs, problems], of which both are samples; runs are e.g. models of several seeds.

    Problems are resampled as in :func:`bootstrap_mean`, with all runs of a problem together. The runs add
    noise of their standard error, of Student's distribution with runs - 1 degrees of freedom, because a few
    runs cannot be resampled. With one run the interval covers the problems alone. Raises ``ValueError`` as
    ``bootstrap_mean``.
    """
    array = np.asarray(values, dtype=float)
    by_problem = _values(array.mean(axis=0), "values")
    results = _resampled_sums(by_problem, draws, rng) / len(by_problem)
    if (runs := len(array)) > 1:
        error = array.mean(axis=1).std(ddof=1) / math.sqrt(runs)
        results = results + error * rng.standard_t(runs - 1, size=draws)
    return _interval(float(by_problem.mean()), results)


def bootstrap_statistic(
    cluster_ids: Sequence[Hashable],
    statistic: Callable[[Resample], float],
    *,
    draws: int = 1_000,
    rng: np.random.Generator,
) -> Interval:
    """95 % interval of any statistic of items that come in clusters (steps of a trace, traces of a problem).

    ``cluster_ids`` has shape [items]. Clusters are sampled with replacement; each brings all its items, in
    their original order. ``statistic`` maps a sample to one number; NaN results are excluded from the bounds
    and counted. A statistic that compares items within a cluster must group by ``Resample.clusters`` instead
    of other ids, or it would compare a problem with its own copy. Raises ``ValueError`` without items.
    """
    if not len(cluster_ids):
        raise ValueError("'cluster_ids' is empty; there is nothing to resample")
    clusters = group_numbers(cluster_ids)
    order = np.argsort(clusters, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
    sizes = np.array([len(items) for items in members])
    results = np.empty(draws)
    for draw in range(draws):
        sampled = rng.integers(len(members), size=len(members))
        items = np.concatenate([members[cluster] for cluster in sampled])
        copies = np.repeat(np.arange(len(sampled)), sizes[sampled])
        results[draw] = statistic(Resample(items=items, clusters=copies))
    value = float(statistic(Resample(items=np.arange(len(clusters)), clusters=clusters)))
    return _interval(value, results)


def bootstrap_totals(
    strata: Sequence[ArrayLike],
    statistics: Callable[[FloatArray], FloatArray],
    *,
    draws: int = 1_000,
    rng: np.random.Generator,
) -> list[Interval]:
    """95 % intervals of statistics of totals over problems, such as ratios of counts; all from one sample.

    ``strata`` has one array [problems, C] of counts per problem for each stratum. Problems are sampled
    within their stratum, so every draw has as many problems of each stratum as the data. ``statistics`` maps
    totals [n, strata, C] to [n, K] and gives K intervals; it is called for many draws at once. NaN results
    are excluded from the bounds and counted. Raises ``ValueError`` if strata are missing, empty or of
    different widths.
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
    return [_interval(float(value), results[:, k]) for k, value in enumerate(values)]


def group_numbers(groups: Sequence[Hashable] | NDArray[np.generic]) -> NDArray[np.intp]:
    """[items] → [items]: the number of each item's group, from 0 in the order of their first item.

    An array makes no Python object for each item.
    """
    if isinstance(groups, np.ndarray):
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.intp)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[inverse]
    index: dict[Hashable, int] = {}
    return np.array([index.setdefault(group, len(index)) for group in groups], dtype=np.intp)


def group_folds(groups: Sequence[Hashable], folds: int, *, seed: int = 0) -> NDArray[np.intp]:
    """[items] → [items]: the fold of each item for cross-validation; the items of a group are in one fold.

    There are as many folds as groups if ``folds`` is more.
    """
    number = group_numbers(groups)
    count = int(number.max(initial=-1)) + 1
    fold = np.empty(count, dtype=np.intp)
    fold[np.random.default_rng(seed).permutation(count)] = np.arange(count) % max(1, min(folds, count))
    return fold[number]


def group_sums(counts: ArrayLike, groups: Sequence[Hashable] | NDArray[np.integer]) -> FloatArray:
    """Sums of ``counts`` [items, C] by group, [groups, C]; groups are in the order of their first item."""
    number = group_numbers(groups)
    rows = np.asarray(counts, dtype=float)
    sums = np.zeros((int(number.max(initial=-1)) + 1, rows.shape[1]))
    np.add.at(sums, number, rows)
    return sums


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Intervals of one report. Every statistic gets the same samples, so that differences are paired.

    Methods return ``UNKNOWN`` if no item has a value.
    """

    draws: int = 1_000
    seed: int = 0

    def mean(self, values: ArrayLike, problems: Sequence[Hashable]) -> Interval:
        """Mean over problems of each problem's mean, without NaN; both have shape [items]."""
        groups: dict[Hashable, list[float]] = {}
        for value, problem in zip(np.asarray(values, dtype=float), problems, strict=True):
            if not math.isnan(value):
                groups.setdefault(problem, []).append(float(value))
        if not groups:
            return UNKNOWN
        means = [math.fsum(group) / len(group) for group in groups.values()]
        return bootstrap_mean(means, draws=self.draws, rng=self._rng())

    def auc(
        self, scores: ArrayLike, good: ArrayLike, problems: Sequence[Hashable] | NDArray[np.integer]
    ) -> Interval:
        """Share of (good, bad) pairs in which the good item scores higher; all have shape [items].

        NaN scores are excluded. Items are sorted once instead of for each draw.
        """
        score, truth = np.asarray(scores, dtype=float), np.asarray(good, dtype=float)
        if not len(score):
            return UNKNOWN
        problem, rng = group_numbers(problems), self._rng()
        count = int(problem.max()) + 1
        usable = ~(np.isnan(score) | np.isnan(truth))
        is_good, is_bad = usable & (truth == 1), usable & (truth != 1)
        order = np.argsort(score[is_bad], kind="stable")
        bad_score, bad_problem = score[is_bad][order], problem[is_bad][order]
        # sorted, too, so that neighbours read neighbouring memory
        order = np.argsort(score[is_good], kind="stable")
        good_score, good_problem = score[is_good][order], problem[is_good][order]
        low, high = (np.searchsorted(bad_score, good_score, side) for side in ("left", "right"))
        below = np.zeros(len(bad_score) + 1, dtype=np.int64)

        def area(times: NDArray[np.int64]) -> float:
            """AUC if each problem occurs ``times`` [problems]; a tie counts one half."""
            np.cumsum(times[bad_problem], out=below[1:])
            copies = times[good_problem]
            pairs = int(copies.sum()) * int(below[-1])
            return int(copies @ below[low] + copies @ below[high]) / (2 * pairs) if pairs else math.nan

        samples = (rng.integers(count, size=count) for _ in range(self.draws))
        results = np.array([area(np.bincount(sample, minlength=count)) for sample in samples])
        return _interval(area(np.ones(count, dtype=np.int64)), results)

    def correlation(self, first: ArrayLike, second: ArrayLike, problems: Sequence[Hashable]) -> Interval:
        """Pearson's correlation without items that have a NaN; NaN if one side is constant."""
        x, y = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
        usable = np.flatnonzero(~(np.isnan(x) | np.isnan(y))).tolist()
        if not usable:
            return UNKNOWN
        x, y = x[usable], y[usable]

        def statistic(draw: Resample) -> float:
            a, b = x[draw.items], y[draw.items]
            if np.ptp(a) < _CONSTANT or np.ptp(b) < _CONSTANT:
                return math.nan
            return float(np.corrcoef(a, b)[0, 1])

        return self.statistic([problems[at] for at in usable], statistic)

    def statistic(self, problems: Sequence[Hashable], statistic: Callable[[Resample], float]) -> Interval:
        """As :func:`bootstrap_statistic`."""
        return bootstrap_statistic(problems, statistic, draws=self.draws, rng=self._rng())

    def totals(
        self, strata: Sequence[ArrayLike], statistics: Callable[[FloatArray], FloatArray]
    ) -> list[Interval]:
        """As :func:`bootstrap_totals`."""
        return bootstrap_totals(strata, statistics, draws=self.draws, rng=self._rng())

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def _values(values: ArrayLike, name: str) -> FloatArray:
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


def _samples(problems: int, draws: int, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
    """Indices [n, problems] with replacement, in chunks of ``draws`` rows altogether."""
    if draws < 1:
        raise ValueError(f"'draws' must be at least 1, not {draws}")
    rows = max(1, _CHUNK // problems)
    for start in range(0, draws, rows):
        yield rng.integers(problems, size=(min(rows, draws - start), problems))


def _resampled_sums(array: FloatArray, draws: int, rng: np.random.Generator) -> FloatArray:
    """[draws]: sums of samples of ``array`` [n]."""
    return np.concatenate([array[sample].sum(axis=1) for sample in _samples(len(array), draws, rng)])


def _resampled_totals(array: FloatArray, draws: int, rng: np.random.Generator) -> FloatArray:
    """[draws, C]: column sums of samples of the rows of ``array`` [n, C]."""
    n = len(array)
    totals = []
    for sample in _samples(n, draws, rng):
        flat = (sample + n * np.arange(len(sample))[:, None]).ravel()
        times = np.bincount(flat, minlength=len(sample) * n).reshape(len(sample), n)
        totals.append(times @ array)
    return np.concatenate(totals)


def _interval(value: float, draws: FloatArray) -> Interval:
    defined = draws[~np.isnan(draws)]
    if not len(defined):
        return Interval(value=value, low=np.nan, high=np.nan, undefined=len(draws))
    low, high = np.quantile(defined, _BOUNDS)
    return Interval(value=value, low=float(low), high=float(high), undefined=len(draws) - len(defined))
