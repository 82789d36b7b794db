"""How far labels from a labeller agree with the truth, step by step and at the first error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.first_errors import harmonic_mean
from surefoot.evaluation.label_sets import LabelSet
from surefoot.labels import first_error
from surefoot.stats.bootstrap import bootstrap_statistic
from surefoot.stats.calibration import Binning, Reliability, reliability, reliability_by
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
    counts = sum((confusion(c, f) for c, f in zip(predicted, truth, strict=True)), Confusion())
    pairs = [(first_error(c), first_error(f)) for c, f in zip(predicted, truth, strict=True)]
    known = [(c, f) for c, f in pairs if c is not None and f is not None]
    return LabelNoise(
        precision_error=counts.precision,
        recall_error=counts.recall,
        f1_error=counts.f1,
        precision_good=counts.of_good.precision,
        recall_good=counts.of_good.recall,
        f1_good=counts.of_good.f1,
        accuracy=counts.accuracy,
        first_error_accuracy=_share(sum(c == f for c, f in known), len(known)),
        steps=counts.steps,
        dropped=sum(len(labels) for labels in truth) - counts.steps,
        traces=len(known),
        dropped_traces=len(pairs) - len(known),
    )


def confusion(claims: Sequence[bool | None], facts: Sequence[bool | None]) -> Confusion:
    """Count steps that are known on both sides; both have shape [steps], True is good, ``None`` unknown."""
    counts = [0, 0, 0, 0]  # 2 * claimed good + truly good
    for said, meant in zip(claims, facts, strict=True):
        if said is not None and meant is not None:
            counts[2 * said + meant] += 1
    return Confusion(tp=counts[0], fp=counts[1], fn=counts[2], tn=counts[3])


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
    problems: Sequence[str],
    *,
    bins: int = 10,
    binning: Binning = "equal-mass",
    draws: int = 1000,
    seed: int = 0,
) -> AgainstTruth:
    """Compare two label sets of the same traces; ``problems`` [traces] are what is resampled."""
    rows = [confusion(said, fact) for said, fact in zip(source.good, truth.good, strict=True)]
    counts = np.array([[row.tp, row.fp, row.fn, row.tn] for row in rows])

    def interval(share: Callable[[Confusion], float]) -> Interval:
        return bootstrap_statistic(
            problems,
            lambda draw: share(_confusion(counts[draw.items].sum(axis=0))),
            draws=draws,
            rng=np.random.default_rng(seed),
        )

    by_step, by_fifth = _by_position(source, truth)
    return AgainstTruth(
        confusion=sum(rows, Confusion()),
        noise=label_noise(source.good, truth.good),
        precision=interval(lambda total: total.precision),
        recall=interval(lambda total: total.recall),
        f1=interval(lambda total: total.f1),
        by_step=by_step,
        by_fifth=by_fifth,
        first_error=_first_error(source, truth, problems, draws=draws, seed=seed),
        soft=_soft(source, truth, bins, binning),
        values=_value_errors(source, truth),
    )


def _confusion(counts: Sequence[int]) -> Confusion:
    tp, fp, fn, tn = (int(count) for count in counts)
    return Confusion(tp=tp, fp=fp, fn=fn, tn=tn)


def _by_position(source: LabelSet, truth: LabelSet) -> tuple[dict[int, Confusion], dict[int, Confusion]]:
    by_step: dict[int, Confusion] = {}
    by_fifth = {fifth: Confusion() for fifth in range(PARTS)}
    for said, fact in zip(source.good, truth.good, strict=True):
        for step, pair in enumerate(zip(said, fact, strict=True)):
            one = confusion(pair[:1], pair[1:])
            by_step[step] = by_step.get(step, Confusion()) + one
            fifth = _fifth(step, len(said))
            by_fifth[fifth] += one
    return {step: by_step[step] for step in sorted(by_step) if by_step[step].steps}, by_fifth


def _fifth(step: int, steps: int) -> int:
    return PARTS * step // steps


def _first_error(
    source: LabelSet, truth: LabelSet, problems: Sequence[str], *, draws: int, seed: int
) -> FirstErrorAgreement:
    pairs = [
        (first_error(said), first_error(fact)) for said, fact in zip(source.good, truth.good, strict=True)
    ]
    known = [
        (said, fact, problem)
        for (said, fact), problem in zip(pairs, problems, strict=True)
        if said is not None and fact is not None
    ]
    hits = np.array([said == fact for said, fact, _ in known], dtype=float)
    kinds = Counter(_kind(said, fact) for said, fact, _ in known)
    wrong, right = sum(fact >= 0 for _, fact, _ in known), sum(fact < 0 for _, fact, _ in known)
    on_wrong = kinds["exact"] / wrong if wrong else math.nan
    on_right = kinds["none_on_both"] / right if right else math.nan
    offsets = Counter(said - fact for said, fact, _ in known if said >= 0 and fact >= 0)
    accuracy = UNKNOWN
    if known:
        accuracy = bootstrap_statistic(
            [problem for *_, problem in known],
            lambda draw: float(hits[draw.items].mean()),
            draws=draws,
            rng=np.random.default_rng(seed),
        )
    return FirstErrorAgreement(
        accuracy=accuracy,
        accuracy_on_wrong=on_wrong,
        accuracy_on_right=on_right,
        f1=harmonic_mean(on_wrong, on_right),
        exact=kinds["exact"],
        none_on_both=kinds["none_on_both"],
        early=kinds["early"],
        late=kinds["late"],
        missed=kinds["missed"],
        false_alarm=kinds["false_alarm"],
        offsets={offset: offsets[offset] for offset in sorted(offsets)},
        traces=len(known),
        dropped=len(pairs) - len(known),
    )


def _kind(said: int, fact: int) -> str:
    if said == fact:
        return "none_on_both" if fact < 0 else "exact"
    if fact < 0:
        return "false_alarm"
    if said < 0:
        return "missed"
    return "early" if said < fact else "late"


def _soft(source: LabelSet, truth: LabelSet, bins: int, binning: Binning) -> SoftValues | None:
    """Over the steps with a value label; those without truth are counted as dropped."""
    rows = [
        (label.value, fact, step, _fifth(step, len(row)))
        for row, facts in zip(source.labels, truth.good, strict=True)
        for step, (label, fact) in enumerate(zip(row, facts, strict=True))
        if label is not None and label.kind == "value"
    ]
    if not rows:
        return None
    scores = np.array([value for value, *_ in rows], dtype=float)
    good = np.array([math.nan if fact is None else float(fact) for _, fact, *_ in rows])
    by_fifth = reliability_by(scores, good, [fifth for *_, fifth in rows], bins=bins, binning=binning)
    return SoftValues(
        auc=roc_auc(scores, good).value,
        auc_within_position=roc_auc_within(scores, good, [step for _, _, step, _ in rows]).value,
        calibration=reliability(scores, good, bins=bins, binning=binning),
        by_fifth={fifth: by_fifth[fifth] for fifth in range(PARTS) if fifth in by_fifth},
    )


def _value_errors(source: LabelSet, truth: LabelSet) -> ValueErrors | None:
    pairs = [
        (label.value, fact.value, label.evidence.interval)
        for row, facts in zip(source.labels, truth.labels, strict=True)
        for label, fact in zip(row, facts, strict=True)
        if label is not None and fact is not None and label.kind == fact.kind == "value"
    ]
    if not pairs:
        return None
    gaps = np.array([said - fact for said, fact, _ in pairs if said is not None and fact is not None])
    inside = [
        bounds[0] <= fact <= bounds[1] for _, fact, bounds in pairs if bounds is not None and fact is not None
    ]
    return ValueErrors(
        steps=len(gaps),
        bias=float(gaps.mean()),
        rmse=float(np.sqrt((gaps**2).mean())),
        intervals=len(inside),
        covered=sum(inside) / len(inside) if inside else math.nan,
    )
