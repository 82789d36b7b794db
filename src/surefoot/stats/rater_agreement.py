"""How far raters agree beyond chance: raw, Cohen's kappa, Krippendorff's alpha, Gwet's AC1.

Ratings are a matrix [raters, units] of numbers that stand for categories; NaN means "not rated". Units are
steps, or traces with the index of their first error as the rating. Where almost all steps are good, kappa and
alpha fall towards 0 though raters nearly always agree (Feinstein and Cicchetti 1990); AC1 does not, so the
coefficients belong side by side. None of them says who is right.

Sources: Cohen 1960, Educational and Psychological Measurement 20(1), 37-46. Light 1971, Psychological
Bulletin 76(5), 365-377. Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability". Gwet 2008, British
Journal of Mathematical and Statistical Psychology 61(1), 29-48.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.errors import LabelError

FloatArray = NDArray[np.float64]

Level = Literal["nominal", "ordinal", "interval"]
"""What a difference between two values means: none but being different, their rank, or their distance."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of two or more raters; coefficients are at most 1, and 0 is agreement by chance."""

    raters: int
    units: int
    """Units that at least two raters rated: all coefficients are over these."""
    dropped: int
    """Units that fewer than two rated."""
    raw: float
    """Share of rater pairs that gave the same value, averaged over units."""
    kappa: float
    """Cohen's; with more than two raters the mean over the pairs where it is defined (Light)."""
    alpha: float
    """Krippendorff's."""
    ac1: float
    """Gwet's."""


def agreement(
    ratings: ArrayLike, *, level: Level = "nominal", categories: Sequence[float] | None = None
) -> Agreement:
    """All coefficients of ``ratings`` [raters, units]; NaN where one is undefined.

    ``level`` is alpha's; the other coefficients know only "same" and "different". ``categories`` are the
    values that could have been given, for AC1; left out, those that were. Raises ``LabelError`` if
    ``ratings`` has another shape, or a value that ``categories`` lacks.
    """
    matrix = _matrix(ratings)
    paired = matrix[:, (~np.isnan(matrix)).sum(axis=0) >= 2]
    kappas = [cohens_kappa(contingency(a, b)) for a, b in combinations(paired, 2)]
    known = [kappa for kappa in kappas if not math.isnan(kappa)]
    return Agreement(
        raters=len(matrix),
        units=paired.shape[1],
        dropped=matrix.shape[1] - paired.shape[1],
        raw=raw_agreement(paired),
        kappa=sum(known) / len(known) if known else math.nan,
        alpha=krippendorffs_alpha(paired, level=level),
        ac1=gwets_ac1(paired, categories=categories),
    )


def contingency(first: ArrayLike, second: ArrayLike, *, values: Sequence[float] | None = None) -> FloatArray:
    """Table [value of the first, value of the second] of the units that both rated; both are [units].

    Values are sorted; left out, they are those seen. Raises ``LabelError`` as ``agreement``.
    """
    one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if one.shape != two.shape:
        raise LabelError(f"the raters have shapes {one.shape} and {two.shape}; use NaN for missing ratings")
    matrix = _matrix([one, two])
    both = matrix[:, ~np.isnan(matrix).any(axis=0)]
    scale = _scale(both, values)
    codes = np.searchsorted(scale, both)
    flat = np.bincount(codes[0] * len(scale) + codes[1], minlength=len(scale) ** 2)
    return flat.reshape(len(scale), len(scale)).astype(float)


def cohens_kappa(table: ArrayLike) -> float:
    """Cohen's kappa (p_o - p_e) / (1 - p_e) of a square contingency table; p_e = sum of p_i. p_.i.

    NaN for an empty table, and where both raters gave one and the same value throughout: p_e is then 1.
    """
    counts = np.asarray(table, dtype=float)
    total = counts.sum()
    # in counts, so that "p_e is 1" is tested on whole numbers
    by_chance = float(counts.sum(axis=1) @ counts.sum(axis=0))
    if total == 0 or by_chance == total**2:
        return math.nan
    return float((total * np.trace(counts) - by_chance) / (total**2 - by_chance))


def raw_agreement(ratings: ArrayLike) -> float:
    """Share of rater pairs with the same value, averaged over the units that two or more rated.

    NaN if there is no such unit. With two raters it is the share of units on which they agree.
    """
    matrix = _matrix(ratings)
    counts = _counts(matrix, _scale(matrix, None))
    rated = counts.sum(axis=1)
    counts, rated = counts[rated >= 2], rated[rated >= 2]
    if not len(rated):
        return math.nan
    return float(((counts * (counts - 1)).sum(axis=1) / (rated * (rated - 1))).mean())


