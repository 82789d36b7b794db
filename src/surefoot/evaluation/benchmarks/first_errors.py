"""The ProcessBench metric: the first step below a threshold against the labelled first error.

Scores are "higher is better". ``None`` or NaN means "not scored" and is never read as a low score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.records import Trace
from surefoot.stats.bootstrap import bootstrap_totals
from surefoot.stats.intervals import Interval

StepScoreLists = Sequence[Sequence[float | None]]


@dataclass(frozen=True, kw_only=True)
class ProcessBenchResult:
    """Accuracies and F1 as fractions in [0, 1]."""

    acc_error: float
    """Exact index of the first error, among erroneous traces; NaN without such traces."""
    acc_correct: float
    """No error reported, among correct traces; NaN without such traces."""
    f1: float
    """Harmonic mean of the two; 0 if both are 0, NaN if one is NaN."""
    errors: int
    corrects: int
    unscored: int
    """Traces without a single score; they count as wrong."""
    partial: int
    """Traces with scores for some steps only; they are judged on those."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A step is bad if its score is below ``threshold``; ``f1`` is what that gave on the tuning traces."""

    threshold: float
    f1: float


def first_error_below(scores: Sequence[float | None], threshold: float) -> int:
    """0-based index of the first step scored below ``threshold``; -1 if there is none (ProcessBench).

    An unscored step is passed over, neither good nor bad.
    """
    for step, score in enumerate(scores):
        if score is not None and score < threshold:  # False for NaN
            return step
    return -1


def processbench_f1(
    step_scores: StepScoreLists, labels: Sequence[int], threshold: float
) -> ProcessBenchResult:
    """ProcessBench's F1 (arXiv 2412.06559): harmonic mean of the accuracies on wrong and on right traces.

    ``step_scores`` has one list a trace; ``labels`` has the 0-based index of its first error, or -1. A
    trace without any score stands for an unparsed prediction and is wrong, as in the paper; one scored in
    part (published score files stop at the first error) is judged on the scores it has. Both are counted.
    Raises ``LabelError`` if lengths differ or a label is below -1.
    """
    _check_labels(step_scores, labels)
    scored = [_scored(scores) for scores in step_scores]
    right = [
        bool(known) and first_error_below(scores, threshold) == label
        for scores, label, known in zip(step_scores, labels, scored, strict=True)
    ]
    errors = [hit for hit, label in zip(right, labels, strict=True) if label >= 0]
    corrects = [hit for hit, label in zip(right, labels, strict=True) if label < 0]
    acc_error, acc_correct = _share(sum(errors), len(errors)), _share(sum(corrects), len(corrects))
    partial = sum(0 < known < len(scores) for known, scores in zip(scored, step_scores, strict=True))
    return ProcessBenchResult(
        acc_error=acc_error,
        acc_correct=acc_correct,
        f1=harmonic_mean(acc_error, acc_correct),
        errors=len(errors),
        corrects=len(corrects),
        unscored=scored.count(0),
        partial=partial,
    )


def best_threshold(step_scores: StepScoreLists, labels: Sequence[int]) -> Threshold:
    """The threshold with the highest ProcessBench F1, over every cut that tells two scores apart.

    Cuts lie midway between neighbouring distinct scores; among equals the lowest wins (fewest steps
    flagged). F1 and the flagged steps do not change under a strictly increasing transform of the scores.
    The F1 is optimistic: apply the threshold to other traces. O(steps log steps). Raises ``LabelError`` if
    lengths differ or one class (right, wrong) is absent, since F1 is then undefined at every cut.
    """
    _check_labels(step_scores, labels)
    corrects = sum(label < 0 for label in labels)
    if not 0 < corrects < len(labels):
        raise LabelError("a threshold needs both erroneous traces (label >= 0) and correct ones (label -1)")
    known = [s for scores in step_scores for s in scores if s is not None and s < math.inf]
    distinct = np.unique(np.array(known, dtype=float))
    # cut j flags the j lowest distinct scores; each trace is right on one run of cuts (start, stop)
    error_gain = np.zeros(len(distinct) + 2, dtype=int)
    correct_gain = np.zeros(len(distinct) + 2, dtype=int)
    for scores, label in zip(step_scores, labels, strict=True):
        if _scored(scores) and label < len(scores):
            start, stop = _right_cuts(scores, label, distinct)
            gain = correct_gain if label < 0 else error_gain
            gain[start] += 1
            gain[stop] -= 1
    hits_error, hits_correct = error_gain.cumsum()[:-1], correct_gain.cumsum()[:-1]
    a, b = hits_error / (len(labels) - corrects), hits_correct / corrects
    f1 = np.divide(2 * a * b, a + b, out=np.zeros_like(a), where=(a + b) > 0)
    # equal F1 may differ in the last bit; the lowest of equals must not depend on it
    cut = int(np.flatnonzero(f1 >= f1.max() - 1e-12)[0])
    return Threshold(threshold=_value_of_cut(cut, distinct), f1=float(f1[cut]))


