"""ProcessBench (Zheng et al., arXiv 2412.06559) for any number of scorers and judges, side by side.

The metric compares the first step below a threshold with the labelled first error; the overall result is the
unweighted mean of the subsets' F1s. Scores are "higher is better"; ``None`` or NaN means "not scored" and is
never read as a low score. Each result says how its threshold was fitted (``surefoot.evaluation.splits``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from surefoot.errors import LabelError
from surefoot.evaluation.frame import Card, card
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.splits import (
    CHOSEN_HERE,
    LABELLED,
    POSITIONS,
    SPLIT,
    RuleScore,
    Thresholds,
    position_of,
    ranked,
    threshold_above,
    thresholds,
)
from surefoot.evaluation.step_layout import FloatArray
from surefoot.evaluation.step_scores import System, SystemCounts, recorded_by_all
from surefoot.labels import LabelRule, binary_labels, first_error
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Trace
from surefoot.stats.bootstrap import Bootstrap, group_sums
from surefoot.stats.intervals import Interval

Missing = Literal["leave-out", "wrong"]

_POSITION = "first error at step"

StepScoreLists = Sequence[Sequence[float | None]]

Predicted = Sequence[int | None]
"""0-based index of the first error of each trace, -1 = none, ``None`` = no prediction."""


@dataclass(frozen=True, kw_only=True)
class ProcessBenchResult:
    """Accuracies and F1 as fractions in [0, 1]."""

    acc_error: float
    """Exact index of the first error, over erroneous traces; NaN without such traces."""
    acc_correct: float
    """No error reported, over correct traces; NaN without such traces."""
    f1: float
    """Harmonic mean of the two; 0 if both are 0, NaN if one is NaN."""
    errors: int
    corrects: int
    unscored: int
    """Traces without a single score; they count as wrong."""
    partial: int
    """Partly scored traces; they are judged on the scored steps."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A step is bad if its score is below ``threshold``; ``f1`` is the result on the tuning traces."""

    threshold: float
    f1: float


def first_error_below(scores: Sequence[float | None], threshold: float) -> int:
    """0-based index of the first step scored below ``threshold``; -1 if there is none (ProcessBench).

    Unscored steps are skipped.
    """
    for step, score in enumerate(scores):
        if score is not None and score < threshold:  # False for NaN
            return step
    return -1


def processbench_f1(
    step_scores: StepScoreLists, labels: Sequence[int], threshold: float
) -> ProcessBenchResult:
    """ProcessBench's F1 (arXiv 2412.06559): harmonic mean of the accuracies on wrong and on correct traces.

    ``step_scores`` has one list per trace; ``labels`` has the 0-based index of its first error, or -1. A
    trace without any score is an unparsed prediction and wrong, as in the paper; a partly scored one
    (published score files stop at the first error) is judged on its scores. Both are counted. Raises
    ``LabelError`` if lengths differ or a label is below -1.
    """
    _check_labels(step_scores, labels)
    predicted = predicted_errors(step_scores, repeat(threshold))
    totals = first_error_counts(predicted, labels).sum(axis=0)
    acc_error, acc_correct, f1 = f1_rates(totals[None, None])[0].tolist()
    return ProcessBenchResult(
        acc_error=acc_error,
        acc_correct=acc_correct,
        f1=f1,
        errors=int(totals[1]),
        corrects=int(totals[3]),
        unscored=predicted.count(None),
        partial=sum(0 < _scored(row) < len(row) for row in step_scores),
    )


def predicted_errors(step_scores: StepScoreLists, thresholds: Iterable[float]) -> list[int | None]:
    """The first step of each trace below its threshold, -1 for none, ``None`` without any score."""
    rows = zip(step_scores, thresholds, strict=False)
    return [first_error_below(row, threshold) if _scored(row) else None for row, threshold in rows]


def first_error_counts(predicted: Predicted, labels: ArrayLike) -> FloatArray:
    """Errors found, errors, correct traces without report, correct traces: [traces, 4], 1 or 0 each."""
    indices, truth = np.array([-2 if index is None else index for index in predicted]), np.asarray(labels)
    wrong, hit = truth >= 0, indices == truth
    return np.stack([wrong & hit, wrong, ~wrong & hit, ~wrong], axis=1).astype(float)


