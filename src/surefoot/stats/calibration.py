"""Calibration of scores: of the steps scored 0.8, are 80 % good? (Reliability, ECE, Brier.)

Takes plain arrays, so that soft labels and reward models are measured alike. Sources: Brier 1950, Monthly
Weather Review 78(1), 1-3; Naeini et al. 2015, AAAI, for the expected calibration error; Nguyen and O'Connor
2015, arXiv 1508.05154, for bins of equal mass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.errors import LabelError, ScoreError
from surefoot.stats.bootstrap import FloatArray

Binning = Literal["equal-mass", "equal-width"]

MapKind = Literal["platt", "isotonic"]
MAP_KINDS: tuple[MapKind, ...] = get_args(MapKind)
"""Maps that calibrate scores; ``surefoot.models.fit_calibration`` fits them."""


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Steps of similar score."""

    low: float
    """Lowest score in the bin."""
    high: float
    """Highest score in the bin."""
    steps: int
    mean_score: float
    good: float
    """Share of good steps; equal to ``mean_score`` if the scores are calibrated."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Reliability of scores in [0, 1] against good (1) and bad (0) steps; NaN without a step."""

    ece: float
    """Expected calibration error: mean of ``|share good - mean score|`` over bins, weighted by their steps.

    It depends on the bins, and noise alone raises it: by up to 0.4 / sqrt(steps in a bin) for perfect
    scores."""
    bias: float
    """Mean score minus share of good steps: above 0 the scores are too high on the whole."""
    brier: float
    """Mean of (score - good)^2. Lower is better; scores without bias can still have a high one."""
    brier_constant: float
    """The Brier score of always saying the share of good steps: a useful score lies below it."""
    binning: Binning
    bins: tuple[ReliabilityBin, ...]
    """By rising score; empty bins are left out."""
    steps: int
    dropped: int
    """Steps whose score or truth is unknown."""


def reliability(
    scores: ArrayLike, good: ArrayLike, *, bins: int = 10, binning: Binning = "equal-mass"
) -> Reliability:
    """Reliability of ``scores`` [steps] in [0, 1] against ``good`` [steps], 1 or 0; ``None``/NaN is unknown.

    Bins of equal mass hold as near as can be the same number of steps; equal scores share a bin, so there
    may be fewer than ``bins`` (scores with five values never fill more than five). Bins of equal width cut
    [0, 1] evenly. Raises ``LabelError`` for lengths that differ or a ``good`` that is neither 0 nor 1,
    ``ScoreError`` for a score outside [0, 1], ``ValueError`` for fewer than one bin.
    """
    if bins < 1:
        raise ValueError(f"'bins' must be at least 1, not {bins}")
    score, fact = _checked(scores, good)
    usable = ~(np.isnan(score) | np.isnan(fact))
    score, fact, dropped = score[usable], fact[usable], int((~usable).sum())
    number = _bin_numbers(score, bins, binning)
    rows = tuple(_rows(score, fact, number))
    count, share = len(score), _mean(fact)
    return Reliability(
        ece=_expected_error(score, fact, number),
        bias=_mean(score) - share,
        brier=_mean((score - fact) ** 2),
        brier_constant=share * (1 - share),
        binning=binning,
        bins=rows,
        steps=count,
        dropped=dropped,
    )


def expected_calibration_error(
    scores: ArrayLike, good: ArrayLike, *, bins: int = 10, binning: Binning = "equal-mass"
) -> float:
    """ECE over ``bins`` bins; both are [steps], ``good`` may hold soft labels; NaN if empty.

    State the binning with the number: bins of equal mass and of equal width give different errors.
    """
    score, fact = np.asarray(scores, dtype=float), np.asarray(good, dtype=float)
    return _expected_error(score, fact, _bin_numbers(score, bins, binning))


def _expected_error(score: FloatArray, fact: FloatArray, number: NDArray[np.intp]) -> float:
    """Sum over bins of |sum of good - score|, by step; ``number`` is the bin of each step."""
    if not len(score):
        return math.nan
    return float(np.abs(np.bincount(number, weights=fact - score)).sum() / len(score))


def _bin_numbers(score: FloatArray, bins: int, binning: Binning) -> NDArray[np.intp]:
    if binning == "equal-width":
        return np.searchsorted(np.arange(1, bins) / bins, score, "right")
    # the mean rank of equal scores: they fall into one bin, whatever their order
    ordered = np.sort(score)
    middle = (np.searchsorted(ordered, score, "left") + np.searchsorted(ordered, score, "right")) / 2
    return np.floor(bins * middle / max(len(score), 1)).astype(np.intp)


def _rows(score: FloatArray, fact: FloatArray, number: NDArray[np.intp]) -> Iterator[ReliabilityBin]:
    for bin_number in np.unique(number):
        inside = number == bin_number
        yield ReliabilityBin(
            low=float(score[inside].min()),
            high=float(score[inside].max()),
            steps=int(inside.sum()),
            mean_score=_mean(score[inside]),
            good=_mean(fact[inside]),
        )


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _checked(scores: ArrayLike, good: ArrayLike) -> tuple[FloatArray, FloatArray]:
    score, fact = np.asarray(scores, dtype=float), np.asarray(good, dtype=float)
    if score.ndim != 1 or score.shape != fact.shape:
        raise LabelError(
            f"'scores' and 'good' must be flat and equally long, not {score.shape}, {fact.shape}"
        )
    outside = np.flatnonzero((score < 0) | (score > 1))
    if len(outside):
        raise ScoreError(
            f"scores[{outside[0]}] is {score[outside[0]]:g}; calibration needs scores in [0, 1], "
            "so put others through a sigmoid first"
        )
    foreign = np.flatnonzero(~np.isnan(fact) & (fact != 0) & (fact != 1))
    if len(foreign):
        raise LabelError(
            f"good[{foreign[0]}] is {fact[foreign[0]]:g}; give 1 (good), 0 (bad) or NaN (unknown)"
        )
    return score, fact