def harmonic_mean(a: float, b: float) -> float:
    """2ab / (a + b) for non-negative a and b; 0 where both are 0, NaN where one is NaN."""
    return 0.0 if a + b == 0 else 2 * a * b / (a + b)


def _right_cuts(scores: Sequence[float | None], label: int, distinct: NDArray[np.float64]) -> tuple[int, int]:
    """Cuts [start, stop) at which the trace's first flagged step is the labelled one."""
    values = np.array([math.inf if s is None or math.isnan(s) else s for s in scores], dtype=float)
    before = values[:label] if label >= 0 else values
    stop = int(np.searchsorted(distinct, before.min(initial=math.inf))) + 1
    start = int(np.searchsorted(distinct, values[label])) + 1 if label >= 0 else 0
    return min(start, stop), stop


def _value_of_cut(cut: int, distinct: NDArray[np.float64]) -> float:
    if not len(distinct) or cut == len(distinct):
        return math.nextafter(distinct[-1], math.inf) if len(distinct) else 0.0
    if cut == 0:
        return float(distinct[0])
    below, above = float(distinct[cut - 1]), float(distinct[cut])
    middle = below / 2 + above / 2
    return middle if below < middle <= above else above  # neighbouring floats have no middle


def _scored(scores: Sequence[float | None]) -> int:
    return sum(score is not None and not math.isnan(score) for score in scores)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _check_labels(step_scores: StepScoreLists, labels: Sequence[int]) -> None:
    if len(step_scores) != len(labels):
        raise LabelError(f"'step_scores' has {len(step_scores)} traces and 'labels' has {len(labels)}")
    for trace, label in enumerate(labels):
        if label < -1:
            raise LabelError(f"labels[{trace}] is {label}; give the 0-based index of the first error, or -1")


FloatArray = NDArray[np.float64]

Predicted = Sequence[int | None]
"""0-based index of the first error of each trace, -1 = none, ``None`` = no prediction."""

_BINS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 9), (10, None))
"""Numbers, from and to, that are shown together."""


@dataclass(frozen=True, kw_only=True)
class ProcessBenchCase:
    """One trace of the benchmark."""

    trace: Trace
    subset: str
    label: int
    """0-based index of the first error; -1 = none."""


@dataclass(frozen=True, kw_only=True)
class FirstErrors:
    """How well first errors were found in some traces; 95 % intervals over problems."""

    acc_error: Interval
    """Exact index, among erroneous traces."""
    acc_correct: Interval
    """None reported, among correct traces."""
    f1: Interval
    errors: int
    corrects: int
    early: int
    """Erroneous traces in which an earlier step is reported."""
    late: int
    missed: int
    """Erroneous traces in which none is reported."""
    unparsed: int
    """Traces without a prediction; they count as wrong."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the traces, over all subsets."""

    by: str
    value: str
    found: FirstErrors


