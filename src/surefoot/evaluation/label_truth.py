"""How far labels from a labeller agree with the truth, step by step and at the first error."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.first_errors import harmonic_mean
from surefoot.evaluation.label_sets import LabelSet
from surefoot.evaluation.step_layout import (
    BAD,
    GOOD,
    UNREAD,
    CodeArray,
    FloatArray,
    StepLayout,
    as_numbers,
)
from surefoot.io.tables import Facts
from surefoot.stats.bootstrap import bootstrap_totals
from surefoot.stats.calibration import Binning, Reliability, reliability, reliability_by
from surefoot.stats.groups import group_numbers
from surefoot.stats.intervals import UNKNOWN, Interval
from surefoot.stats.roc import roc_auc, roc_auc_within

GoodSteps = Sequence[Sequence[bool | None]]
"""One list per trace: is the step good; ``None`` = unknown (:mod:`surefoot.labels`)."""


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Steps counted by what was said of them and what is true; the positive class is the *bad* step."""

    tp: int = 0
    """Called bad and bad."""
    fp: int = 0
    """Called bad but good."""
    fn: int = 0
    """Called good but bad."""
    tn: int = 0
    """Called good and good."""

    @classmethod
    def of(cls, pairs: NDArray[np.integer]) -> Self:
        """From counts of steps by 2 * called good + truly good."""
        tp, fp, fn, tn = map(int, pairs[:4])
        return cls(tp=tp, fp=fp, fn=fn, tn=tn)

    @property
    def steps(self) -> int:
        return self.tp + self.fp + self.fn + self.tn

    @property
    def precision(self) -> float:
        """Among steps called bad, the share that are bad; as all shares here NaN for 0/0."""
        return _share(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        """Among bad steps, the share called bad."""
        return _share(self.tp, self.tp + self.fn)

    @property
    def f1(self) -> float:
        return _share(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    @property
    def accuracy(self) -> float:
        return _share(self.tp + self.tn, self.steps)

    @property
    def of_good(self) -> Confusion:
        """The same steps with the good step as the positive class."""
        return Confusion(tp=self.tn, fp=self.fn, fn=self.fp, tn=self.tp)

    def __add__(self, other: Confusion) -> Confusion:
        return Confusion(
            tp=self.tp + other.tp, fp=self.fp + other.fp, fn=self.fn + other.fn, tn=self.tn + other.tn
        )


@dataclass(frozen=True, kw_only=True)
class LabelNoise:
    """Agreement of predicted with true labels; fractions in [0, 1], NaN where undefined (0/0)."""

    precision_error: float
    """Among steps called bad, the share that are bad."""
    recall_error: float
    """Among bad steps, the share called bad."""
    f1_error: float
    precision_good: float
    """Among steps called good, the share that are good."""
    recall_good: float
    f1_good: float
    accuracy: float
    first_error_accuracy: float
    """Share of ``traces`` with the same first bad step in both, "none" being equal to "none"."""
    steps: int
    """Steps labelled on both sides; all but ``first_error_accuracy`` are over these."""
    dropped: int
    """Steps without a label on one side or both."""
    traces: int
    """Traces whose first bad step is known on both sides."""
    dropped_traces: int
    """Traces where it is not: a step before it (or, if no step is bad, any step) has no label."""


def label_noise(predicted: GoodSteps, truth: GoodSteps) -> LabelNoise:
    """Compare two sets of labels of the same steps.

    Raises ``LabelError`` if the traces or the steps of one trace differ in number.
    """
    _check(predicted, truth)
    lengths = array("q", map(len, truth))
    layout = StepLayout(Facts(str(number), size=length) for number, length in enumerate(lengths))
    said, fact = _codes(predicted), _codes(truth)
    counts = Confusion.of(np.bincount(_pairs(said, fact), minlength=_PAIRS))
    return _noise(counts, layout, layout.first_errors(said), layout.first_errors(fact))


def _noise(counts: Confusion, layout: StepLayout, said: FloatArray, fact: FloatArray) -> LabelNoise:
    """``counts`` of all steps; ``said`` and ``fact`` [traces] are first errors as ``StepLayout`` has them."""
    known = ~(np.isnan(said) | np.isnan(fact))
    traces = int(known.sum())
    return LabelNoise(
        precision_error=counts.precision,
        recall_error=counts.recall,
        f1_error=counts.f1,
        precision_good=counts.of_good.precision,
        recall_good=counts.of_good.recall,
        f1_good=counts.of_good.f1,
        accuracy=counts.accuracy,
        first_error_accuracy=_share(int((said == fact)[known].sum()), traces),
        steps=counts.steps,
        dropped=layout.steps - counts.steps,
        traces=traces,
        dropped_traces=layout.traces - traces,
    )


_PAIRS = 5
"""Kinds of steps: the four of a confusion table and, last, those that are not known on both sides."""


def _pairs(said: CodeArray, fact: CodeArray) -> CodeArray:
    """[steps]: 2 * called good + truly good, or 4 where one side is unknown."""
    return np.where((said < 0) | (fact < 0), np.int8(_PAIRS - 1), 2 * said + fact)


def _codes(good: GoodSteps) -> CodeArray:
    """[steps] of all traces."""
    codes = {True: GOOD, False: BAD, None: UNREAD}
    return np.fromiter((codes[value] for row in good for value in row), dtype=np.int8)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _check(predicted: GoodSteps, truth: GoodSteps) -> None:
    if len(predicted) != len(truth):
        raise LabelError(f"'predicted' has {len(predicted)} traces and 'truth' has {len(truth)}")
    for trace, (claim, fact) in enumerate(zip(predicted, truth, strict=True)):
        if len(claim) != len(fact):
            raise LabelError(
                f"predicted[{trace}] has {len(claim)} steps and truth[{trace}] has {len(fact)}; "
                "give one entry per step on both sides, None where there is no label"
            )


PARTS = 5
"""Relative position: the fifth of its trace in which a step lies."""


@dataclass(frozen=True, kw_only=True)
class FirstErrorAgreement:
    """Where the first bad step is said to be, over the traces in which both sides say so."""

    accuracy: Interval
    """Share of traces with the same first bad step, "none" being equal to "none"; 95 % over problems."""
    accuracy_on_wrong: float
    """The same over traces with an error."""
    accuracy_on_right: float
    """The same over traces without."""
    f1: float
    """Harmonic mean of the two, as ProcessBench has it (arXiv 2412.06559)."""
    exact: int
    none_on_both: int
    early: int
    """Called at an earlier step than the true one."""
    late: int
    missed: int
    """None called, but there is one."""
    false_alarm: int
    """One called, but there is none."""
    offsets: Mapping[int, int]
    """Called minus true index → traces, where both have one."""
    traces: int
    dropped: int
    """Traces where a step without label leaves one side open."""


@dataclass(frozen=True, kw_only=True)
class SoftValues:
    """Value labels as scores of correctness.

    A value is the chance of the right answer from a prefix, for one policy; correctness is another quantity.
    Ranks can be compared. Reliability says how far the value may stand in for the chance of being right, not
    how good it is as a value: a perfect value is off where right steps often fail later.
    """

    auc: float
    """Chance that a good step has a higher value than a bad one."""
    auc_within_position: float
    """The same among steps of one index only."""
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
    """Labels that carry an interval (``evidence.interval``)."""
    covered: float
    """Share of these intervals that hold the true value."""


@dataclass(frozen=True, kw_only=True)
class AgainstTruth:
    """Agreement with the truth; the positive class is the bad step, intervals are 95 % over problems."""

    confusion: Confusion
    noise: LabelNoise
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
    """Compare two label sets of the same layout; problems are what is resampled."""
    layout = source.layout
    pairs = _pairs(source.codes, truth.codes)
    by_problem = _counts_by(layout.of_step(layout.problem), pairs, len(layout.problem_ids))
    counts = Confusion.of(by_problem.sum(axis=0))
    precision, recall, f1 = bootstrap_totals(
        [by_problem], _shares, draws=draws, rng=np.random.default_rng(seed)
    )
    said, fact = layout.first_errors(source.codes), layout.first_errors(truth.codes)
    step = layout.step_numbers()
    by_step = map(Confusion.of, _counts_by(step, pairs, int(step.max()) + 1))
    return AgainstTruth(
        confusion=counts,
        noise=_noise(counts, layout, said, fact),
        precision=precision,
        recall=recall,
        f1=f1,
        by_step={number: one for number, one in enumerate(by_step) if one.steps},
        by_fifth=dict(enumerate(map(Confusion.of, _counts_by(layout.parts(PARTS), pairs, PARTS)))),
        first_error=_first_error(said, fact, layout, draws=draws, seed=seed),
        soft=_soft(source, truth, bins, binning),
        values=_value_errors(source, truth),
    )


def _counts_by(group: NDArray[np.integer], pairs: CodeArray, groups: int) -> NDArray[np.int64]:
    """[groups, 4]: steps of each group by what was said and what is true."""
    flat = np.bincount(_PAIRS * group.astype(np.int64) + pairs, minlength=_PAIRS * groups)
    return flat.reshape(groups, _PAIRS)[:, : _PAIRS - 1]


def _shares(totals: FloatArray) -> FloatArray:
    """Precision, recall and F1 [n, 3] of totals [n, 1, 4] of tp, fp, fn and tn."""
    tp, fp, fn, _ = totals[:, 0].T
    parts, wholes = np.stack([tp, tp, 2 * tp]), np.stack([tp + fp, tp + fn, 2 * tp + fp + fn])
    shares: FloatArray = np.divide(parts, wholes, out=np.full_like(parts, math.nan), where=wholes > 0)
    return shares.T


def _first_error(
    said: FloatArray, fact: FloatArray, layout: StepLayout, *, draws: int, seed: int
) -> FirstErrorAgreement:
    """Of first errors [traces]."""
    known = ~(np.isnan(said) | np.isnan(fact))
    problem = group_numbers(layout.problem[known])
    said, fact = said[known], fact[known]
    wrong, hit = fact >= 0, said == fact
    exact, none_on_both = int((hit & wrong).sum()), int((hit & ~wrong).sum())
    on_wrong, on_right = _share(exact, int(wrong.sum())), _share(none_on_both, int((~wrong).sum()))
    offsets, traces = np.unique((said - fact)[(said >= 0) & wrong].astype(np.int64), return_counts=True)
    accuracy = UNKNOWN
    if len(said):
        totals = np.stack([np.bincount(problem, weights=hit), np.bincount(problem)], axis=1)
        [accuracy] = bootstrap_totals(
            [totals],
            lambda drawn: drawn[:, 0, :1] / drawn[:, 0, 1:],
            draws=draws,
            rng=np.random.default_rng(seed),
        )
    return FirstErrorAgreement(
        accuracy=accuracy,
        accuracy_on_wrong=on_wrong,
        accuracy_on_right=on_right,
        f1=harmonic_mean(on_wrong, on_right),
        exact=exact,
        none_on_both=none_on_both,
        early=int(((said >= 0) & wrong & (said < fact)).sum()),
        late=int((wrong & (said > fact)).sum()),
        missed=int((wrong & (said < 0)).sum()),
        false_alarm=int((~wrong & (said >= 0)).sum()),
        offsets=dict(zip(offsets.tolist(), traces.tolist(), strict=True)),
        traces=len(said),
        dropped=layout.traces - len(said),
    )


def _soft(source: LabelSet, truth: LabelSet, bins: int, binning: Binning) -> SoftValues | None:
    """Over the steps with a value label; those without truth are counted as dropped."""
    valued = source.is_value
    if not valued.any():
        return None
    scores, good = source.values[valued], as_numbers(truth.codes[valued])
    by_fifth = reliability_by(scores, good, source.layout.parts(PARTS)[valued], bins=bins, binning=binning)
    return SoftValues(
        auc=roc_auc(scores, good).value,
        auc_within_position=roc_auc_within(scores, good, source.layout.step_numbers()[valued]).value,
        calibration=reliability(scores, good, bins=bins, binning=binning),
        by_fifth={fifth: by_fifth[fifth] for fifth in range(PARTS) if fifth in by_fifth},
    )


def _value_errors(source: LabelSet, truth: LabelSet) -> ValueErrors | None:
    both = source.is_value & truth.is_value
    if not both.any():
        return None
    facts = truth.values[both]
    gaps = source.values[both] - facts
    inside = np.array([], dtype=bool)
    if source.intervals is not None:
        bounds = source.intervals[both]
        given = ~np.isnan(bounds[:, 0])
        inside = ((bounds[:, 0] <= facts) & (facts <= bounds[:, 1]))[given]
    return ValueErrors(
        steps=len(gaps),
        bias=float(gaps.mean()),
        rmse=float(np.sqrt((gaps**2).mean())),
        intervals=len(inside),
        covered=_share(int(inside.sum()), len(inside)),
    )
