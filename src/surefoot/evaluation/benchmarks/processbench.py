"""ProcessBench (Zheng et al., arXiv 2412.06559) for any number of scorers and judges, side by side.

The metric of one subset is in ``first_errors``; the overall result is the unweighted mean of the subsets'
F1s. A score below the threshold is an error; each result says how its threshold was fitted
(``surefoot.evaluation.splits``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.first_errors import (
    FirstErrorEvaluator,
    FirstErrors,
    Part,
    ProcessBenchCase,
    best_threshold,
    first_error_below,
)
from surefoot.evaluation.frame import Card, JudgedTrace, card
from surefoot.evaluation.report import JSONResult, Plot, Section
from surefoot.evaluation.splits import SPLIT, RuleScore, Thresholds, judged, rules_of
from surefoot.evaluation.step_scores import System, SystemCounts, recorded_by_all
from surefoot.labels import LabelRule, binary_labels, first_error
from surefoot.protocols import LabelledTrace
from surefoot.stats.intervals import Interval

Missing = Literal["leave-out", "wrong"]

_POSITION = "first error at step"


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
class ProcessBenchEvaluation(JSONResult):
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
                    system=system.name,
                    kind=system.kind,
                    rule=applied.rule,
                    thresholds=dict(applied.values),
                    fitted_on=applied.fitted_on,
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
    scores = [] if system.kind == "labels" else [system.scores[t] for t in used]
    counts = [sum(score is not None for score in row) for row in scores]
    partial = sum(0 < count < len(row) for count, row in zip(counts, scores, strict=True))

    def fit(members: list[int]) -> float:
        return best_threshold([scores[t] for t in members], [cases[t].label for t in members]).threshold

    problems, subsets = [c.trace.problem_id for c in cases], [c.subset for c in cases]
    for applied in rules_of(system, rules, problems, subsets, fit):
        predicted: list[int | None] = [
            first_error_below(row, threshold) if count else None
            for row, threshold, count in zip(scores, applied.of_trace, counts, strict=True)
        ]
        if system.kind == "labels":
            predicted = [first_error(system.good[t]) for t in used]
        yield applied, predicted, partial


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


def judged_traces(
    result: ProcessBenchEvaluation, cases: Sequence[ProcessBenchCase], systems: Sequence[System]
) -> Iterator[JudgedTrace]:
    """Erroneous traces and what the system that ranks first says of them, for worked examples."""
    lead = ranked(result)[0]
    system = {system.name: system for system in systems}[lead.system]
    for t, case in enumerate(cases):
        if case.label >= 0:
            yield judged(system, t, case.item, case.label, lead.thresholds)


def ranked(result: ProcessBenchEvaluation) -> list[ProcessBenchScore]:
    """The first rule of each system by its mean F1, highest first."""
    first = {score.system: score for score in reversed(result.scores)}
    return sorted(first.values(), key=lambda score: -score.average_f1.value)


def processbench_section(result: ProcessBenchEvaluation) -> Section:
    """F1 by subset and rule, and accuracy by generator, position and answer."""
    position = math.fsum(result.position_f1.values()) / len(result.position_f1)
    cards: dict[str, list[Card]] = {}
    for score in ranked(result):
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
            *["The first of several scorers is chosen on the data it is measured on."] * (len(cards) > 1),
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
