"""Calibrated scores: a map fitted on held-out steps, stored in the checkpoint.

Temperature (Guo et al., arXiv 1706.04599) divides the score's log odds by one number: 1/2 stays 1/2, so it
cannot correct scores that are too high or too low overall. Platt scaling (Platt 1999, "Probabilistic
outputs for support vector machines") multiplies the log odds and adds an intercept. Neither changes the order
of steps. Isotonic regression (Zadrozny and Elkan 2002) fits any rising function: it can straighten any
distortion, ties scores, and needs more steps. All are fitted on one split, by name; errors measured on
that split say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from surefoot.errors import ScoreError
from surefoot.io import write_json
from surefoot.models.card import CALIBRATION, read_json
from surefoot.models.scorer import CheckpointScorer
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import FrozenModel, StepScores, content_id
from surefoot.stats.calibration import Binning, MapKind, expected_calibration_error
from surefoot.stats.regression import isotonic_regression, logistic_regression, sigmoid
from surefoot.stats.roc import roc_auc

FloatArray: TypeAlias = NDArray[np.float64]

_EDGE = 1e-7
"""How far scores are kept from 0 and 1 where log odds are fitted: a float32 sigmoid rounds to both."""
_STEEPEST = 1e3
"""Largest and, inverted, smallest factor on the log odds."""


class TemperatureMap(FrozenModel):
    """p → sigmoid(logit(p) / temperature); 1 changes nothing, above 1 draws scores towards 1/2."""

    kind: Literal["temperature"] = "temperature"
    temperature: float = Field(gt=0)

    def apply(self, scores: ArrayLike) -> FloatArray:
        """Mapped scores, same shape; 0 and 1 stay."""
        score = np.asarray(scores, dtype=float)
        with np.errstate(divide="ignore"):
            odds = (np.log(score) - np.log1p(-score)) / self.temperature
        return sigmoid(odds)


class PlattMap(FrozenModel):
    """p → sigmoid(slope · logit(p) + intercept); slope 1 and intercept 0 change nothing."""

    kind: Literal["platt"] = "platt"
    slope: float = Field(gt=0)
    intercept: float

    def apply(self, scores: ArrayLike) -> FloatArray:
        """Mapped scores, same shape; those nearer than 1e-7 to 0 or 1 count as this near, as in the fit."""
        odds = self.slope * _log_odds(np.asarray(scores, dtype=float)) + self.intercept
        return sigmoid(odds)


class IsotonicMap(FrozenModel):
    """Straight lines between the points (``scores``, ``values``), both rising; constant outside."""

    kind: Literal["isotonic"] = "isotonic"
    scores: tuple[float, ...] = Field(min_length=1)
    values: tuple[float, ...] = Field(min_length=1)

    def apply(self, scores: ArrayLike) -> FloatArray:
        """Mapped scores, same shape."""
        return np.asarray(np.interp(np.asarray(scores, dtype=float), self.scores, self.values))


class Calibration(FrozenModel):
    """``calibration.json``: the map, the split it was fitted on, and the errors there."""

    format: Literal[1] = 1
    map: Annotated[TemperatureMap | PlattMap | IsotonicMap, Field(discriminator="kind")]
    split: str = Field(min_length=1)
    """Name of the fitting split."""
    split_hash: str
    """Of the ids of its traces, in any order."""
    steps: int
    """Steps that were fitted on."""
    dropped: int
    """Steps without score or label."""
    ece_before: float
    """Expected calibration error on the fitting split, over ten bins."""
    ece_after: float
    """The same after the map. It is fitted to these steps: too good, most of all for ``isotonic``."""
    ece_binning: Binning = "equal-mass"
    """How both were binned."""


def fit_calibration(
    kind: MapKind,
    scores: ArrayLike,
    good: ArrayLike,
    *,
    split: str,
    trace_ids: Iterable[str],
) -> Calibration:
    """Fit a map of ``scores`` to ``good``, both [steps] in [0, 1]; ``None``/NaN is unknown and dropped.

    ``temperature`` minimises the cross-entropy, ``isotonic`` the squared error. ``platt`` minimises the
    cross-entropy against Platt's targets: with G good and B bad steps, a good one counts as (G + 1) / (G + 2)
    and a bad one as 1 / (B + 2), so that few steps make no extreme map. ``split`` names the held-out
    traces, ``trace_ids`` identify them.

    Raises ``ScoreError`` for arrays that differ in length or leave [0, 1], for fewer than two known steps or
    steps of one kind only, where no temperature is best (the scores lie on the wrong side of 1/2 on the
    whole, or part the steps without an error), and where Platt's slope would turn the order round.
    """
    score, fact = np.asarray(scores, dtype=float), np.asarray(good, dtype=float)
    if score.ndim != 1 or score.shape != fact.shape:
        raise ScoreError(
            f"'scores' and 'good' must be flat and equally long, not {score.shape}, {fact.shape}"
        )
    valid = ~(np.isnan(score) | np.isnan(fact))
    score, fact = score[valid], fact[valid]
    for name, values in (("scores", score), ("good", fact)):
        if ((values < 0) | (values > 1)).any():
            raise ScoreError(f"{name!r} must lie in [0, 1]; it has {values.min():g} to {values.max():g}")
    if len(score) < 2 or fact.min() == fact.max():
        raise ScoreError(
            f"split {split!r}: {len(score)} known steps, not some good and some bad: nothing to fit"
        )
    fitted = _FITS[kind](score, fact)
    return Calibration(
        map=fitted,
        split=split,
        split_hash=content_id("split", *sorted(set(trace_ids))),
        steps=len(score),
        dropped=int((~valid).sum()),
        ece_before=expected_calibration_error(score, fact),
        ece_after=expected_calibration_error(fitted.apply(score), fact),
    )


def save_calibration(directory: str | Path, fitted: Calibration) -> None:
    """Write ``calibration.json`` into a checkpoint's directory, in place of any that is there."""
    write_json(Path(directory) / CALIBRATION, fitted.model_dump())


