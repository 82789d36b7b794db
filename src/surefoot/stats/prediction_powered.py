"""A mean from few gold labels and many predicted ones (prediction-powered inference).

Items i = 1 … M have predictions f_i. A random part S of them has gold labels y_i, with weights w_i = 1 / (the
chance of getting one). The estimate

    θ(λ) = λ mean(f) + Σ_S w_i (y_i - λ f_i) / Σ_S w_i

is consistent for any predictions, however bad: λ = 0 uses the gold labels alone, λ = 1 is PPI (Angelopoulos
et al. 2023, Science 382, 669-674). λ = Cov(y, f) / Var(f), here of the sums of problems, has the smallest
variance: it is PPI++ (Angelopoulos, Duchi and Zrnic, arXiv 2311.01453, section 6), with S among the predicted
items. Weights are as in active inference (Zrnic and Candès, arXiv 2403.03208), normalised (Hájek 1971).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.errors import LabelError
from surefoot.stats.bootstrap import group_numbers
from surefoot.stats.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class CorrectedMean:
    """Estimates of one mean, with 95 % intervals over problems."""

    corrected: Interval
    gold_only: Interval
    """From the gold labels alone (λ = 0)."""
    tuning: float
    """λ: how far the predictions are used."""
    gold_items: int
    gold_problems: int


def prediction_powered_mean(
    predicted: ArrayLike,
    gold: ArrayLike,
    problems: Sequence[Hashable] | NDArray[np.generic],
    *,
    weights: ArrayLike | None = None,
    rate: bool = False,
) -> CorrectedMean:
    """The mean of ``gold`` [items], NaN without a label, with the help of ``predicted`` [items].

    A missing prediction (NaN) counts as the mean of the others. Items of one problem are dependent, so the
    variance is the sum over problems p of u_p²; with w normalised and b, a the sums of w (y - ȳ), w (f - f̄)
    over the gold items of p, u_p = λ Σ_{i in p} (f_i - mean(f)) / M + g_p (b_p - λ a_p). The factor g_p is
    1 + (mean(f) - f̄) a_p / Σ a², for λ is fitted (Särndal, Swensson and Wretman 1989, Biometrika 76,
    527-537), divided by (1 - a_p² / Σ a²) (1 - w_p)^½, the leverages of slope and mean. The interval uses
    Student's t; if b - λ a does not vary, 3 / (problems with gold labels) is added on both sides (rule of
    three). For a ``rate``, of gold labels in [0, 1], the interval is Wilson's of as many items as have this
    variance: it stays in [0, 1], and is wide where few gold problems have the rarer label. Raises
    ``LabelError`` for gold labels of fewer than two problems, no prediction, or weights that
    are not positive.
    """
    f, y = np.array(predicted, dtype=float), np.asarray(gold, dtype=float)
    problem = group_numbers(problems)
    if not len(f) == len(y) == len(problem):
        raise LabelError(
            f"{len(f)} predictions, {len(y)} gold labels and {len(problem)} problems: give one each"
        )
    labelled = ~np.isnan(y)
    groups = len(np.unique(problem[labelled]))
    if groups < 2 or np.isnan(f).all():
        raise LabelError(
            f"gold labels of {groups} problems and {np.count_nonzero(~np.isnan(f))} predictions: an interval "
            "needs gold labels of at least 2 problems, better 30, and predictions"
        )
    f[np.isnan(f)] = np.nanmean(f)
    w = np.where(labelled, 1.0 if weights is None else np.asarray(weights, dtype=float), 0.0)
    if not (np.isfinite(w).all() and (w[labelled] > 0).all()):
        raise LabelError("'weights' must be positive: 1 / the chance that the item gets a gold label")
    w /= w.sum()
    y = np.where(labelled, y, 0.0)
    shares, a, b, all_f = (
        np.bincount(problem, weights=column) for column in (w, w * (f - w @ f), w * (y - w @ y), f - f.mean())
    )
    spread = float(a @ a)
    slope = float(a @ b) / spread if spread > 1e-18 else 0.0

    def estimate(tuning: float) -> Interval:
        residual, at_gold = y - tuning * f, b - tuning * a
        varies = np.abs(at_gold).max() > 1e-12
        at_gold = at_gold / np.sqrt(np.maximum(1 - shares, 0.1))
        if tuning:
            at_gold *= (1 + (f.mean() - w @ f) * a / spread) / np.maximum(1 - a**2 / spread, 0.1)
        sums = tuning * all_f / len(f) + at_gold
        half = student_t(max(groups - 1 - bool(tuning), 1)) * math.sqrt(float(sums @ sums))
        half += 0 if varies else 3 / groups
        value = tuning * float(f.mean()) + float(w @ residual)
        if not rate:
            return Interval(value=value, low=value - half, high=value + half)
        smallest = 0.5 / int(labelled.sum())
        share = min(max(value, smallest), 1 - smallest)
        ratio = half**2 / (share * (1 - share))  # z² / n of Wilson's interval
        centre, reach = (share + ratio / 2) / (1 + ratio), math.sqrt(half**2 + ratio**2 / 4) / (1 + ratio)
        low, high = max(centre - reach, 0.0), min(centre + reach, 1.0)
        value = min(max(value, 0.0), 1.0)
        return Interval(value=value, low=min(low, value), high=max(high, value))

    return CorrectedMean(
        corrected=estimate(slope),
        gold_only=estimate(0.0),
        tuning=slope,
        gold_items=int(labelled.sum()),
        gold_problems=groups,
    )


def student_t(degrees: int, level: float = 0.95) -> float:
    """Two-sided quantile of Student's t (Abramowitz and Stegun 26.7.5; error below 1.2 % from 3 degrees)."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / float(degrees) ** power for power, term in enumerate(terms))
