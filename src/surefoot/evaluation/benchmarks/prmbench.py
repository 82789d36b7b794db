"""PRMBench (Song et al., arXiv 2501.03124) for any number of scorers and judges, side by side.

As in the published evaluation: a step is kept if its score is above the threshold (0.5); counts are pooled
over all steps of a class, and over all classes for the whole; the score of a class group is the mean of its
classes'; ``multi_solutions``, which has no wrong steps, is scored by F1 alone; a control (the unmodified
process) enters only the similarity; a row that comes again is left out; a trace without any verdict is left
out, and ``parsed`` says how many are not. Redundancy scores, where given, judge the classes of simplicity: a
step above the redundancy threshold (0.15) is flagged. The metric is in ``step_flags``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.processbench import (
    AS_LABELLED,
    MAX_LINES,
    Missing,
    sources_table,
    thresholds_text,
)
from surefoot.evaluation.benchmarks.step_flags import (
    Flags,
    PRMBenchCase,
    StepFlagEvaluator,
    best_flag_threshold,
)
from surefoot.evaluation.plots import interval_figure, position_figure, wrapped
from surefoot.evaluation.report import Column, JSONResult, Report
from surefoot.evaluation.splits import SPLIT, Thresholds, thresholds
from surefoot.evaluation.step_scores import System, SystemCounts, recorded_by_all
from surefoot.labels import LabelRule, binary_labels
from surefoot.protocols import LabelledTrace
from surefoot.stats.intervals import Cell

GROUPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "simplicity": {"redundency": "NR", "circular": "NCL"},
        "soundness": {
            "counterfactual": "ES",
            "step_contradiction": "SC",
            "domain_inconsistency": "DC",
            "confidence": "CI",
        },
        "sensitivity": {"missing_condition": "PS", "deception": "DR", "multi_solutions": "MS"},
    }
)
"""Classes by group, with the paper's abbreviations; ``redundency`` is spelt as in the data."""

F1_ALONE = "multi_solutions"
CONTROL = "correct"
REDUNDANCY_THRESHOLD = 0.15


@dataclass(frozen=True, kw_only=True)
class PRMBenchScore:
    """One system under one rule for its threshold."""

    system: str
    kind: Literal["scores", "labels"]
    rule: str
    thresholds: Mapping[str, float]
    fitted_on: str
    redundancy_threshold: float | None
    """``None`` where the system has no redundancy scores: simplicity is then judged as the rest."""
    flags: Flags


