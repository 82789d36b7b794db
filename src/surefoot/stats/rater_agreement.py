"""How far raters agree beyond chance: raw, Cohen's kappa, Krippendorff's alpha, Gwet's AC1.

Ratings are a matrix [raters, units] of numbers for categories; NaN means "not rated". Units are
steps, or traces with the index of their first error as the rating. Where almost all steps are good, kappa and
alpha fall towards 0 though raters nearly always agree (Feinstein and Cicchetti 1990); AC1 does not, so the
coefficients belong side by side. None of them says who is right.

Sources: Cohen 1960, Educational and Psychological Measurement 20(1), 37-46. Light 1971, Psychological
Bulletin 76(5), 365-377. Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability". Gwet 2008, British
Journal of Mathematical and Statistical Psychology 61(1), 29-48.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.errors import LabelError

FloatArray = NDArray[np.float64]

Level = Literal["nominal", "ordinal", "interval"]
"""The meaning of a difference between two values: inequality, rank, or distance."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of two or more raters; coefficients are at most 1, and 0 is agreement by chance."""

    raters: int
    units: int
    """Units with at least two ratings, which all coefficients use."""
    dropped: int
    """Units with fewer than two ratings."""
    raw: float
    """Share of rater pairs with the same value, averaged over units."""
    kappa: float
    """Cohen's; with more than two raters the mean over the pairs for which it is defined (Light)."""
    alpha: float
    """Krippendorff's."""
    ac1: float
    """Gwet's."""


def agreement(
    ratings: Iterable[ArrayLike],
    *,
    level: Level = "nominal",
    categories: Sequence[float] | None = None,
) -> Agreement:
    """All coefficients of ``ratings`` [raters, units]; NaN if undefined.

    ``level`` is for alpha; the other coefficients only compare for equality. ``categories`` are the possible
    values, for AC1; by default the values that occur. Raises ``LabelError`` for another shape, or a value
    outside ``categories``.
    """
    units = _distinct(ratings)
    paired = units.of((~np.isnan(units.values)).sum(axis=0) >= 2)
    kappas = [
        _kappa_of(paired, first, second) for first, second in combinations(range(len(paired.values)), 2)
    ]
    defined = [kappa for kappa in kappas if not math.isnan(kappa)]
    counts = _counted(paired)
    return Agreement(
        raters=len(units.values),
        units=int(paired.times.sum()),
        dropped=int(units.times.sum() - paired.times.sum()),
        raw=_raw(counts),
        kappa=sum(defined) / len(defined) if defined else math.nan,
        alpha=_alpha(counts, level),
        ac1=_ac1(counts, categories),
    )


