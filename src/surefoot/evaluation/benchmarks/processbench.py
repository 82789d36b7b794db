"""ProcessBench (Zheng et al., arXiv 2412.06559) for any number of scorers and judges, side by side.

The metric of a subset is in ``first_errors``; over subsets it is the unweighted mean of their F1s. A score
below the threshold is an error; each figure says where the threshold comes from
(``surefoot.evaluation.splits``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.first_errors import (
    FirstErrorEvaluator,
    FirstErrors,
    Part,
    ProcessBenchCase,
    best_threshold,
    first_error_below,
)
from surefoot.evaluation.plots import interval_figure, position_figure, wrapped
from surefoot.evaluation.report import Column, JSONResult, Report
from surefoot.evaluation.splits import SPLIT, Thresholds, thresholds
from surefoot.evaluation.step_scores import System, SystemCounts, recorded_by_all
from surefoot.labels import LabelRule, binary_labels, first_error
from surefoot.protocols import LabelledTrace
from surefoot.stats.intervals import Cell, Interval

Missing = Literal["leave-out", "wrong"]

AS_LABELLED = "as labelled"
"""The rule of a judge, which has no threshold."""


@dataclass(frozen=True, kw_only=True)
class ProcessBenchScore:
    """One system under one rule for its threshold."""

    system: str
    kind: Literal["scores", "labels"]
    rule: str
    thresholds: Mapping[str, float]
    """What was applied to what; empty for labels."""
    fitted_on: str
    seen: str | None
    """Subset that the threshold was fitted on and whose figures are therefore optimistic."""
    average_f1: Interval
    """Unweighted mean of the subsets' F1s."""
    difference: Interval | None
    """``average_f1`` less that of the first system (same rule, if it has it), paired by problem."""
    subsets: Mapping[str, FirstErrors]
    parts: tuple[Part, ...]
    partial: int
    """Traces with scores for some steps only; they are judged on those."""


@dataclass(frozen=True, kw_only=True)
class ProcessBenchEvaluation(JSONResult):
    """All systems over the same traces."""

    traces: int
    problems: int
    left_out: int
    """Traces of which some system has no record; no system is judged on them."""
    subsets: Mapping[str, int]
    """Traces of each subset."""
    systems: tuple[SystemCounts, ...]
    scores: tuple[ProcessBenchScore, ...]
    settings: Mapping[str, Any]


