"""The label audit as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.evaluation.label_audit import LabelAudit, Source
from surefoot.evaluation.label_truth import PARTS, AgainstTruth
from surefoot.evaluation.plots import heat_map, legend, line_style, new_figure, reliability_figure
from surefoot.evaluation.report import Column, Report
from surefoot.stats.intervals import Cell, Interval
from surefoot.stats.rater_agreement import Agreement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Judged = tuple[str, AgainstTruth]
"""A source of labels, and how it agrees with the truth."""

FIFTHS = ("first", "second", "third", "fourth", "last")


def write_label_report(audit: LabelAudit, path: Path) -> Report:
    """One offline page: counts and cost, agreement with the truth, agreement of sources, with figures."""
    report = Report("Label audit")
    report.text(
        f"{audit.traces} traces of {audit.problems} problems with {audit.steps} steps; "
        f"{audit.traces_without_steps} traces without steps are left out. Intervals are 95 %, "
        f"from {audit.settings['draws']} bootstrap draws of problems.",
        printed=True,
    )
    _counts(report, [*audit.sources, *([audit.truth] if audit.truth else [])])
    judged = [(source.name, source.against_truth) for source in audit.sources if source.against_truth]
    if judged:
        _steps(report, judged)
        _first_errors(report, judged)
        _soft_values(report, judged)
    if audit.pairs:
        _agreement(report, audit)
    return report.write(path)


def _counts(report: Report, sources: Sequence[Source]) -> None:
    report.heading("Labels and their cost")
    columns: dict[str, Column[Source]] = {
        "source": "name",
        "labels": "counts.labels",
        "used": "counts.used",
        "unread": lambda s: sum(s.counts.unread.values()),
        "of unknown traces": "counts.unknown_traces",
        "of unknown steps": "counts.unknown_steps",
        "superseded": "counts.superseded",
        "steps without label": "counts.steps_without_label",
        "traces without label": "counts.traces_without_label",
        "kinds": lambda s: ", ".join(f"{kind} {count}" for kind, count in s.counts.kinds.items()),
        "value good above": "reading.good_above",
        "neutral is": "reading.neutral",
    }
    caption = "A step with several labels counts by the last that is good or bad; the others are superseded"
    report.records(caption, sources, columns, printed=6)
    columns = {
        "source": "name",
        "policy tokens per label": "cost.policy_tokens_per_label",
        "verifier tokens per label": "cost.verifier_tokens_per_label",
        "policy tokens per trace": "cost.policy_tokens_per_trace",
        "policy tokens": "cost.policy_tokens",
        "verifier tokens": "cost.verifier_tokens",
        "calls": "cost.calls",
    }
    caption = "Cost as noted in the labels: per label that counts, and per trace with a label"
    report.records(caption, sources, columns, spec=".1f", printed=4)
    unread = [(s.name, reason, count) for s in sources for reason, count in s.counts.unread.items()]
    if unread:
        report.table(["source", "reason", "labels"], unread, "Labels that are neither good nor bad")


def _steps(report: Report, judged: Sequence[Judged]) -> None:
    report.heading("Bad steps")
    columns: dict[str, Column[Judged]] = {
        "source": lambda j: j[0],
        "precision": lambda j: j[1].precision,
        "recall": lambda j: j[1].recall,
        "F1": lambda j: j[1].f1,
        "accuracy": lambda j: j[1].noise.accuracy,
        "tp": lambda j: j[1].confusion.tp,
        "fp": lambda j: j[1].confusion.fp,
        "fn": lambda j: j[1].confusion.fn,
        "tn": lambda j: j[1].confusion.tn,
        "steps not compared": lambda j: j[1].noise.dropped,
    }
    caption = "The positive class is the bad step, by the truth"
    report.records(caption, judged, columns, spec=".1%", printed=5)
    report.table(
        ["source", "fifth of the trace", "precision", "recall", "tp", "fp", "fn", "tn"],
        [
            [name, FIFTHS[fifth], c.precision, c.recall, c.tp, c.fp, c.fn, c.tn]
            for name, result in judged
            for fifth, c in result.by_fifth.items()
        ],
        "By position in the trace; labels.json has the counts for each step index",
    )
    report.figure(_fifths_figure(judged), "Precision and recall of bad steps by position in the trace.")


def _first_errors(report: Report, judged: Sequence[Judged]) -> None:
    report.heading("First error of a trace")
    columns: dict[str, Column[Judged]] = {
        "source": lambda j: j[0],
        "accuracy": lambda j: j[1].first_error.accuracy,
        "on wrong traces": lambda j: j[1].first_error.accuracy_on_wrong,
        "on correct traces": lambda j: j[1].first_error.accuracy_on_right,
        "F1 of the two": lambda j: j[1].first_error.f1,
        "exact": lambda j: j[1].first_error.exact,
        "none on both": lambda j: j[1].first_error.none_on_both,
        "early": lambda j: j[1].first_error.early,
        "late": lambda j: j[1].first_error.late,
        "missed": lambda j: j[1].first_error.missed,
        "false alarm": lambda j: j[1].first_error.false_alarm,
        "traces not compared": lambda j: j[1].first_error.dropped,
    }
    caption = "Traces by where the source and the truth see the first bad step"
    report.records(caption, judged, columns, spec=".1%", printed=5)
    report.figure(
        _offset_figure(judged),
        "Called minus true index of the first error, over traces where both have one; "
        f"beyond {FURTHEST} drawn as {FURTHEST}.",
    )


def _soft_values(report: Report, judged: Sequence[Judged]) -> None:
    soft = {name: result.soft for name, result in judged if result.soft}
    if soft:
        report.heading("Soft values")
        report.text(
            "A value is the chance of the correct answer from a prefix, for one policy. Correctness is "
            "another quantity: a correct step of a weak policy has a low value. The figures say how far a "
            "value may stand in for the chance that the step is correct, not how good an "
            "estimate of the value it is."
        )
        rows: list[list[Cell]] = []
        for name, values in soft.items():
            parts = {"all": values.calibration} | {FIFTHS[n]: part for n, part in values.by_fifth.items()}
            for part, c in parts.items():
                rows.append([name, part, c.steps, c.dropped, c.ece, c.bias, c.brier, c.brier_constant])
        headers = ["source", "part", "steps", "without truth", "ECE", "bias", "Brier", "Brier of a constant"]
        binning = next(iter(soft.values())).calibration.binning
        report.table(
            headers, rows, f"Values against good and bad steps, by fifth of the trace; {binning} bins"
        )
        ranks: list[list[Cell]] = [[name, v.auc, v.auc_within_position] for name, v in soft.items()]
        report.table(["source", "AUC", "AUC within position"], ranks, "Do good steps have the higher values?")
        curves = {name: values.calibration for name, values in soft.items()}
        report.figure(reliability_figure({"": curves}), "Reliability of the values.")
    errors = {name: result.values for name, result in judged if result.values}
    if errors:
        report.heading("Values against true values")
        report.table(
            ["source", "steps", "bias", "root mean square error", "intervals", "share that hold the truth"],
            [[name, v.steps, v.bias, v.rmse, v.intervals, v.covered] for name, v in errors.items()],
        )


def _agreement(report: Report, audit: LabelAudit) -> None:
    report.heading("Agreement")
    report.text(
        "Where nearly all steps are good, kappa and alpha are low though sources nearly always agree; AC1 is "
        "not. None of them says who is right."
    )
    report.table(
        ["first", "second", "steps", "raw", "Cohen's kappa", "Krippendorff's alpha", "Gwet's AC1"],
        [
            [p.first, p.second, p.steps.units, p.steps.raw, p.kappa, p.steps.alpha, p.steps.ac1]
            for p in audit.pairs
        ],
        "Agreement on steps, good or bad: every two sources over the steps that both label",
        spec=".3f",
        printed=7,
    )
    report.table(
        ["first", "second", "traces", "raw", "Cohen's kappa", "Krippendorff's alpha", "Gwet's AC1"],
        [
            [p.first, p.second, first.units, first.raw, first.kappa, first.alpha, first.ac1]
            for p in audit.pairs
            for first in (p.first_error,)
        ],
        "Index of the first error, over the traces where it is known on both sides",
    )
    if audit.overall:
        overall = audit.overall
        rows: list[tuple[str, Agreement, Interval | float]] = [
            ("steps, good or bad", overall.steps, overall.alpha),
            ("first error", overall.first_error, overall.first_error.alpha),
        ]
        if overall.graded:
            title = f"numbers as given ({overall.graded_level})"
            rows.append((title, overall.graded, overall.graded.alpha))
        report.table(
            ["what", "units", "raw", "mean Cohen's kappa", "Krippendorff's alpha", "Gwet's AC1"],
            [
                [what, result.units, result.raw, result.kappa, alpha, result.ac1]
                for what, result, alpha in rows
            ],
            "All sources together, without the truth",
        )
    if len(audit.pairs) > 1:
        report.figure(_kappa_figure(audit), "Cohen's kappa of good and bad steps.")


FURTHEST = 6
"""Offsets of the first error beyond this are drawn as this."""


def _fifths_figure(judged: Sequence[Judged]) -> Figure:
    """Precision and recall of bad steps in each fifth of the traces."""
    figure, axes = new_figure("fifth of the trace", "share", lines=len(judged) + 2)
    fifths = list(range(1, PARTS + 1))
    for number, (name, result) in enumerate(judged):
        counts = [result.by_fifth[fifth] for fifth in range(PARTS)]
        look = line_style(number)
        axes.plot(fifths, [c.precision for c in counts], **look, label=name)
        axes.plot(fifths, [c.recall for c in counts], **look, linestyle="--")
    axes.plot([], [], color="#888888", label="precision")
    axes.plot([], [], color="#888888", linestyle="--", label="recall")
    axes.set_xticks(fifths)
    axes.set_ylim(-0.02, 1.02)
    legend(figure)
    return figure


def _offset_figure(judged: Sequence[Judged]) -> Figure:
    """Share of traces by called minus true index of the first error, where both have one."""
    figure, axes = new_figure(
        "called minus true index of the first error", "share of traces", lines=len(judged)
    )
    places = range(-FURTHEST, FURTHEST + 1)
    for number, (name, result) in enumerate(judged):
        counts = dict.fromkeys(places, 0)
        for offset, count in result.first_error.offsets.items():
            counts[max(-FURTHEST, min(FURTHEST, offset))] += count
        total = sum(counts.values())
        shares = [count / total if total else math.nan for count in counts.values()]
        axes.plot(places, shares, **line_style(number), label=name)
    axes.set_xticks(list(places))
    legend(figure)
    return figure


def _kappa_figure(audit: LabelAudit) -> Figure:
    """Cohen's kappa of the steps between every two sources."""
    names = list(dict.fromkeys(name for pair in audit.pairs for name in (pair.first, pair.second)))
    kappa = {(pair.first, pair.second): pair.kappa.value for pair in audit.pairs}
    kappa |= {(second, first): value for (first, second), value in kappa.items()}
    rows = [[1.0 if a == b else kappa[a, b] for b in names] for a in names]
    return heat_map(rows, names, names, "Cohen's kappa", low=-1, high=1)
