"""The label audit as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.evaluation.label_audit import LabelAudit, Source
from surefoot.evaluation.label_truth import PARTS, AgainstTruth
from surefoot.evaluation.plots import heat_map, legend, line_style, new_figure, reliability_figure
from surefoot.evaluation.report import Report, Row
from surefoot.stats.intervals import Interval
from surefoot.stats.rater_agreement import Agreement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Judged = tuple[str, AgainstTruth]
"""A source of labels, and its agreement with the truth."""

FIFTHS = ("first", "second", "third", "fourth", "last")


def write_label_report(audit: LabelAudit, path: Path) -> Report:
    """One page: counts and cost, accuracy against the truth, agreement of sources, with figures."""
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
    rows = [
        Row(
            source=s.name,
            c=s.counts,
            unread=sum(s.counts.unread.values()),
            kinds=", ".join(f"{kind} {count}" for kind, count in s.counts.kinds.items()),
            rule=s.reading,
        )
        for s in sources
    ]
    report.records(
        "The last label of a step that is good or bad counts; the others are superseded; a value above "
        "good_above is good",
        rows,
        (
            *(
                "source",
                "c.labels",
                "c.used",
                "unread",
                "c.unknown_traces",
                "c.unknown_steps",
                "c.superseded",
            ),
            *("c.steps_without_label", "c.traces_without_label", "kinds", "rule.good_above", "rule.neutral"),
        ),
        printed=6,
    )
    report.records(
        "Cost as stated in the labels: per label that counts, and per trace with a label",
        sources,
        (
            *("name", "cost.policy_tokens_per_label", "cost.verifier_tokens_per_label"),
            *("cost.policy_tokens_per_trace", "cost.policy_tokens", "cost.verifier_tokens", "cost.calls"),
        ),
        spec=".1f",
        printed=4,
    )
    unread = [(s.name, reason, count) for s in sources for reason, count in s.counts.unread.items()]
    if unread:
        report.table(["source", "reason", "labels"], unread, "Labels that are neither good nor bad")


def _steps(report: Report, judged: Sequence[Judged]) -> None:
    report.heading("Bad steps")
    report.records(
        "The positive class is the bad step, by the truth; dropped steps could not be compared",
        [Row(source=name, t=t, c=t.confusion, noise=t.noise) for name, t in judged],
        (
            *("source", "t.precision", "t.recall", "t.f1", "noise.accuracy"),
            *("c.tp", "c.fp", "c.fn", "c.tn", "noise.dropped"),
        ),
        spec=".1%",
        printed=5,
    )
    report.records(
        "By position in the trace; labels.json has the counts for each step index",
        [Row(source=name, fifth=FIFTHS[n], c=c) for name, t in judged for n, c in t.by_fifth.items()],
        ("source", "fifth", "c.precision", "c.recall", "c.tp", "c.fp", "c.fn", "c.tn"),
    )
    report.figure(_fifths_figure(judged), "Precision and recall of bad steps by position in the trace.")


def _first_errors(report: Report, judged: Sequence[Judged]) -> None:
    report.heading("First error of a trace")
    report.records(
        "Traces by the first bad step of the source and of the truth; dropped traces could not be compared",
        [Row(source=name, e=t.first_error) for name, t in judged],
        (
            *("source", "e.accuracy", "e.accuracy_on_wrong", "e.accuracy_on_right", "e.f1", "e.exact"),
            *("e.none_on_both", "e.early", "e.late", "e.missed", "e.false_alarm", "e.dropped"),
        ),
        spec=".1%",
        printed=5,
    )
    report.figure(
        _offset_figure(judged),
        "Predicted minus true index of the first error, over traces where both have one; "
        f"offsets beyond {FURTHEST} are shown as {FURTHEST}.",
    )


def _soft_values(report: Report, judged: Sequence[Judged]) -> None:
    soft = {name: result.soft for name, result in judged if result.soft}
    if soft:
        report.heading("Soft values")
        report.text(
            "A value is the chance of a correct answer from a prefix, for one policy. Correctness is another "
            "quantity: a correct step of a weak policy has a low value. The results measure a value as the "
            "chance that the step is correct, not as an estimate of the value."
        )
        rows = []
        for name, values in soft.items():
            parts = {"all": values.calibration} | {FIFTHS[n]: part for n, part in values.by_fifth.items()}
            rows += [Row(source=name, part=part, c=c) for part, c in parts.items()]
        binning = next(iter(soft.values())).calibration.binning
        report.records(
            f"Values against good and bad steps, by fifth of the trace; {binning} bins; dropped steps have "
            "an unknown truth",
            rows,
            ("source", "part", "c.steps", "c.dropped", "c.ece", "c.bias", "c.brier", "c.brier_constant"),
        )
        report.records(
            "Do good steps have higher values?",
            [Row(source=name, v=values) for name, values in soft.items()],
            ("source", "v.auc", "v.auc_within_position"),
        )
        curves = {name: values.calibration for name, values in soft.items()}
        report.figure(reliability_figure({"": curves}), "Reliability of the values.")
    errors = {name: result.values for name, result in judged if result.values}
    if errors:
        report.heading("Values against true values").records(
            "Covered: share of the intervals that contain the true value",
            [Row(source=name, v=values) for name, values in errors.items()],
            ("source", "v.steps", "v.bias", "v.rmse", "v.intervals", "v.covered"),
        )


def _agreement(report: Report, audit: LabelAudit) -> None:
    report.heading("Agreement")
    report.text(
        "If nearly all steps are good, kappa and alpha are low even for sources that nearly always agree; "
        "AC1 is not. None of them says which source is correct."
    )
    headers = ["raw", "Cohen's kappa", "Krippendorff's alpha", "Gwet's AC1"]
    report.table(
        ["first", "second", "steps", *headers],
        [
            [p.first, p.second, p.steps.units, p.steps.raw, p.kappa, p.steps.alpha, p.steps.ac1]
            for p in audit.pairs
        ],
        "Agreement on steps, good or bad: each pair of sources over the steps labelled by both",
        spec=".3f",
        printed=7,
    )
    report.table(
        ["first", "second", "traces", *headers],
        [
            [p.first, p.second, e.units, e.raw, e.kappa, e.alpha, e.ac1]
            for p in audit.pairs
            for e in (p.first_error,)
        ],
        "Index of the first error, over the traces in which both sources know it",
    )
    if audit.overall:
        overall = audit.overall
        rows: list[tuple[str, Agreement, Interval | float]] = [
            ("steps, good or bad", overall.steps, overall.alpha),
            ("first error", overall.first_error, overall.first_error.alpha),
        ]
        if overall.graded:
            rows.append((f"values ({overall.graded_level})", overall.graded, overall.graded.alpha))
        report.table(
            ["rating", "units", "raw", "mean Cohen's kappa", *headers[2:]],
            [
                [name, result.units, result.raw, result.kappa, alpha, result.ac1]
                for name, result, alpha in rows
            ],
            "All sources together, without the truth",
        )
    if len(audit.pairs) > 1:
        names = list(dict.fromkeys(name for pair in audit.pairs for name in (pair.first, pair.second)))
        kappa = {(pair.first, pair.second): pair.kappa.value for pair in audit.pairs}
        kappa |= {(second, first): value for (first, second), value in kappa.items()}
        matrix = [[1.0 if a == b else kappa[a, b] for b in names] for a in names]
        figure = heat_map(matrix, names, names, "Cohen's kappa", low=-1, high=1)
        report.figure(figure, "Cohen's kappa of good and bad steps.")


FURTHEST = 6
"""Largest offset of the first error in the figure."""


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
    """Share of traces by predicted minus true index of the first error, if both have one."""
    figure, axes = new_figure(
        "predicted minus true index of the first error", "share of traces", lines=len(judged)
    )
    shifts = range(-FURTHEST, FURTHEST + 1)
    for number, (name, result) in enumerate(judged):
        counts = dict.fromkeys(shifts, 0)
        for offset, count in result.first_error.offsets.items():
            counts[max(-FURTHEST, min(FURTHEST, offset))] += count
        total = sum(counts.values())
        shares = [count / total if total else math.nan for count in counts.values()]
        axes.plot(shifts, shares, **line_style(number), label=name)
    axes.set_xticks(list(shifts))
    legend(figure)
    return figure