def processbench_cases(data: Mapping[str, Sequence[LabelledTrace]]) -> list[ProcessBenchCase]:
    """Traces by subset with the index of their first error, from their correctness labels.

    Raises ``LabelError`` for a trace in which a step without label leaves the first error open, and for an
    id that occurs twice.
    """
    cases = [
        ProcessBenchCase(trace=item.trace, subset=subset, label=_label(item))
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
    """Hold ``systems`` (laid beside the traces of ``cases``, in order) against the truth under each rule.

    A judge's prediction is its first bad step; it is unparsed if a step without verdict leaves that open. A
    scorer's is if no step has a score. Both count as wrong, as in the paper. ``missing`` says what a trace is
    of which a system has no record at all: left out for every system, or wrong. Thresholds are held while
    problems are resampled.

    Raises ``LabelError`` for no cases or systems, and where a threshold cannot be fitted; ``ScoreError`` if
    no trace has a record of every system.
    """
    if not cases or not systems:
        raise LabelError("give at least one trace and one scorer or judge")
    kept = recorded_by_all(systems) if missing == "leave-out" else list(range(len(cases)))
    used = [cases[t] for t in kept]
    evaluator = FirstErrorEvaluator(used, draws=draws, seed=seed)
    entries = [entry for system in systems for entry in _entries(system, kept, used, rules)]
    firsts = {entry.rule: entry for entry in entries if entry.system is systems[0]}
    other = next(iter(firsts.values()))
    return ProcessBenchEvaluation(
        traces=len(used),
        problems=len({case.trace.problem_id for case in used}),
        left_out=len(cases) - len(used),
        subsets={name: len(members) for name, members in evaluator.subsets.items()},
        systems=tuple(system.summary() for system in systems),
        scores=tuple(_score(evaluator, entry, firsts.get(entry.rule, other)) for entry in entries),
        settings={"rules": list(rules), "missing": missing, "draws": draws, "seed": seed},
    )


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """Predictions of one system under one rule."""

    system: System
    rule: str
    applied: Thresholds | None
    predicted: list[int | None]
    partial: int


def _entries(
    system: System, kept: Sequence[int], cases: Sequence[ProcessBenchCase], rules: Sequence[str | float]
) -> list[_Entry]:
    if system.kind == "labels":
        predicted = [first_error(system.good[t]) for t in kept]
        return [_Entry(system=system, rule=AS_LABELLED, applied=None, predicted=predicted, partial=0)]
    scores = [system.scores[t] for t in kept]
    known = [sum(score is not None for score in row) for row in scores]
    partial = sum(0 < count < len(row) for count, row in zip(known, scores, strict=True))

    def fit(members: list[int]) -> float:
        return best_threshold([scores[t] for t in members], [cases[t].label for t in members]).threshold

    entries = []
    for rule in rules:
        applied = thresholds(rule, [c.trace.problem_id for c in cases], [c.subset for c in cases], fit)
        rows = zip(scores, applied.of_trace, known, strict=True)
        said = [first_error_below(row, cut) if count else None for row, cut, count in rows]
        entries.append(
            _Entry(system=system, rule=applied.rule, applied=applied, predicted=said, partial=partial)
        )
    return entries


def _score(evaluator: FirstErrorEvaluator, entry: _Entry, reference: _Entry) -> ProcessBenchScore:
    applied, said = entry.applied, entry.predicted
    is_first = entry.system is reference.system
    return ProcessBenchScore(
        system=entry.system.name,
        kind=entry.system.kind,
        rule=entry.rule,
        thresholds=dict(applied.values) if applied else {},
        fitted_on=applied.fitted_on if applied else "labels have no threshold",
        seen=applied.seen if applied else None,
        average_f1=evaluator.average_f1(said),
        difference=None if is_first else evaluator.difference(said, reference.predicted),
        subsets={name: evaluator.evaluate(said, members) for name, members in evaluator.subsets.items()},
        parts=evaluator.parts(said),
        partial=entry.partial,
    )


def _label(item: LabelledTrace) -> int:
    rule = LabelRule(neutral="good", good_above=None)
    first = first_error([label.good for label in binary_labels(item.labels, len(item.trace.steps), rule)])
    if first is None:
        raise LabelError(
            f"trace {item.trace.id}: a step without a correctness label leaves its first error open; "
            "label every step up to the first error"
        )
    return first


_POSITION = "first error at step"

MAX_LINES = 10
"""Lines that a figure can hold and still be read."""


def write_processbench_report(result: ProcessBenchEvaluation, path: Path) -> Report:
    """One page: records, F1 by subset and rule, accuracy by generator, place and answer, with figures."""
    report = Report("ProcessBench")
    report.text(
        f"{result.traces} traces of {result.problems} problems; {result.left_out} left out because a source "
        f"has no record of them. Intervals are 95 %, from {result.settings['draws']} bootstrap draws of "
        "problems within each subset, with the thresholds held.",
        printed=True,
    )
    sources_table(report, result.systems)
    report.heading("F1")
    report.text(
        "Harmonic mean of the accuracy on erroneous traces (exact index of the first error) and on correct "
        "ones (none reported). Rule 'split': the threshold was fitted on the other half of the problems. A "
        "subset's name: fitted on that subset, on which the figure is optimistic, and applied to all. A "
        "trace without a prediction is wrong.",
        printed=True,
    )
    _f1_table(report, result.scores)
    rows = {f"{s.system}, {s.rule}": s.average_f1 for s in result.scores}
    report.figure(interval_figure(rows, "mean F1"), "Mean F1 of the subsets with 95 % intervals.")
    _subset_table(report, result.scores)
    _part_tables(report, result.scores)
    return report.write(path)


def sources_table(report: Report, systems: Sequence[SystemCounts]) -> None:
    """What the records of each source are, and what they cost."""
    report.heading("Sources").records(
        "Of two records of one trace (labels: of one step) the last counts; foreign ones are of other traces",
        systems,
        {
            "source": "name",
            "kind": "kind",
            "records": "counts.records",
            "foreign": "counts.foreign",
            "superseded": "counts.superseded",
            "steps without value": "counts.without_value",
            "traces without record": "traces_without_record",
            "lines skipped": "counts.skipped_lines",
            "policy tokens": lambda s: s.usage.prompt_tokens + s.usage.completion_tokens,
            "verifier tokens": "usage.verifier_tokens",
        },
        printed=7,
    )


def thresholds_text(values: Mapping[str, float]) -> str:
    """The thresholds, and what they apply to where there are several."""
    if len(values) == 1:
        return ", ".join(f"{value:.4g}" for value in values.values())
    return ", ".join(f"{name}: {value:.4g}" for name, value in values.items())


def _f1_table(report: Report, scores: Sequence[ProcessBenchScore]) -> None:
    columns: dict[str, Column[ProcessBenchScore]] = {
        "source": "system",
        "rule": "rule",
        "threshold": lambda s: thresholds_text(s.thresholds),
    }
    columns |= {name: lambda s, name=name: s.subsets[name].f1 for name in scores[0].subsets}  # type: ignore[misc]
    columns |= {
        "mean": "average_f1",
        "less the first source": "difference",
        "unparsed": lambda s: sum(part.unparsed for part in s.subsets.values()),
        "partly scored": "partial",
        "fitted on": "fitted_on",
    }
    report.records(
        "F1 by subset and their unweighted mean; the difference is paired by problem, under the same rule",
        scores,
        columns,
        spec=".1%",
        printed=len(columns) - 2,
    )


def _subset_table(report: Report, scores: Sequence[ProcessBenchScore]) -> None:
    counts = ("early", "late", "missed", "unparsed")
    report.table(
        ["source", "rule", "subset", "on erroneous", "on correct", "erroneous", "correct", *counts],
        [
            [
                *(s.system, s.rule, name, part.acc_error, part.acc_correct, part.errors, part.corrects),
                *(part.early, part.late, part.missed, part.unparsed),
            ]
            for s in scores
            for name, part in s.subsets.items()
        ],
        "Accuracy on each kind of trace, and where the first error was seen when it was not found",
    )


def _part_tables(report: Report, scores: Sequence[ProcessBenchScore]) -> None:
    """One rule a source, its first: the others are in the JSON file."""
    firsts = list({s.system: s for s in reversed(scores)}.values())[::-1]
    report.heading("By generator, place and answer")
    report.text("Over all subsets, each source under its first rule; processbench.json has the others.")
    for by in dict.fromkeys(part.by for s in firsts for part in s.parts):
        rows: list[list[Cell]] = [
            [s.system, part.value, f.errors, f.corrects, f.acc_error, f.acc_correct, f.f1]
            for s in firsts
            for part in s.parts
            if part.by == by
            for f in (part.found,)
        ]
        report.table(["source", by, "erroneous", "correct", "on erroneous", "on correct", "F1"], rows)
    curves = {
        wrapped(s.system): {p.value: p.found.acc_error.value for p in s.parts if p.by == _POSITION}
        for s in sorted(firsts, key=lambda s: _rank(s.average_f1), reverse=True)[:MAX_LINES]
    }
    if any(not math.isnan(value) for curve in curves.values() for value in curve.values()):
        report.figure(
            position_figure(curves, "accuracy on erroneous traces"),
            "Share of first errors found at their very step, by the index of that step; "
            f"at most {MAX_LINES} sources, those of the highest mean F1.",
        )


def _rank(found: Interval) -> float:
    return -1.0 if math.isnan(found.value) else found.value
