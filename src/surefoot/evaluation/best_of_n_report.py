"""The best-of-N curves as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.evaluation.best_of_n import BestOfNResult, SelectorCurve
from surefoot.evaluation.best_of_n_findings import findings
from surefoot.evaluation.figures import (
    difference_figure,
    selector_figure,
    side_by_side_figure,
    token_figure,
)
from surefoot.evaluation.report import Report
from surefoot.stats.intervals import Cell


def write_best_of_n_report(result: BestOfNResult, path: Path) -> None:
    """One offline page: findings, curves of each scorer, differences from majority, tokens, counts."""
    report = Report("Best-of-N: accuracy against samples and tokens")
    for sentence in findings(result):
        report.text(sentence)
    baselines = [curve for curve in result.curves if curve.scorer is None]
    if len(result.scorers) > 1:
        report.heading("Scorers side by side")
        report.figure(side_by_side_figure(result.curves), "Best-of-N of every scorer on the same samples")
    for scorer in result.scorers:
        _scorer(report, scorer, baselines, [curve for curve in result.curves if curve.scorer == scorer])
    _tables(report, result)
    _counts(report, result)
    report.write(path)


def _scorer(
    report: Report, name: str, baselines: Sequence[SelectorCurve], curves: Sequence[SelectorCurve]
) -> None:
    report.heading(name)
    report.figure(selector_figure([*baselines, *curves]), f"Accuracy against N, {name}; majority's 95 % band")
    report.figure(
        difference_figure(curves),
        f"{name} less majority, paired by problem, with 95 % intervals; below 0 majority is better",
    )
    if any(curve.tokens for curve in curves):
        known = [curve for curve in [*baselines, *curves] if curve.tokens]
        report.figure(token_figure(known), f"Accuracy against mean tokens a problem, {name}")


def _tables(report: Report, result: BestOfNResult) -> None:
    report.heading("All numbers")
    heads = ["selector", *(f"N={size}" for size in result.sizes)]
    report.table(
        heads,
        [[curve.name, *curve.accuracy.values()] for curve in result.curves],
        "Share of problems answered correctly, with 95 % intervals over problems",
        spec=".1%",
    )
    paired = [curve for curve in result.curves if curve.minus_majority]
    if paired:
        report.table(
            heads,
            [[curve.name, *(100 * gap for gap in curve.minus_majority.values())] for curve in paired],
            "Difference from majority, in points, paired by problem",
            spec="+.1f",
        )
    known = [curve for curve in result.curves if curve.tokens]
    if known:
        rows: list[list[Cell]] = [
            [curve.name, *(round(curve.tokens[size]) for size in result.sizes)] for curve in known
        ]
        report.table(heads, rows, "Mean tokens a problem, policy and verifier")


def _counts(report: Report, result: BestOfNResult) -> None:
    report.heading("Counts")
    rows: list[list[Cell]] = [["problems", result.problems], ["candidates", result.traces]]
    rows += [[f"left out: {reason}", count] for reason, count in result.dropped.items()]
    rows += [[f"{name}: unscored candidates", counts.unscored] for name, counts in result.scorers.items()]
    rows += [
        [f"{name}: scores of other traces", counts.foreign]
        for name, counts in result.scorers.items()
        if counts.foreign
    ]
    report.table(["what", "count"], rows)
    for what, reason in result.unknown.items():
        report.text(f"Unknown: {what}; {reason}.")
    for name, counts in result.scorers.items():
        for what, reason in counts.left_out.items():
            report.text(f"Left out: {name} {what}; {reason}.")