def gwets_ac1(ratings: ArrayLike, *, categories: Sequence[float] | None = None) -> float:
    """Gwet's AC1, (p_a - p_e) / (1 - p_e) with p_e = sum of pi_k (1 - pi_k) / (q - 1) over q categories.

    p_a is ``raw_agreement``; pi_k is the mean share of category k among a unit's ratings, over all units
    with a rating. NaN if no unit has two ratings, or q is below 2 (name the ``categories`` if raters used
    only one of them). Raises ``LabelError`` as ``agreement``.
    """
    matrix = _matrix(ratings)
    scale = _scale(matrix, categories)
    counts = _counts(matrix, scale)
    rated = counts.sum(axis=1)
    observed = raw_agreement(matrix)
    if math.isnan(observed) or len(scale) < 2:
        return math.nan
    shares = (counts[rated > 0] / rated[rated > 0, None]).mean(axis=0)
    chance = float((shares * (1 - shares)).sum() / (len(scale) - 1))  # at most 1 / q
    return (observed - chance) / (1 - chance)


def krippendorffs_alpha(ratings: ArrayLike, *, level: Level = "nominal") -> float:
    """Krippendorff's alpha, 1 - D_o / D_e, for any number of raters and missing ratings.

    NaN if no unit has two ratings, and where all paired values are equal: nothing then varies, and D_e is 0.
    """
    matrix = _matrix(ratings)
    scale = _scale(matrix, None)
    return alpha_of(coincidences(matrix, scale), scale, level=level)


def coincidences(ratings: ArrayLike, values: ArrayLike) -> FloatArray:
    """Krippendorff's coincidence matrix [values, values]: sums over units of pairs / (ratings - 1).

    ``values`` are sorted and hold every rating. Matrices of disjoint sets of units add up. Units with fewer
    than two ratings add nothing.
    """
    scale = np.asarray(values, dtype=float)
    counts = _counts(_matrix(ratings), scale)
    counts = counts[counts.sum(axis=1) >= 2]
    weighted = counts / (counts.sum(axis=1, keepdims=True) - 1)
    # an ordered pair is two different raters, so a rating is not paired with itself
    return np.asarray(weighted.T @ counts - np.diag(weighted.sum(axis=0)))


def alpha_of(coincidence: ArrayLike, values: ArrayLike, *, level: Level = "nominal") -> float:
    """Alpha from a coincidence matrix o over ``values``: 1 - (n - 1) sum o d^2 / sum n_c n_k d^2.

    d^2 is 1[c != k] (nominal), the square of the ranks between c and k, each counted to its middle
    (ordinal), or (c - k)^2 (interval). NaN as ``krippendorffs_alpha``.
    """
    o = np.asarray(coincidence, dtype=float)
    margin = o.sum(axis=1)
    distance = _squared_distances(margin, np.asarray(values, dtype=float), level)
    expected = float(margin @ distance @ margin)
    if np.count_nonzero(margin > 0) < 2 or expected == 0:
        return math.nan
    return float(1 - (margin.sum() - 1) * (o * distance).sum() / expected)


def _squared_distances(margin: FloatArray, values: FloatArray, level: Level) -> FloatArray:
    if level == "nominal":
        return 1 - np.eye(len(values))
    # ranks from c to k with half of c and half of k are the difference of the two middles
    place = np.cumsum(margin) - margin / 2 if level == "ordinal" else values
    return np.asarray((place[:, None] - place[None, :]) ** 2)


def _counts(matrix: FloatArray, scale: FloatArray) -> FloatArray:
    """[units, values]: how many raters gave the unit this value."""
    return np.asarray((matrix[:, :, None] == scale).sum(axis=0), dtype=float)


def _scale(matrix: FloatArray, values: Sequence[float] | None) -> FloatArray:
    seen = np.unique(matrix[~np.isnan(matrix)])
    if values is None:
        return seen
    scale = np.unique(np.asarray(values, dtype=float))
    foreign = np.setdiff1d(seen, scale)
    if len(foreign):
        raise LabelError(f"'ratings' holds {foreign[0]:g}, which is not among the categories {list(scale)}")
    return scale


def _matrix(ratings: ArrayLike) -> FloatArray:
    try:
        matrix = np.asarray(ratings, dtype=float)
    except ValueError as error:
        raise LabelError("'ratings' must have as many units for each rater; use NaN for missing") from error
    if matrix.ndim != 2:
        raise LabelError(f"'ratings' must have shape [raters, units], not {matrix.shape}")
    return matrix