def best_threshold(step_scores: StepScoreLists, labels: Sequence[int]) -> Threshold:
    """The threshold with the highest ProcessBench F1, over every cut that separates two scores.

    Cuts lie midway between neighbouring distinct scores; the lowest of equally good ones wins (fewest steps
    flagged). F1 and the flagged steps do not change under a strictly increasing transform of the scores.
    The F1 is optimistic: apply the threshold to other traces. O(steps log steps). Raises ``LabelError`` if
    lengths differ or one class (correct, wrong) is absent, since F1 is then undefined at every cut.
    """
    _check_labels(step_scores, labels)
    corrects = sum(label < 0 for label in labels)
    if not 0 < corrects < len(labels):
        raise LabelError("a threshold needs both erroneous traces (label >= 0) and correct ones (label -1)")
    finite = [s for scores in step_scores for s in scores if s is not None and s < math.inf]
    distinct = np.unique(np.array(finite, dtype=float))
    # cut j flags the j lowest distinct scores; a trace is judged correctly on one range of cuts
    error_gain = np.zeros(len(distinct) + 2, dtype=int)
    correct_gain = np.zeros(len(distinct) + 2, dtype=int)
    for scores, label in zip(step_scores, labels, strict=True):
        if _scored(scores) and label < len(scores):
            start, stop = _hit_cuts(scores, label, distinct)
            gain = correct_gain if label < 0 else error_gain
            gain[start] += 1
            gain[stop] -= 1
    hits_error, hits_correct = error_gain.cumsum()[:-1], correct_gain.cumsum()[:-1]
    a, b = hits_error / (len(labels) - corrects), hits_correct / corrects
    f1 = np.divide(2 * a * b, a + b, out=np.zeros_like(a), where=(a + b) > 0)
    # equal F1 may differ in the last bit; the choice must not depend on it
    cut = int(np.flatnonzero(f1 >= f1.max() - 1e-12)[0])
    return Threshold(threshold=threshold_above(distinct, cut), f1=float(f1[cut]))


def _hit_cuts(scores: Sequence[float | None], label: int, distinct: FloatArray) -> tuple[int, int]:
    """Cuts [start, stop) at which the first flagged step is the labelled one."""
    values = np.array([math.inf if s is None or math.isnan(s) else s for s in scores], dtype=float)
    earlier = values[:label] if label >= 0 else values
    stop = int(np.searchsorted(distinct, earlier.min(initial=math.inf))) + 1
    start = int(np.searchsorted(distinct, values[label])) + 1 if label >= 0 else 0
    return min(start, stop), stop


def _scored(scores: Sequence[float | None]) -> int:
    return sum(score is not None and not math.isnan(score) for score in scores)


def _check_labels(step_scores: StepScoreLists, labels: Sequence[int]) -> None:
    if len(step_scores) != len(labels):
        raise LabelError(f"'step_scores' has {len(step_scores)} traces and 'labels' has {len(labels)}")
    for trace, label in enumerate(labels):
        if label < -1:
            raise LabelError(f"labels[{trace}] is {label}; give the 0-based index of the first error, or -1")


@dataclass(frozen=True, kw_only=True)
class ProcessBenchCase:
    """One trace of the benchmark."""

    item: LabelledTrace | ProblemTrace
    subset: str
    label: int
    """0-based index of the first error; -1 = none."""

    @property
    def trace(self) -> Trace:
        return self.item.trace


@dataclass(frozen=True, kw_only=True)
class FirstErrors:
    """Accuracy of predicted first errors over some traces; 95 % intervals over problems."""

    acc_error: Interval
    """Exact index, over erroneous traces."""
    acc_correct: Interval
    """None reported, over correct traces."""
    f1: Interval
    errors: int
    corrects: int
    early: int
    """Erroneous traces with a prediction before the first error."""
    late: int
    missed: int
    """Erroneous traces with none reported."""
    unparsed: int
    """Traces without a prediction; they count as wrong."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the traces, over all subsets."""

    by: str
    value: str
    found: FirstErrors


