"""Agreement of a labeller's labels with the truth, for each step and at the first error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from surefoot.evaluation.benchmarks.processbench import harmonic_mean
from surefoot.evaluation.label_sets import LabelSet
from surefoot.evaluation.step_layout import CodeArray, FloatArray, StepLayout, as_numbers
from surefoot.stats.bootstrap import Bootstrap, group_sums
from surefoot.stats.calibration import Binning, Reliability, reliability
from surefoot.stats.intervals import UNKNOWN, Interval
from surefoot.stats.roc import roc_auc, roc_auc_within


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Steps counted by their predicted and true labels; the positive class is the *bad* step."""

    tp: int = 0
    """Predicted bad and bad."""
    fp: int = 0
    """Predicted bad but good."""
    fn: int = 0
    """Predicted good but bad."""
    tn: int = 0
    """Predicted good and good."""

    @classmethod
    def of(cls, pairs: NDArray[np.integer]) -> Self:
        """From counts of steps by 2 * predicted good + truly good."""
        tp, fp, fn, tn = map(int, pairs[:4])
        return cls(tp=tp, fp=fp, fn=fn, tn=tn)

    @property
    def steps(self) -> int:
        return self.tp + self.fp + self.fn + self.tn

    @property
    def precision(self) -> float:
        """Share of the steps predicted bad that are bad; like all shares here NaN for 0/0."""
        return _share(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        """Share of the bad steps that are predicted bad."""
        return _share(self.tp, self.tp + self.fn)

    @property
    def f1(self) -> float:
        return _share(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    @property
    def accuracy(self) -> float:
        return _share(self.tp + self.tn, self.steps)


_PAIRS = 5
"""Kinds of steps: the four of a confusion table and, last, those with an unknown label."""


def _pairs(predicted: CodeArray, truth: CodeArray) -> CodeArray:
    """[steps]: 2 * predicted good + truly good, or 4 if one of them is unknown."""
    return np.where((predicted < 0) | (truth < 0), np.int8(_PAIRS - 1), 2 * predicted + truth)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


PARTS = 5
"""Relative position: the fifth of its trace in which a step lies."""


@dataclass(frozen=True, kw_only=True)
class FirstErrorAgreement:
    """Agreement on the first bad step, over the traces in which both sides know it."""

    accuracy: Interval
    """Share of traces with the same first bad step, "none" being equal to "none"; 95 % over problems."""
    accuracy_on_wrong: float
    """The same over traces with an error."""
    accuracy_on_right: float
    """The same over traces without."""
    f1: float
    """Harmonic mean of the two, as in ProcessBench (arXiv 2412.06559)."""
    exact: int
    none_on_both: int
    early: int
    """Predicted at an earlier step than the true one."""
    late: int
    missed: int
    """None predicted, but there is one."""
    false_alarm: int
    """One predicted, but there is none."""
    offsets: Mapping[int, int]
    """Predicted minus true index → traces, if both have one."""
    traces: int
    dropped: int
    """Traces with a first bad step hidden by an unlabelled step."""


@dataclass(frozen=True, kw_only=True)
class SoftValues:
    """Value labels as scores of correctness.

    A value is the chance of a correct answer from a prefix, for one policy; correctness is another quantity.
    Ranks can be compared. Reliability measures a value as a chance of being correct, not as a value: a
    perfect value differs from it if correct steps often fail later.
    """

    auc: float
    """Chance that a good step has a higher value than a bad one."""
    auc_within_position: float
    """The same for steps of equal index."""
    calibration: Reliability
    by_fifth: Mapping[int, Reliability]


@dataclass(frozen=True, kw_only=True)
class ValueErrors:
    """Value labels against true values (labels of kind ``value`` in the truth)."""

    steps: int
    bias: float
    """Mean of label minus truth."""
    rmse: float
    """Root of the mean square of the same."""
    intervals: int
    """Labels with an interval (``evidence.interval``)."""
    covered: float
    """Share of these intervals that contain the true value."""


@dataclass(frozen=True, kw_only=True)
class AgainstTruth:
    """Agreement with the truth; the positive class is the bad step, intervals are 95 % over problems."""

    confusion: Confusion
    precision: Interval
    recall: Interval
    f1: Interval
    by_step: Mapping[int, Confusion]
    """By index of the step, from 0."""
    by_fifth: Mapping[int, Confusion]
    """By fifth of the trace, from 0: step i of T is in fifth floor(5 i / T)."""
    first_error: FirstErrorAgreement
    soft: SoftValues | None
    """``None`` without value labels."""
    values: ValueErrors | None
    """``None`` unless source and truth both label values."""


def against_truth(
    source: LabelSet,
    truth: LabelSet,
    *,
    bins: int = 10,
    binning: Binning = "equal-mass",
    draws: int = 1000,
    seed: int = 0,
) -> AgainstTruth:
    """Compare two label sets of the same layout; problems are resampled."""
    layout = source.layout
    bootstrap = Bootstrap(draws=draws, seed=seed)
    pairs = _pairs(source.codes, truth.codes)
    by_problem = _counts_by(layout.of_step(layout.problem), pairs, len(layout.problem_ids))
    counts = Confusion.of(by_problem.sum(axis=0))
    precision, recall, f1 = bootstrap.totals([by_problem], _shares)
    predicted, true = layout.first_errors(source.codes), layout.first_errors(truth.codes)
    step = layout.step_numbers()
    by_step = map(Confusion.of, _counts_by(step, pairs, int(step.max()) + 1))
    return AgainstTruth(
        confusion=counts,
        precision=precision,
        recall=recall,
        f1=f1,
        by_step={number: part for number, part in enumerate(by_step) if part.steps},
        by_fifth=dict(enumerate(map(Confusion.of, _counts_by(layout.parts(PARTS), pairs, PARTS)))),
        first_error=_first_error(predicted, true, layout, bootstrap),
        soft=_soft(source, truth, bins, binning),
        values=_value_errors(source, truth),
    )


def _counts_by(group: NDArray[np.integer], pairs: CodeArray, groups: int) -> NDArray[np.int64]:
    """[groups, 4]: steps of each group by predicted and true label."""
    flat = np.bincount(_PAIRS * group.astype(np.int64) + pairs, minlength=_PAIRS * groups)
    return flat.reshape(groups, _PAIRS)[:, : _PAIRS - 1]


def _shares(totals: FloatArray) -> FloatArray:
    """Precision, recall and F1 [n, 3] of totals [n, 1, 4] of tp, fp, fn and tn."""
    tp, fp, fn, _ = totals[:, 0].T
    parts, wholes = np.stack([tp, tp, 2 * tp]), np.stack([tp + fp, tp + fn, 2 * tp + fp + fn])
    shares: FloatArray = np.divide(parts, wholes, out=np.full_like(parts, math.nan), where=wholes > 0)
    return shares.T


def _first_error(
    predicted: FloatArray, truth: FloatArray, layout: StepLayout, bootstrap: Bootstrap
) -> FirstErrorAgreement:
    """From first errors [traces]."""
    usable = ~(np.isnan(predicted) | np.isnan(truth))
    problem = layout.problem[usable]
    predicted, truth = predicted[usable], truth[usable]
    wrong, hit, called = truth >= 0, predicted == truth, predicted >= 0
    exact, none_on_both = int((hit & wrong).sum()), int((hit & ~wrong).sum())
    on_wrong, on_right = _share(exact, int(wrong.sum())), _share(none_on_both, int((~wrong).sum()))
    offsets, traces = np.unique((predicted - truth)[called & wrong].astype(np.int64), return_counts=True)
    accuracy = UNKNOWN
    if len(predicted):
        counts = group_sums(np.stack([hit, np.ones(len(hit))], axis=1), problem)
        [accuracy] = bootstrap.totals([counts], lambda totals: totals[:, 0, :1] / totals[:, 0, 1:])
    return FirstErrorAgreement(
        accuracy=accuracy,
        accuracy_on_wrong=on_wrong,
        accuracy_on_right=on_right,
        f1=harmonic_mean(on_wrong, on_right),
        exact=exact,
        none_on_both=none_on_both,
        early=int((called & wrong & (predicted < truth)).sum()),
        late=int((wrong & (predicted > truth)).sum()),
        missed=int((wrong & ~called).sum()),
        false_alarm=int((~wrong & called).sum()),
        offsets=dict(zip(offsets.tolist(), traces.tolist(), strict=True)),
        traces=len(predicted),
        dropped=layout.traces - len(predicted),
    )


def _soft(source: LabelSet, truth: LabelSet, bins: int, binning: Binning) -> SoftValues | None:
    """Over the steps with a value label; steps without truth count as dropped."""
    valued = source.is_value
    if not valued.any():
        return None
    scores, good = source.values[valued], as_numbers(truth.codes[valued])
    fifths = source.layout.parts(PARTS)[valued]
    return SoftValues(
        auc=roc_auc(scores, good).value,
        auc_within_position=roc_auc_within(scores, good, source.layout.step_numbers()[valued]).value,
        calibration=reliability(scores, good, bins=bins, binning=binning),
        by_fifth={
            fifth: reliability(scores[fifths == fifth], good[fifths == fifth], bins=bins, binning=binning)
            for fifth in np.unique(fifths).tolist()
        },
    )


def _value_errors(source: LabelSet, truth: LabelSet) -> ValueErrors | None:
    both = source.is_value & truth.is_value
    if not both.any():
        return None
    values = truth.values[both]
    gaps = source.values[both] - values
    inside = np.array([], dtype=bool)
    if source.intervals is not None:
        low, high = source.intervals[both].T
        inside = ((low <= values) & (values <= high))[~np.isnan(low)]
    return ValueErrors(
        steps=len(gaps),
        bias=float(gaps.mean()),
        rmse=float(np.sqrt((gaps**2).mean())),
        intervals=len(inside),
        covered=_share(int(inside.sum()), len(inside)),
    )
