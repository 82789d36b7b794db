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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.errors import LabelError
from surefoot.stats.bootstrap import FloatArray


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
    """Krippendorff's, of nominal values."""
    ac1: float
    """Gwet's."""


def agreement(ratings: Iterable[ArrayLike], *, categories: Sequence[float] | None = None) -> Agreement:
    """All coefficients of ``ratings`` [raters, units]; NaN if undefined.

    ``categories`` are the possible values, for AC1; by default the values that occur. Raises ``LabelError``
    for another shape, or a value outside ``categories``.
    """
    rows = [np.asarray(row) for row in ratings]
    if any(row.ndim != 1 for row in rows):
        raise LabelError(f"'ratings' must have shape [raters, units], not {np.shape(rows)}")
    if len({len(row) for row in rows}) > 1:
        raise LabelError("'ratings' must have as many units for each rater; use NaN for missing")
    matrix = np.array(rows).reshape(len(rows), -1)
    paired = (~np.isnan(matrix)).sum(axis=0) >= 2
    counts = _counted(matrix[:, paired])
    kappas = [_kappa_of(*pair, len(counts.scale)) for pair in combinations(counts.codes, 2)]
    defined = [kappa for kappa in kappas if not math.isnan(kappa)]
    return Agreement(
        raters=len(rows),
        units=int(paired.sum()),
        dropped=int((~paired).sum()),
        raw=_raw(counts),
        kappa=sum(defined) / len(defined) if defined else math.nan,
        alpha=_alpha(counts),
        ac1=_ac1(counts, categories),
    )


def contingency(first: ArrayLike, second: ArrayLike, *, values: Sequence[float] | None = None) -> FloatArray:
    """Table [value of the first, value of the second] of the units rated by both; both are [units].

    Values are sorted; by default they are the values that occur. Raises ``LabelError`` as ``agreement``.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape:
        raise LabelError(f"the raters have shapes {a.shape} and {b.shape}; use NaN for missing ratings")
    rated = ~(np.isnan(a) | np.isnan(b))
    scale = _scale(np.unique([a[rated], b[rated]]), values)
    flat = np.searchsorted(scale, a[rated]) * len(scale) + np.searchsorted(scale, b[rated])
    return np.bincount(flat, minlength=len(scale) ** 2).reshape(len(scale), len(scale)).astype(float)


def cohens_kappa(table: ArrayLike) -> float:
    """Cohen's kappa ``(p_o - p_e) / (1 - p_e)`` of a square contingency table, ``p_e = sum of p_i. p_.i``.

    NaN for an empty table, and if both raters gave the same single value: p_e is then 1.
    """
    counts = np.asarray(table, dtype=float)
    return _kappa(counts.sum(axis=1), counts.sum(axis=0), float(np.trace(counts)))


def _kappa(first: NDArray[Any], second: NDArray[Any], agreed: float) -> float:
    """From how often each rater gave each value, and how often they agreed."""
    total, by_chance = float(first.sum()), float(first @ second)
    # from counts, so that "p_e is 1" is tested on whole numbers
    if total == 0 or by_chance == total**2:
        return math.nan
    return (total * agreed - by_chance) / (total**2 - by_chance)


def _kappa_of(first: NDArray[np.integer], second: NDArray[np.integer], size: int) -> float:
    """Of the codes of two raters [units] below ``size``; -1 means unrated."""
    rated = (first >= 0) & (second >= 0)
    margin, other = (np.bincount(codes[rated], minlength=size).astype(float) for codes in (first, second))
    return _kappa(margin, other, float((first == second)[rated].sum()))


def alpha_of(margin: ArrayLike, disagreement: float) -> float:
    """Alpha 1 - (n - 1) D_o / D_e from how often each value was given, ``margin`` [values].

    Ratings count in units that two or more rated. ``disagreement`` is D_o, the sum over these units of the
    ordered pairs of raters with different values / (ratings - 1), and D_e is the same over all pairs of
    ratings. Both sums of disjoint sets of units add up. NaN if fewer than two values occur: nothing then
    varies, and D_e is 0.
    """
    counts = np.asarray(margin, dtype=float)
    total = float(counts.sum())
    if np.count_nonzero(counts > 0) < 2:
        return math.nan
    return 1 - (total - 1) * disagreement / (total**2 - float(counts @ counts))


class _Counts(NamedTuple):
    """How many raters gave a unit a value, for each value that a unit has: [entries]."""

    codes: NDArray[np.int32]
    """[raters, units]: index into ``scale``; -1 for no rating."""
    scale: FloatArray
    unit: NDArray[np.intp]
    value: NDArray[np.intp]
    """Index into ``scale``."""
    raters: FloatArray
    rated: FloatArray
    """[units]: its ratings, two or more."""

    def by_unit(self, entries: FloatArray) -> FloatArray:
        """[entries] → [units]: sums."""
        return np.asarray(np.bincount(self.unit, entries, len(self.rated)), dtype=float)

    def by_value(self, entries: FloatArray) -> FloatArray:
        """[entries] → [values]: sums."""
        return np.asarray(np.bincount(self.value, entries, len(self.scale)), dtype=float)


def _counted(matrix: NDArray[np.floating]) -> _Counts:
    is_rated = ~np.isnan(matrix)
    scale = np.unique(matrix[is_rated]).astype(float)
    codes = np.where(is_rated, np.searchsorted(scale, matrix), -1).astype(np.int32)
    rater, unit = np.nonzero(is_rated)
    key, raters = np.unique(unit * max(len(scale), 1) + codes[rater, unit], return_counts=True)
    unit, value = np.divmod(key, max(len(scale), 1))
    rated = is_rated.sum(axis=0).astype(float)
    return _Counts(codes, scale, unit, value, raters.astype(float), rated)


def _raw(counts: _Counts) -> float:
    if not len(counts.rated):
        return math.nan
    pairs = counts.by_unit(counts.raters * (counts.raters - 1))
    return float((pairs / (counts.rated * (counts.rated - 1))).mean())


def _ac1(counts: _Counts, categories: Sequence[float] | None) -> float:
    scale, observed = _scale(counts.scale, categories), _raw(counts)
    if math.isnan(observed) or len(scale) < 2:
        return math.nan
    shares = counts.by_value(counts.raters / counts.rated[counts.unit]) / len(counts.rated)
    chance = float((shares * (1 - shares)).sum() / (len(scale) - 1))  # at most 1 / q
    return (observed - chance) / (1 - chance)


def _alpha(counts: _Counts) -> float:
    inside = counts.rated**2 - counts.by_unit(counts.raters**2)
    return alpha_of(counts.by_value(counts.raters), float((inside / (counts.rated - 1)).sum()))


def _scale(seen: FloatArray, values: Sequence[float] | None) -> FloatArray:
    if values is None:
        return seen
    scale = np.unique(np.asarray(values, dtype=float))
    foreign = np.setdiff1d(seen, scale)
    if len(foreign):
        raise LabelError(f"'ratings' holds {foreign[0]:g}, which is not among the categories {list(scale)}")
    return scale
