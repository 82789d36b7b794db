"""ProcessBench results as one offline HTML page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.evaluation.figures import position_figure
from surefoot.evaluation.processbench import ProcessBenchEvaluation, ProcessBenchScore
from surefoot.evaluation.report import Report
from surefoot.evaluation.step_scores import SystemCounts
from surefoot.stats.intervals import Cell, Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POSITION = "first error at step"

DRAWN = 10
"""Lines that a figure can hold and still be read."""


def write_processbench_report(found: ProcessBenchEvaluation, path: Path) -> None:
    """One page: records, F1 by subset and rule, accuracy by generator, place and answer, with figures."""
    report = Report("ProcessBench")
    report.text(
        f"{found.traces} traces of {found.problems} problems; {found.left_out} left out because a source has "
        f"no record of them. Intervals are 95 %, from {found.settings['draws']} bootstrap draws of problems "
        "within each subset, with the thresholds held."
    )
    records_table(report, found.systems)
    report.heading("F1")
    report.text(
        "Harmonic mean of the accuracy on erroneous traces (exact index of the first error) and on correct "
        "ones (none reported). Rule 'split': the threshold was fitted on the other half of the problems. A "
        "subset's name: fitted on that subset, on which the figure is optimistic, and applied to all. A "
        "trace without a prediction is wrong."
    )
    _f1_table(report, found.scores)
    rows = {f"{s.system}, {s.rule}": s.average_f1 for s in found.scores}
    report.figure(interval_figure(rows, "mean F1"), "Mean F1 of the subsets with 95 % intervals.")
    _subset_table(report, found.scores)
    _part_tables(report, found.scores)
    report.write(path)


def records_table(report: Report, systems: Sequence[SystemCounts]) -> None:
    """What the records of each source are, and what they cost."""
    report.heading("Sources")
    report.table(
        [
            "source",
            "kind",
            "records",
            "foreign",
            "superseded",
            "steps without value",
            "lines skipped",
            "traces without record",
            "policy tokens",
            "verifier tokens",
        ],
        [
            [
                s.name,
                s.kind,
                s.counts.records,
                s.counts.foreign,
                s.counts.superseded,
                s.counts.without_value,
                s.counts.skipped_lines,
                s.traces_without_record,
                s.usage.prompt_tokens + s.usage.completion_tokens,
                s.usage.verifier_tokens,
            ]
            for s in systems
        ],
        "Of two records of one trace (labels: of one step) the last counts; foreign ones are of other traces",
    )


def interval_figure(rows: Mapping[str, Interval], xlabel: str) -> Figure:
    """A dot with its interval for each row, the first one at the top; what is undefined is not drawn."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, 1 + 0.24 * max(8, len(rows))), layout="constrained")
    axes = figure.add_subplot()
    for place, found in enumerate(rows.values()):
        axes.plot([found.low, found.high], [place, place], color="C0", linewidth=1.5)
        axes.plot([found.value], [place], color="C0", marker="o", markersize=4)
    axes.set_yticks(range(len(rows)), [wrapped(name) for name in rows], fontsize="x-small")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(xlabel)
    axes.grid(alpha=0.3, axis="x")
    return figure


def wrapped(name: str) -> str:
    """A long name on several lines, so that it leaves a figure its width."""
    return "\n".join(textwrap.wrap(name, 40))


def shown_thresholds(values: Mapping[str, float]) -> str:
    """The thresholds, and what they apply to where there are several."""
    if len(values) == 1:
        return ", ".join(f"{value:.4g}" for value in values.values())
    return ", ".join(f"{name}: {value:.4g}" for name, value in values.items())


def _f1_table(report: Report, scores: Sequence[ProcessBenchScore]) -> None:
    subsets = list(scores[0].subsets)
    rows: list[list[Cell]] = [
        [
            s.system,
            s.rule,
            shown_thresholds(s.thresholds),
            s.fitted_on,
            *(s.subsets[name].f1 for name in subsets),
            s.average_f1,
            s.difference,
            s.partial,
        ]
        for s in scores
    ]
    report.table(
        [
            "source",
            "rule",
            "threshold",
            "fitted on",
            *subsets,
            "mean",
            "less the first source",
            "partly scored",
        ],
        rows,
        "F1 by subset and their unweighted mean; the difference is paired by problem, under the same rule",
    )


def _subset_table(report: Report, scores: Sequence[ProcessBenchScore]) -> None:
    rows: list[list[Cell]] = [
        [
            s.system,
            s.rule,
            name,
            part.acc_error,
            part.acc_correct,
            part.errors,
            part.corrects,
            part.early,
            part.late,
            part.missed,
            part.unparsed,
        ]
        for s in scores
        for name, part in s.subsets.items()
    ]
    report.table(
        [
            "source",
            "rule",
            "subset",
            "on erroneous",
            "on correct",
            "erroneous",
            "correct",
            "early",
            "late",
            "missed",
            "unparsed",
        ],
        rows,
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
        for s in sorted(firsts, key=lambda s: _rank(s.average_f1), reverse=True)[:DRAWN]
    }
    if any(not math.isnan(value) for curve in curves.values() for value in curve.values()):
        report.figure(
            position_figure(curves, "accuracy on erroneous traces"),
            "Share of first errors found at their very step, by the index of that step; "
            f"at most {DRAWN} sources, those of the highest mean F1.",
        )


def _rank(found: Interval) -> float:
    return -1.0 if math.isnan(found.value) else found.value