class FirstErrorEvaluator:
    """Compares any number of predictions with the truth of the same traces.

    All predictions get the same bootstrap samples of problems, so that differences are paired.
    """

    def __init__(self, cases: Sequence[ProcessBenchCase], *, draws: int, seed: int) -> None:
        self._cases, self._bootstrap = cases, Bootstrap(draws=draws, seed=seed)
        self._labels = np.array([case.label for case in cases])
        self._problems = [case.trace.problem_id for case in cases]
        self.subsets: Mapping[str, Sequence[int]] = _groups([case.subset for case in cases])
        """Indices of the traces of each subset."""
        self._parts = _parts(cases)

    def evaluate(self, predicted: Predicted, members: Sequence[int]) -> FirstErrors:
        """Over the traces of these indices, of which there must be at least one."""
        counts = self._by_problem(self._counts(predicted), members)
        acc_error, acc_correct, f1 = self._bootstrap.totals([counts], f1_rates)
        wrong = [(self._cases[t].label, predicted[t]) for t in members if self._cases[t].label >= 0]
        return FirstErrors(
            acc_error=acc_error,
            acc_correct=acc_correct,
            f1=f1,
            errors=len(wrong),
            corrects=len(members) - len(wrong),
            early=sum(index is not None and 0 <= index < label for label, index in wrong),
            late=sum(index is not None and index > label for label, index in wrong),
            missed=sum(index == -1 for _, index in wrong),
            unparsed=sum(predicted[t] is None for t in members),
        )

    def parts(self, predicted: Predicted) -> tuple[Part, ...]:
        """By generator, position of the first error, length without one, and final answer."""
        return tuple(
            Part(by=by, value=value, found=self.evaluate(predicted, members))
            for by, values in self._parts.items()
            for value, members in values.items()
            if members
        )

    def average_f1(self, predicted: Predicted) -> Interval:
        """Unweighted mean of the subsets' F1s."""
        return self._average(self._counts(predicted), _average_f1)

    def difference(self, predicted: Predicted, other: Predicted) -> Interval:
        """Mean F1 of ``predicted`` less the mean F1 of ``other``, paired by problem."""
        both = np.concatenate([self._counts(predicted), self._counts(other)], axis=1)
        return self._average(both, lambda t: _average_f1(t[..., :4]) - _average_f1(t[..., 4:]))

    def _counts(self, predicted: Predicted) -> FloatArray:
        return first_error_counts(predicted, self._labels)

    def _by_problem(self, counts: FloatArray, members: Sequence[int]) -> FloatArray:
        return group_sums(counts[list(members)], [self._problems[t] for t in members])

    def _average(self, counts: FloatArray, statistic: Callable[[FloatArray], FloatArray]) -> Interval:
        """Over all subsets, with problems sampled within each."""
        strata = [self._by_problem(counts, members) for members in self.subsets.values()]
        return self._bootstrap.totals(strata, statistic)[0]


def f1_rates(totals_ns4: FloatArray) -> FloatArray:
    """Accuracy on errors, on correct traces, and F1 of the first stratum: [n, 3]."""
    return np.stack([rate[:, 0] for rate in _f1(totals_ns4)], axis=1)


def _average_f1(totals_ns4: FloatArray) -> FloatArray:
    """[n, 1]."""
    average: FloatArray = _f1(totals_ns4)[2].mean(axis=1, keepdims=True)
    return average


