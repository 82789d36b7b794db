"""PRMBench results as one offline HTML page."""

from __future__ import annotations

from pathlib import Path

from surefoot.evaluation.figures import position_figure
from surefoot.evaluation.prmbench import GROUPS, PRMBenchEvaluation, PRMBenchScore
from surefoot.evaluation.processbench_report import (
    DRAWN,
    interval_figure,
    records_table,
    shown_thresholds,
    wrapped,
)
from surefoot.evaluation.report import Report
from surefoot.stats.intervals import Cell


def write_prmbench_report(found: PRMBenchEvaluation, path: Path) -> None:
    """One page: records, PRMScore in all, by group, class and position, with figures."""
    report = Report("PRMBench")
    report.text(
        f"{found.traces} traces and {found.controls} controls; {found.left_out} left out for lack of a "
        f"source's record, {found.repeated} as repeated rows. Intervals are 95 %, from "
        f"{found.settings['draws']} bootstrap draws of problems, with the thresholds held."
    )
    records_table(report, found.systems)
    report.heading("PRMScore")
    report.text(
        "0.5 F1 + 0.5 F1_neg over all steps, F1 of the valid and F1_neg of the wrong ones; a group's is the "
        "mean of its classes'. multi_solutions has no wrong steps and is scored by F1 alone. Controls enter "
        "the similarity only. Rule 'split': the threshold was fitted on the other half of the problems."
    )
    _totals(report, found.scores)
    rows = {f"{s.system}, {s.rule}": s.flags.total.score for s in found.scores}
    report.figure(interval_figure(rows, "PRMScore"), "PRMScore over all steps with 95 % intervals.")
    _accuracies(report, found.scores)
    _classes(report, found)
    curves = {
        wrapped(f"{s.system}, {s.rule}"): {p: flags.score.value for p, flags in s.flags.positions.items()}
        for s in found.scores[:DRAWN]
    }
    report.figure(
        position_figure(curves, "PRMScore"), f"PRMScore by the index of the step; at most {DRAWN} rows."
    )
    report.write(path)


def _totals(report: Report, scores: tuple[PRMBenchScore, ...]) -> None:
    rows: list[list[Cell]] = [
        [
            s.system,
            s.rule,
            shown_thresholds(s.thresholds),
            s.fitted_on,
            s.redundancy_threshold,
            s.flags.total.score,
            *s.flags.groups.values(),
            s.flags.total.f1,
            s.flags.total.f1_negative,
        ]
        for s in scores
    ]
    headers = ["source", "rule", "threshold", "fitted on", "redundancy above", "PRMScore", *GROUPS]
    report.table([*headers, "F1", "F1_neg"], rows)


def _accuracies(report: Report, scores: tuple[PRMBenchScore, ...]) -> None:
    rows: list[list[Cell]] = [
        [
            s.system,
            s.rule,
            f.accuracy,
            f.accuracy_good,
            f.accuracy_bad,
            f.first_error,
            f.similarity,
            f.pairs,
            f.parsed,
            f.unjudged_steps,
        ]
        for s in scores
        for f in (s.flags,)
    ]
    report.table(
        [
            "source",
            "rule",
            "all steps",
            "valid steps",
            "wrong steps",
            "first error flagged",
            "similarity",
            "pairs",
            "parsed",
            "steps without verdict",
        ],
        rows,
        "Accuracy on steps; similarity is the mean difference to the control in the share of steps kept",
    )


def _classes(report: Report, found: PRMBenchEvaluation) -> None:
    names = {kind: f"{short} {kind}" for group in GROUPS.values() for kind, short in group.items()}
    rows: list[list[Cell]] = [
        [s.system, s.rule, names[kind], found.classes.get(kind, 0), c.score, c.tp, c.fp, c.fn, c.tn]
        for s in found.scores
        for kind, c in s.flags.classes.items()
    ]
    report.heading("By class and position")
    report.table(
        [
            "source",
            "rule",
            "class",
            "traces",
            "score",
            "valid kept",
            "wrong kept",
            "valid flagged",
            "wrong flagged",
        ],
        rows,
        "PRMScore of each class (multi_solutions: F1) and its counts of steps",
    )
