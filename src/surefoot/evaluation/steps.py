"""The ProcessBench metric: the first step below a threshold against the labelled first error.

Scores are "higher is better". ``None`` or NaN means "not scored" and is never read as a low score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError

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