def contingency(first: ArrayLike, second: ArrayLike, *, values: Sequence[float] | None = None) -> FloatArray:
    """Table [value of the first, value of the second] of the units rated by both; both are [units].

    Values are sorted; by default they are the values that occur. Raises ``LabelError`` as ``agreement``.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape:
        raise LabelError(f"the raters have shapes {a.shape} and {b.shape}; use NaN for missing ratings")
    matrix = np.stack([a, b])
    rated = ~np.isnan(matrix).any(axis=0)
    both = matrix[:, rated]
    scale = _scale(np.unique(both), values)
    codes = np.searchsorted(scale, both)
    flat = np.bincount(codes[0] * len(scale) + codes[1], minlength=len(scale) ** 2)
    return flat.reshape(len(scale), len(scale)).astype(float)


def cohens_kappa(table: ArrayLike) -> float:
    """Cohen's kappa ``(p_o - p_e) / (1 - p_e)`` of a square contingency table, ``p_e = sum of p_i. p_.i``.

    NaN for an empty table, and if both raters gave the same single value: p_e is then 1.
    """
    counts = np.asarray(table, dtype=float)
    by_chance = float(counts.sum(axis=1) @ counts.sum(axis=0))
    return _kappa(float(counts.sum()), float(np.trace(counts)), by_chance)


def alpha_of(margin: ArrayLike, disagreement: float, values: ArrayLike, *, level: Level = "nominal") -> float:
    """Alpha 1 - (n - 1) D_o / D_e from how often each of ``values`` was given, ``margin`` [values].

    Ratings count in units that two or more rated. ``disagreement`` is D_o, the sum over these units of d^2
    over ordered pairs of raters / (ratings - 1), and D_e is the same over all pairs of ratings. d^2 is 1
    where values differ (nominal), the square of the ranks between them, each counted to its middle
    (ordinal), or of their difference (interval). Both sums of disjoint sets of units add up, where the level
    is not ordinal. NaN if
    fewer than two values occur: nothing then varies, and D_e is 0.
    """
    counts = np.asarray(margin, dtype=float)
    total = float(counts.sum())
    if level == "nominal":
        expected = total**2 - float(counts @ counts)
    else:
        position = _places(counts, np.asarray(values, dtype=float), level)
        expected = 2 * (total * float(counts @ position**2) - float(counts @ position) ** 2)
    if np.count_nonzero(counts > 0) < 2 or expected == 0:
        return math.nan
    return 1 - (total - 1) * disagreement / expected


def _places(margin: FloatArray, values: FloatArray, level: Level) -> FloatArray:
    """Numbers whose differences are the distances of ``values``."""
    # ranks from c to k with half of c and half of k are the difference of the two middles
    position = np.cumsum(margin) - margin / 2 if level == "ordinal" else values
    return np.asarray(position - position[:1])


class _Units(NamedTuple):
    """Distinct units, and how often each occurs."""

    values: FloatArray
    """[raters, units]"""
    times: FloatArray
    """[units]"""

    def of(self, members: NDArray[np.bool_]) -> _Units:
        return _Units(self.values[:, members], self.times[members])


def _distinct(ratings: Iterable[ArrayLike]) -> _Units:
    rows = [np.asarray(row) for row in ratings]
    if any(row.ndim != 1 for row in rows):
        raise LabelError(f"'ratings' must have shape [raters, units], not {np.shape(rows)}")
    if len({len(row) for row in rows}) > 1:
        raise LabelError("'ratings' must have as many units for each rater; use NaN for missing")
    key = np.zeros(len(rows[0]) if rows else 0, dtype=np.int64)
    for row in rows:
        seen, code = np.unique(row, return_inverse=True)
        key = np.unique(key * len(seen) + code, return_inverse=True)[1]
    _, first, unit = np.unique(key, return_index=True, return_inverse=True)
    values = np.array([row[first] for row in rows], dtype=float).reshape(len(rows), -1)
    return _Units(values, np.bincount(unit, minlength=len(first)).astype(float))


class _Counts(NamedTuple):
    """How many raters gave a unit a value, for each value that a unit has: [entries]."""

    unit: NDArray[np.intp]
    value: NDArray[np.intp]
    """Index into ``scale``."""
    raters: FloatArray
    times: FloatArray
    """[units]: how often the unit occurs."""
    rated: FloatArray
    """[units]: its ratings."""
    scale: FloatArray

    def sums(self, entries: FloatArray) -> FloatArray:
        """[entries] → [units]"""
        return np.asarray(np.bincount(self.unit, entries, len(self.times)), dtype=float)

    def totals(self, entries: FloatArray) -> FloatArray:
        """[entries] → [values], over all units"""
        weights = entries * self.times[self.unit]
        return np.asarray(np.bincount(self.value, weights, len(self.scale)), dtype=float)


def _counted(units: _Units) -> _Counts:
    unit, rater = np.nonzero(~np.isnan(units.values.T))
    values = units.values[rater, unit]
    scale = np.unique(values)
    key, raters = np.unique(unit * len(scale) + np.searchsorted(scale, values), return_counts=True)
    unit, value = np.divmod(key, max(len(scale), 1))
    rated = np.bincount(unit, raters, len(units.times)).astype(float)
    return _Counts(unit, value, raters.astype(float), units.times, rated, scale)


def _raw(counts: _Counts) -> float:
    paired = counts.rated >= 2
    if not paired.any():
        return math.nan
    rated, times = counts.rated[paired], counts.times[paired]
    shares = counts.sums(counts.raters * (counts.raters - 1))[paired] / (rated * (rated - 1))
    return float((shares * times).sum() / times.sum())


def _ac1(counts: _Counts, categories: Sequence[float] | None) -> float:
    scale, observed = _scale(counts.scale, categories), _raw(counts)
    if math.isnan(observed) or len(scale) < 2:
        return math.nan
    shares = counts.totals(counts.raters / counts.rated[counts.unit]) / counts.times[counts.rated > 0].sum()
    chance = float((shares * (1 - shares)).sum() / (len(scale) - 1))  # at most 1 / q
    return (observed - chance) / (1 - chance)


def _alpha(counts: _Counts, level: Level) -> float:
    rated = np.where(counts.rated >= 2, counts.rated, math.nan)
    margin = counts.totals(np.where(np.isnan(rated[counts.unit]), 0.0, counts.raters))
    if level == "nominal":
        inside = rated**2 - counts.sums(counts.raters**2)
    else:
        position = _places(margin, counts.scale, level)[counts.value]
        mean = counts.sums(counts.raters * position) / rated
        inside = 2 * rated * counts.sums(counts.raters * (position - mean[counts.unit]) ** 2)
    disagreement = float(np.nansum(counts.times * inside / (rated - 1)))
    return alpha_of(margin, disagreement, counts.scale, level=level)


def _kappa_of(units: _Units, first: int, second: int) -> float:
    pair = units.of(~(np.isnan(units.values[first]) | np.isnan(units.values[second])))
    a, b = pair.values[first], pair.values[second]
    scale = np.unique([a, b])
    margins = [
        np.bincount(np.searchsorted(scale, row), weights=pair.times, minlength=len(scale)) for row in (a, b)
    ]
    agreed = float(pair.times[a == b].sum())
    return _kappa(float(pair.times.sum()), agreed, float(margins[0] @ margins[1]))


def _kappa(total: float, agreed: float, by_chance: float) -> float:
    """From counts, so that "p_e is 1" is tested on whole numbers; ``by_chance`` is p_e total^2."""
    if total == 0 or by_chance == total**2:
        return math.nan
    return float((total * agreed - by_chance) / (total**2 - by_chance))


def _scale(seen: FloatArray, values: Sequence[float] | None) -> FloatArray:
    if values is None:
        return seen
    scale = np.unique(np.asarray(values, dtype=float))
    foreign = np.setdiff1d(seen, scale)
    if len(foreign):
        raise LabelError(f"'ratings' holds {foreign[0]:g}, which is not among the categories {list(scale)}")
    return scale