@dataclass(frozen=True, kw_only=True)
class PRMBenchEvaluation(JSONResult):
    """All systems over the same traces."""

    traces: int
    """Without controls."""
    controls: int
    repeated: int
    """Rows of a class and ``idx`` that were there before; left out."""
    left_out: int
    """Traces of which some system has no record; no system is judged on them."""
    classes: Mapping[str, int]
    """Traces of each class."""
    systems: tuple[SystemCounts, ...]
    scores: tuple[PRMBenchScore, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PRMBenchCases:
    """The traces of a file and how many rows were repeated."""

    cases: tuple[PRMBenchCase, ...]
    repeated: int


def prmbench_cases(items: Sequence[LabelledTrace]) -> PRMBenchCases:
    """Cases from what ``read_prmbench`` and ``read_prmbench_controls`` give; controls have class "correct".

    Raises ``LabelError`` for a trace without ``idx`` and a known class in its ``meta``, or with a step that
    has no correctness label.
    """
    cases: dict[tuple[str, str], PRMBenchCase] = {}
    for item in items:
        case = _case(item)
        cases.setdefault((case.kind, case.problem), case)
    return PRMBenchCases(cases=tuple(cases.values()), repeated=len(items) - len(cases))


def evaluate_prmbench(
    data: PRMBenchCases,
    systems: Sequence[System],
    *,
    redundancy: Mapping[str, System] | None = None,
    redundancy_threshold: float = REDUNDANCY_THRESHOLD,
    rules: Sequence[str | float] = (0.5, SPLIT),
    missing: Missing = "leave-out",
    draws: int = 1000,
    seed: int = 0,
) -> PRMBenchEvaluation:
    """Hold ``systems`` (laid beside the traces of the cases, in order) against the truth under each rule.

    ``redundancy`` has the redundancy scores of a system by its name. ``missing``: a trace of which a system
    has no record at all is left out for every system, or with ``wrong`` for that one only, as a trace
    without verdict. Controls need no record. Steps without verdict are not counted, and said. Intervals
    resample problems (``idx``), with thresholds held.

    Raises ``LabelError`` for no cases or systems, redundancy scores of an unknown system, and where a
    threshold cannot be fitted; ``ScoreError`` if no trace has a record of every system.
    """
    redundancy = redundancy or {}
    cases = data.cases
    tested = [t for t, case in enumerate(cases) if case.kind != CONTROL]
    if not tested or not systems:
        raise LabelError("give at least one trace that is no control, and one scorer or judge")
    if strangers := sorted(set(redundancy) - {s.name for s in systems if s.kind == "scores"}):
        raise LabelError(f"redundancy scores are of {strangers[0]!r}, which is no scorer under evaluation")
    common = set(tested)
    if missing == "leave-out":
        common = set(recorded_by_all(systems, tested))
        simple = [t for t in common if cases[t].kind in GROUPS["simplicity"]]
        if redundancy and simple:  # redundancy is read for these classes only
            common -= set(simple) - set(recorded_by_all(list(redundancy.values()), simple))
    kept = [t for t, case in enumerate(cases) if t in common or case.kind == CONTROL]
    used = [cases[t] for t in kept]
    evaluator = StepFlagEvaluator(
        used, draws=draws, seed=seed, groups=GROUPS, f1_alone=F1_ALONE, control=CONTROL
    )
    scores = [
        score
        for system in systems
        for score in _scores(
            evaluator, system, redundancy.get(system.name), redundancy_threshold, kept, rules
        )
    ]
    return PRMBenchEvaluation(
        traces=len(common),
        controls=len(kept) - len(common),
        repeated=data.repeated,
        left_out=len(tested) - len(common),
        classes=evaluator.classes,
        systems=tuple(system.summary() for system in systems),
        scores=tuple(scores),
        settings={
            "rules": list(rules),
            "redundancy_threshold": redundancy_threshold,
            "missing": missing,
            "draws": draws,
            "seed": seed,
        },
    )


def _scores(
    evaluator: StepFlagEvaluator,
    system: System,
    redundancy: System | None,
    redundancy_threshold: float,
    kept: Sequence[int],
    rules: Sequence[str | float],
) -> list[PRMBenchScore]:
    cases = evaluator.cases
    if system.kind == "labels":
        flags = evaluator.evaluate([system.good[t] for t in kept])
        return [_score(system, None, None, flags)]
    rows = [system.scores[t] for t in kept]
    again = [redundancy.scores[t] for t in kept] if redundancy else None
    simple = [again is not None and case.kind in GROUPS["simplicity"] for case in cases]

    def fit(members: list[int]) -> float:
        known = [
            (score, good)
            for t in members
            if cases[t].kind != CONTROL and not simple[t]
            for score, good in zip(rows[t], cases[t].good, strict=True)
            if score is not None
        ]
        return best_flag_threshold([score for score, _ in known], [good for _, good in known])

    results = []
    for rule in rules:
        applied = thresholds(rule, [case.problem for case in cases], [case.kind for case in cases], fit)
        verdicts = [
            [None if score is None else score <= redundancy_threshold for score in again[t]]
            if again is not None and simple[t]
            else [None if score is None else score > cut for score in rows[t]]
            for t, cut in enumerate(applied.of_trace)
        ]
        limit = redundancy_threshold if again is not None else None
        results.append(_score(system, applied, limit, evaluator.evaluate(verdicts)))
    return results


def _score(system: System, applied: Thresholds | None, limit: float | None, flags: Flags) -> PRMBenchScore:
    return PRMBenchScore(
        system=system.name,
        kind=system.kind,
        rule=applied.rule if applied else AS_LABELLED,
        thresholds=dict(applied.values) if applied else {},
        fitted_on=applied.fitted_on if applied else "labels have no threshold",
        redundancy_threshold=limit,
        flags=flags,
    )


def _case(item: LabelledTrace) -> PRMBenchCase:
    trace = item.trace
    kind, problem = trace.meta.get("classification"), trace.meta.get("idx")
    if not isinstance(problem, str) or kind not in {
        CONTROL,
        *(c for group in GROUPS.values() for c in group),
    }:
        raise LabelError(
            f"trace {trace.id}: its 'meta' has class {kind!r} and idx {problem!r}; "
            "give PRMBench's own rows, with one of its classes"
        )
    rule = LabelRule(neutral="bad", good_above=None)
    good = [label.good for label in binary_labels(item.labels, len(trace.steps), rule)]
    known = [value for value in good if value is not None]
    if len(known) < len(good):
        raise LabelError(f"trace {trace.id}: step {good.index(None)} has no correctness label")
    return PRMBenchCase(item=item, kind=kind, problem=problem, good=tuple(known))


def write_prmbench_report(result: PRMBenchEvaluation, path: Path) -> Report:
    """One page: records, PRMScore in all, by group, class and position, with figures."""
    report = Report("PRMBench")
    report.text(
        f"{result.traces} traces and {result.controls} controls; {result.left_out} left out for lack of a "
        f"source's record, {result.repeated} as repeated rows. Intervals are 95 %, from "
        f"{result.settings['draws']} bootstrap draws of problems, with the thresholds held.",
        printed=True,
    )
    sources_table(report, result.systems)
    report.heading("PRMScore")
    report.text(
        "0.5 F1 + 0.5 F1_neg over all steps, F1 of the valid and F1_neg of the wrong ones; a group's is the "
        "mean of its classes'. multi_solutions has no wrong steps and is scored by F1 alone. Controls enter "
        "the similarity only. Rule 'split': the threshold was fitted on the other half of the problems."
    )
    _totals(report, result.scores)
    rows = {f"{s.system}, {s.rule}": s.flags.total.score for s in result.scores}
    report.figure(interval_figure(rows, "PRMScore"), "PRMScore over all steps with 95 % intervals.")
    _accuracies(report, result.scores)
    _classes(report, result)
    curves = {
        wrapped(f"{s.system}, {s.rule}"): {p: flags.score.value for p, flags in s.flags.positions.items()}
        for s in result.scores[:MAX_LINES]
    }
    report.figure(
        position_figure(curves, "PRMScore"), f"PRMScore by the index of the step; at most {MAX_LINES} rows."
    )
    return report.write(path)


def _totals(report: Report, scores: tuple[PRMBenchScore, ...]) -> None:
    columns: dict[str, Column[PRMBenchScore]] = {
        "source": "system",
        "rule": "rule",
        "threshold": lambda s: thresholds_text(s.thresholds),
        "PRMScore": "flags.total.score",
    }
    columns |= {name: lambda s, name=name: s.flags.groups[name] for name in GROUPS}  # type: ignore[misc]
    printed = len(columns)
    columns |= {
        "F1": "flags.total.f1",
        "F1_neg": "flags.total.f1_negative",
        "fitted on": "fitted_on",
        "redundancy above": lambda s: (
            None if s.redundancy_threshold is None else f"{s.redundancy_threshold:.4g}"
        ),
    }
    report.records("PRMScore, all and by group of classes", scores, columns, spec=".1%", printed=printed)


def _accuracies(report: Report, scores: tuple[PRMBenchScore, ...]) -> None:
    report.records(
        "Accuracy on steps; similarity is the mean difference to the control in the share of steps kept",
        scores,
        {
            "source": "system",
            "rule": "rule",
            "valid steps": "flags.accuracy_good",
            "wrong steps": "flags.accuracy_bad",
            "unparsed": "flags.unparsed",
            "all steps": "flags.accuracy",
            "first error flagged": "flags.first_error",
            "similarity": "flags.similarity",
            "pairs": "flags.pairs",
            "parsed": "flags.parsed",
            "steps without verdict": "flags.unjudged_steps",
        },
        spec=".1%",
        printed=5,
    )


def _classes(report: Report, result: PRMBenchEvaluation) -> None:
    names = {kind: f"{short} {kind}" for group in GROUPS.values() for kind, short in group.items()}
    rows: list[list[Cell]] = [
        [s.system, s.rule, names[kind], result.classes.get(kind, 0), c.score, c.tp, c.fp, c.fn, c.tn]
        for s in result.scores
        for kind, c in s.flags.classes.items()
    ]
    counts = ["valid kept", "wrong kept", "valid flagged", "wrong flagged"]
    report.heading("By class and position").table(
        ["source", "rule", "class", "traces", "score", *counts],
        rows,
        "PRMScore of each class (multi_solutions: F1) and its counts of steps",
        spec=".1%",
        printed=5,
    )