class FirstErrorEvaluator:
    """The traces, on which any number of predictions are held against the truth.

    All predictions get the same bootstrap draws of problems, so that differences are paired.
    """

    def __init__(self, cases: Sequence[ProcessBenchCase], *, draws: int, seed: int) -> None:
        self._cases, self._draws, self._seed = cases, draws, seed
        self.subsets: Mapping[str, Sequence[int]] = _groups([case.subset for case in cases])
        """Indices of the traces of each subset."""
        self._parts = _parts(cases)

    def evaluate(self, predicted: Predicted, members: Sequence[int]) -> FirstErrors:
        """Over the traces of these indices, which must not be none."""
        counts = [_by_problem(self._counts(predicted), self._problems(), members)]
        rng = np.random.default_rng(self._seed)
        intervals = bootstrap_totals(counts, _rates, draws=self._draws, rng=rng)
        wrong = [(self._cases[t].label, predicted[t]) for t in members if self._cases[t].label >= 0]
        return FirstErrors(
            acc_error=intervals[0],
            acc_correct=intervals[1],
            f1=intervals[2],
            errors=len(wrong),
            corrects=len(members) - len(wrong),
            early=sum(said is not None and 0 <= said < label for label, said in wrong),
            late=sum(said is not None and said > label for label, said in wrong),
            missed=sum(said == -1 for _, said in wrong),
            unparsed=sum(predicted[t] is None for t in members),
        )

    def parts(self, predicted: Predicted) -> tuple[Part, ...]:
        """By generator, place of the first error, length without one, and final answer."""
        return tuple(
            Part(by=by, value=value, found=self.evaluate(predicted, members))
            for by, values in self._parts.items()
            for value, members in values.items()
        )

    def average_f1(self, predicted: Predicted) -> Interval:
        """Unweighted mean of the subsets' F1s."""
        return self._interval(self._counts(predicted), _average_f1)

    def difference(self, predicted: Predicted, other: Predicted) -> Interval:
        """Mean F1 of ``predicted`` less that of ``other``, paired by problem."""
        both = np.concatenate([self._counts(predicted), self._counts(other)], axis=1)
        return self._interval(both, lambda t: _average_f1(t[..., :4]) - _average_f1(t[..., 4:]))

    def _counts(self, predicted: Predicted) -> FloatArray:
        """Errors found, errors, correct traces left alone, correct traces: [traces, 4], ones and zeros."""
        labels = np.array([case.label for case in self._cases])
        said = np.array([-2 if index is None else index for index in predicted])
        wrong, right = labels >= 0, said == labels
        return np.stack([wrong & right, wrong, ~wrong & right, ~wrong], axis=1).astype(float)

    def _interval(self, counts: FloatArray, statistic: Callable[[FloatArray], FloatArray]) -> Interval:
        """Over all subsets, problems drawn within each."""
        strata = [_by_problem(counts, self._problems(), members) for members in self.subsets.values()]
        rng = np.random.default_rng(self._seed)
        return bootstrap_totals(strata, statistic, draws=self._draws, rng=rng)[0]

    def _problems(self) -> list[str]:
        return [case.trace.problem_id for case in self._cases]


def _by_problem(counts: FloatArray, problems: Sequence[str], members: Sequence[int]) -> FloatArray:
    """Sums over the traces of each problem: [problems, columns]."""
    index: dict[str, int] = {}
    rows = [index.setdefault(problems[t], len(index)) for t in members]
    sums = np.zeros((len(index), counts.shape[1]))
    np.add.at(sums, rows, counts[list(members)])
    return sums


def _rates(totals_ns4: FloatArray) -> FloatArray:
    """Accuracy on errors, on correct traces, and F1 of the first stratum: [n, 3]."""
    return np.stack([rate[:, 0] for rate in _f1(totals_ns4)], axis=1)


def _average_f1(totals_ns4: FloatArray) -> FloatArray:
    """[n, 1]."""
    average: FloatArray = _f1(totals_ns4)[2].mean(axis=1, keepdims=True)
    return average


def _f1(totals_ns4: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Both accuracies and F1, each [n, strata]."""
    hit_error, errors, hit_correct, corrects = np.moveaxis(totals_ns4, -1, 0)
    with np.errstate(invalid="ignore"):  # 0/0 is NaN here, and means it
        a, b = hit_error / errors, hit_correct / corrects
        return a, b, np.where(a + b == 0, 0.0, 2 * a * b / (a + b))


def _parts(cases: Sequence[ProcessBenchCase]) -> dict[str, dict[str, list[int]]]:
    """Members of the parts; an empty part is left out."""
    errors = [t for t, case in enumerate(cases) if case.label >= 0]
    corrects = [t for t, case in enumerate(cases) if case.label < 0]
    answers = [(t, cases[t].trace.outcome) for t in errors]
    parts = {
        "generator": _groups([case.trace.policy or "unknown" for case in cases]),
        "first error at step": _binned(errors, [cases[t].label for t in errors]),
        "steps of a correct trace": _binned(corrects, [len(cases[t].trace.steps) for t in corrects]),
        "answer of an erroneous trace": {
            name: [t for t, outcome in answers if outcome is wanted]
            for name, wanted in (("right", True), ("wrong", False), ("unknown", None))
        },
    }
    return {by: {value: own for value, own in values.items() if own} for by, values in parts.items()}


def _binned(members: Sequence[int], numbers: Sequence[int]) -> dict[str, list[int]]:
    bins: dict[str, list[int]] = {}
    for low, high in _BINS:
        name = f"{low}+" if high is None else f"{low}" if high == low else f"{low}-{high}"
        top = math.inf if high is None else high
        bins[name] = [t for t, number in zip(members, numbers, strict=True) if low <= number <= top]
    return bins


def _groups(keys: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return groups