def _f1(totals_ns4: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Both accuracies and F1, each [n, strata]."""
    hit_error, errors, hit_correct, corrects = np.moveaxis(totals_ns4, -1, 0)
    with np.errstate(invalid="ignore"):  # 0/0 is undefined, so NaN is intended
        a, b = hit_error / errors, hit_correct / corrects
        return a, b, np.where(a + b == 0, 0.0, 2 * a * b / (a + b))


def _parts(cases: Sequence[ProcessBenchCase]) -> dict[str, dict[str, list[int]]]:
    """Indices of the traces of each part."""
    errors = [t for t, case in enumerate(cases) if case.label >= 0]
    corrects = [t for t, case in enumerate(cases) if case.label < 0]

    def binned(members: Sequence[int], number: Callable[[ProcessBenchCase], int]) -> dict[str, list[int]]:
        bins: dict[str, list[int]] = {name: [] for name in POSITIONS}
        for t in members:
            bins[position_of(number(cases[t]))].append(t)
        return bins

    return {
        "generator": _groups([case.trace.policy or "unknown" for case in cases]),
        "first error at step": binned(errors, lambda case: case.label),
        "steps of a correct trace": binned(corrects, lambda case: len(case.trace.steps)),
        "answer of an erroneous trace": {
            name: [t for t in errors if cases[t].trace.outcome is outcome]
            for name, outcome in (("right", True), ("wrong", False), ("unknown", None))
        },
    }


def _groups(keys: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return groups


@dataclass(frozen=True, kw_only=True)
class ProcessBenchScore(RuleScore):
    """One system under one rule for its threshold."""

    seen: str | None
    """Subset that the threshold was fitted on; its results are optimistic."""
    average_f1: Interval
    """Unweighted mean of the subsets' F1s."""
    difference: Interval | None
    """``average_f1`` less the first system's (same rule, if it has it), paired by problem."""
    subsets: Mapping[str, FirstErrors]
    parts: tuple[Part, ...]
    partial: int
    """Partly scored traces; they are judged on the scored steps."""


@dataclass(frozen=True, kw_only=True)
class ProcessBenchEvaluation:
    """All systems over the same traces."""

    traces: int
    problems: int
    left_out: int
    """Traces without a record of some system; no system is judged on them."""
    subsets: Mapping[str, int]
    """Traces of each subset."""
    position_f1: Mapping[str, float]
    """F1 of the best predictor that does not read the trace (:func:`position_f1`), by subset."""
    systems: tuple[SystemCounts, ...]
    scores: tuple[ProcessBenchScore, ...]


def processbench_cases(data: Mapping[str, Sequence[LabelledTrace]]) -> list[ProcessBenchCase]:
    """Traces by subset with the index of their first error, from their correctness labels.

    Raises ``LabelError`` for a trace whose first error is unknown because of an unlabelled step, and for
    duplicate ids.
    """
    cases = [
        ProcessBenchCase(item=item, subset=subset, label=_label(item))
        for subset, items in data.items()
        for item in items
    ]
    seen: set[str] = set()
    for case in cases:
        if case.trace.id in seen:
            raise LabelError(f"trace {case.trace.id} occurs twice in the data; give each file once")
        seen.add(case.trace.id)
    return cases


def evaluate_processbench(
    cases: Sequence[ProcessBenchCase],
    systems: Sequence[System],
    *,
    rules: Sequence[str | float] = (SPLIT, 0.5),
    missing: Missing = "leave-out",
    draws: int = 1000,
    seed: int = 0,
) -> ProcessBenchEvaluation:
    """Compare ``systems`` (aligned with the traces of ``cases``) with the truth under each rule.

    A judge predicts its first bad step; an earlier step without verdict makes the prediction unparsed, as
    does a trace without any score for a scorer. Both count as wrong, as in the paper. A trace without a
    record of some system is left out for every system, or counts as wrong, by ``missing``. Thresholds stay
    fixed while problems are resampled.

    Raises ``LabelError`` for no cases or systems, and where a threshold cannot be fitted; ``ScoreError`` if
    no trace has a record of every system.
    """
    if not cases or not systems:
        raise LabelError("give at least one trace and one scorer or judge")
    used = recorded_by_all(systems) if missing == "leave-out" else list(range(len(cases)))
    evaluated = [cases[t] for t in used]
    evaluator = FirstErrorEvaluator(evaluated, draws=draws, seed=seed)
    scores: list[ProcessBenchScore] = []
    first: dict[str, list[int | None]] = {}
    for system in systems:
        for applied, predicted, partial in _predictions(system, used, evaluated, rules):
            if is_first := system is systems[0]:
                first[applied.rule] = predicted
            reference = first.get(applied.rule) or next(iter(first.values()))
            scores.append(
                ProcessBenchScore(
                    **applied.of(system),
                    seen=applied.seen,
                    average_f1=evaluator.average_f1(predicted),
                    difference=None if is_first else evaluator.difference(predicted, reference),
                    subsets={
                        name: evaluator.evaluate(predicted, members)
                        for name, members in evaluator.subsets.items()
                    },
                    parts=evaluator.parts(predicted),
                    partial=partial,
                )
            )
    return ProcessBenchEvaluation(
        traces=len(evaluated),
        problems=len({case.trace.problem_id for case in evaluated}),
        left_out=len(cases) - len(evaluated),
        subsets={name: len(members) for name, members in evaluator.subsets.items()},
        position_f1={
            name: position_f1([evaluated[t].label for t in members])
            for name, members in evaluator.subsets.items()
        },
        systems=tuple(system.summary() for system in systems),
        scores=tuple(scores),
    )


def _predictions(
    system: System, used: Sequence[int], cases: Sequence[ProcessBenchCase], rules: Sequence[str | float]
) -> Iterator[tuple[Thresholds, list[int | None], int]]:
    """Under each rule the thresholds, the predicted first errors, and the number of partly scored traces."""
    if system.kind == "labels":
        yield LABELLED, [first_error(system.good[t]) for t in used], 0
        return
    scores = [system.scores[t] for t in used]
    partial = sum(0 < _scored(row) < len(row) for row in scores)

    def fit(members: list[int]) -> float:
        return best_threshold([scores[t] for t in members], [cases[t].label for t in members]).threshold

    for rule in rules:
        applied = thresholds(rule, [c.trace.problem_id for c in cases], [c.subset for c in cases], fit)
        yield applied, predicted_errors(scores, applied.of_trace), partial


def _label(item: LabelledTrace) -> int:
    rule = LabelRule(neutral="good", good_above=None)
    first = first_error([label.good for label in binary_labels(item.labels, len(item.trace.steps), rule)])
    if first is None:
        raise LabelError(
            f"trace {item.trace.id}: a step without a correctness label hides its first error; "
            "label every step up to the first error"
        )
    return first


def position_f1(labels: Sequence[int]) -> float:
    """The highest F1 of a predictor that does not read the trace: a fixed step, at random, or none.

    With q, the largest share of erroneous traces whose first error is at one step, it reports this step with
    chance 1 - p and no error with chance p. F1 is highest, 2q / (1 + sqrt(q))^2, at
    p = sqrt(q) / (1 + sqrt(q)). NaN without erroneous traces.
    """
    errors = Counter(label for label in labels if label >= 0)
    if not errors:
        return math.nan
    share = max(errors.values()) / errors.total()
    return 2 * share / (1 + math.sqrt(share)) ** 2


def processbench_section(result: ProcessBenchEvaluation) -> Section:
    """F1 by subset and rule, and accuracy by generator, position and answer."""
    position = math.fsum(result.position_f1.values()) / len(result.position_f1)
    cards: dict[str, list[Card]] = {}
    for score in ranked(result.scores, lambda score: score.average_f1.value):
        gains = {name: part.f1.value - result.position_f1[name] for name, part in score.subsets.items()}
        hardest = min(gains, key=lambda name: gains[name])
        blind = result.position_f1[hardest]
        reads = (
            f"is the mean F1 of the first error (rule {score.rule}). The best predictor that does not read "
            f"the solution has {position:.2f}."
        )
        trust = f"is the F1 on {hardest}, its weakest subset; without reading it would be {blind:.2f}."
        weakest = score.subsets[hardest].f1, trust, result.subsets[hardest], "traces"
        cards[score.system] = [card("reads", score.average_f1, reads, result.problems, null=position)]
        cards[score.system] += [card("trust", *weakest, null=blind)] * (len(gains) > 1)
    return Section(
        title="ProcessBench",
        tested="wrong steps on public benchmarks",
        about=f"{result.traces} traces of {result.problems} problems; {result.left_out} left out because a "
        "source lacks a record of them. F1 is the harmonic mean of the accuracy on erroneous traces (exact "
        "index of the first error) and on correct ones (none reported); a trace without a prediction "
        "counts as wrong. Rule 'split': the threshold was fitted on the other half of the problems. A "
        "subset's name: it was fitted on this subset, where the result is optimistic, and applied to all. "
        f"Intervals are 95 %, by bootstrap over problems within each "
        "subset, with fixed thresholds.",
        results=result,
        cards=cards,
        limits=[
            f"{result.traces} traces of {result.problems} problems of mathematics; {result.left_out} left "
            "out because a source lacks a record of them.",
            *[CHOSEN_HERE] * (len(cards) > 1),
        ],
        plots=[
            Plot("scores", "Mean F1 of the subsets with 95 % intervals.", y=("average_f1",)),
            Plot(
                "scores.parts.found",
                "Share of first errors found at the exact step, by the number of that step.",
                x="value",
                y=("acc_error",),
                where={"by": (_POSITION,)},
            ),
        ],
    )