def load_calibration(directory: str | Path) -> Calibration:
    """Read a checkpoint's ``calibration.json``. Raises ``CheckpointError`` if it is absent or broken."""
    missing = f"{directory} has no {CALIBRATION}: fit one (fit_calibration)"
    return read_json(Path(directory) / CALIBRATION, Calibration, missing)


class CalibratedScorer(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` that maps another's scores; unscored steps stay unscored.

    ``load_prm(path, calibrated=True)`` gives one. Of a checkpoint's scorer it has the card and the rule of
    aggregation; the rule reduces the calibrated scores.
    """

    def __init__(self, scorer: StepScorer, calibration: Calibration) -> None:
        self.scorer, self.calibration = scorer, calibration
        if isinstance(scorer, CheckpointScorer):
            self.card, self.name = scorer.card, f"{scorer.name}+{calibration.map.kind}"

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Calibrated scores, one record a trace. Raises ``ScoreError`` for a score outside [0, 1]."""
        return [self._mapped(record) for record in self.scorer.score_traces(items)]

    def _mapped(self, record: StepScores) -> StepScores:
        scores = np.array([math.nan if score is None else score for score in record.scores])
        if ((scores < 0) | (scores > 1)).any():
            raise ScoreError(f"{record.scorer} gave trace {record.trace_id} a score outside [0, 1]")
        mapped = self.calibration.map.apply(scores).tolist()
        calibrated = tuple(
            None if old is None else new for old, new in zip(record.scores, mapped, strict=True)
        )
        name = f"{record.scorer}+{self.calibration.map.kind}"
        return record.model_copy(update={"scores": calibrated, "scorer": name})


def _log_odds(score: FloatArray) -> FloatArray:
    score = np.clip(score, _EDGE, 1 - _EDGE)
    return np.asarray(np.log(score) - np.log1p(-score))


def _fit_temperature(score: FloatArray, fact: FloatArray) -> TemperatureMap:
    """The cross-entropy is convex in the factor 1 / temperature, so its slope has one zero: bisection."""
    odds = _log_odds(score)

    def slope(factor: float) -> float:
        return float((odds * (sigmoid(factor * odds) - fact)).sum())

    low, high = 1 / _STEEPEST, _STEEPEST
    if slope(low) >= 0:
        raise ScoreError(
            f"no temperature helps: {(score > 0.5).mean():.0%} of the scores are above 1/2 and "
            f"{fact.mean():.0%} of the steps are good (AUC {_auc(score, fact)}); fit 'platt', which has an "
            "intercept"
        )
    if slope(high) <= 0:
        raise ScoreError("the scores part good from bad steps without error: fit on more steps, or 'platt'")
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return TemperatureMap(temperature=1 / math.sqrt(low * high))


def _fit_platt(score: FloatArray, fact: FloatArray) -> PlattMap:
    """Logistic regression on the log odds."""
    if score.min() == score.max():
        raise ScoreError(f"all scores are {score[0]:g}: a slope cannot be fitted")
    good, bad = fact.sum(), (1 - fact).sum()
    target = fact * (good + 1) / (good + 2) + (1 - fact) / (bad + 2)
    intercept, slope = logistic_regression(_log_odds(score)[:, None], target).tolist()
    if slope <= 0:
        raise ScoreError(
            f"Platt's slope is {slope:.3g} (AUC {_auc(score, fact)}): calibrated, the steps would change "
            "their order; check what the scores and labels mean"
        )
    return PlattMap(slope=slope, intercept=intercept)


def _fit_isotonic(score: FloatArray, fact: FloatArray) -> IsotonicMap:
    scores, values = isotonic_regression(score, fact)
    return IsotonicMap(scores=tuple(scores.tolist()), values=tuple(values.tolist()))


_FITS: Mapping[MapKind, Callable[[FloatArray, FloatArray], TemperatureMap | PlattMap | IsotonicMap]] = {
    "temperature": _fit_temperature,
    "platt": _fit_platt,
    "isotonic": _fit_isotonic,
}


def _auc(score: FloatArray, fact: FloatArray) -> str:
    """AUC against whether a step is more likely good than not."""
    return f"{roc_auc(score, np.where(fact > 0.5, 1, 0)).value:.3f}"
