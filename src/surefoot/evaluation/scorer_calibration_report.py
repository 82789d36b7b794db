"""The calibration of scorers as sentences and as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from surefoot.evaluation.figures import position_figure, reliability_panels
from surefoot.evaluation.report import Report
from surefoot.evaluation.scorer_calibration import CalibrationAudit, FitResult, ScorerCalibration
from surefoot.stats.calibration import Reliability
from surefoot.stats.intervals import Cell, Interval


def findings(audit: CalibrationAudit) -> list[str]:
    """For each scorer, which way it is off, and what each map does on the other half of the problems."""
    return [_finding(scorer) for scorer in audit.scorers]


def write_calibration_report(audit: CalibrationAudit, path: Path) -> None:
    """One offline page: overall, by position, and before and after each fitted map."""
    report = Report("Reliability of step scores")
    for sentence in findings(audit):
        report.text(sentence)
    _overall(report, audit.scorers)
    _positions(report, audit.scorers)
    _fits(report, audit)
    _counts(report, audit)
    report.write(path)


def _finding(scorer: ScorerCalibration) -> str:
    found = scorer.overall.calibration
    way = "too high" if found.bias > 0 else "too low"
    worth = "below" if found.brier < found.brier_constant else "above"
    sentences = [
        f"{scorer.name}: on {found.steps} steps the ECE is {scorer.overall.ece:.3f}; scores are on "
        f"average {abs(found.bias):.3f} {way}; the Brier score {scorer.overall.brier:.3f} lies {worth} "
        f"the {found.brier_constant:.3f} of a constant."
    ]
    for fit in scorer.fits:
        sentences.append(
            f"{fit.kind.capitalize()} {_changes(fit.ece_change)} the ECE on unseen problems, from "
            f"{fit.before.ece.value:.3f} to {fit.after.ece.value:.3f}, and {_changes(fit.brier_change)} the "
            f"Brier score, from {fit.before.brier.value:.3f} to {fit.after.brier.value:.3f}."
        )
    return " ".join(sentences)


def _changes(change: Interval) -> str:
    if change.high < 0:
        return "lowers"
    return "raises" if change.low > 0 else "does not measurably change"


def _overall(report: Report, scorers: Sequence[ScorerCalibration]) -> None:
    report.heading("All labelled steps")
    report.figure(
        reliability_panels({scorer.name: {"scores": scorer.overall.calibration} for scorer in scorers}),
        "Share of good steps against mean score, by bins of the scores; calibrated ones lie on the diagonal",
    )
    heads = [
        "scorer",
        "steps",
        "dropped",
        "ECE",
        "mean score less share good",
        "Brier",
        "Brier of a constant",
    ]
    rows: list[list[Cell]] = [
        [
            scorer.name,
            scorer.overall.calibration.steps,
            scorer.overall.calibration.dropped,
            scorer.overall.ece,
            scorer.overall.calibration.bias,
            scorer.overall.brier,
            scorer.overall.calibration.brier_constant,
        ]
        for scorer in scorers
    ]
    report.table(heads, rows, "With 95 % intervals over problems; dropped are steps without score or label")


def _positions(report: Report, scorers: Sequence[ScorerCalibration]) -> None:
    report.heading("By position of the step")
    report.figure(
        position_figure(
            {s.name: {step: row.bias for step, row in s.by_step.items()} for s in scorers},
            "mean score less share of good steps",
        ),
        "Above 0 the scores are too high at that step, counted from 0",
    )
    for title, rows_of in (("step", "by_step"), ("fifth of the trace", "by_part")):
        rows: list[list[Cell]] = []
        for scorer in scorers:
            positions: Mapping[str, Reliability] = getattr(scorer, rows_of)
            rows += [
                [scorer.name, place, row.steps, row.ece, row.bias, row.brier, row.brier_constant]
                for place, row in positions.items()
            ]
        heads = ["scorer", title, "steps", "ECE", "bias", "Brier", "Brier of a constant"]
        report.table(heads, rows, f"Reliability by {title}")


def _fits(report: Report, audit: CalibrationAudit) -> None:
    fitted = [scorer for scorer in audit.scorers if scorer.fits]
    report.heading("Fitted on one half of the problems, judged on the other")
    if fitted:
        panels = {
            scorer.name: {"before": scorer.fits[0].before.calibration}
            | {fit.kind: fit.after.calibration for fit in scorer.fits}
            for scorer in fitted
        }
        report.figure(reliability_panels(panels), "Half 1 of the problems, before and after each map")
        heads = ["scorer", "map", "steps", "ECE before", "ECE after", "change", "Brier before", "Brier after"]
        rows: list[list[Cell]] = [_fit_row(scorer.name, fit) for scorer in fitted for fit in scorer.fits]
        report.table(
            [*heads, "change "], rows, f"Fitted on {audit.fit_problems} of {audit.problems} problems"
        )
    for scorer in audit.scorers:
        for kind, reason in scorer.unfitted.items():
            report.text(f"{scorer.name}: no {kind} map; {reason}.")


def _fit_row(name: str, fit: FitResult) -> list[Cell]:
    shown: str = fit.kind
    if fit.fitted.map.kind == "temperature":
        shown = f"temperature {fit.fitted.map.temperature:.3g}"
    return [
        name,
        shown,
        fit.after.calibration.steps,
        fit.before.ece.value,
        fit.after.ece.value,
        fit.ece_change,
        fit.before.brier.value,
        fit.after.brier.value,
        fit.brier_change,
    ]


def _counts(report: Report, audit: CalibrationAudit) -> None:
    report.heading("Counts")
    rows: list[list[Cell]] = [["problems", audit.problems], ["traces", audit.traces], ["steps", audit.steps]]
    rows.append(["traces without a record of any scorer, left out", audit.traces_without_record])
    rows += [[f"steps labelled {name}", count] for name, count in audit.labels.items()]
    for scorer in audit.scorers:
        rows.append([f"{scorer.name}: traces without record", scorer.system.traces_without_record])
        rows.append([f"{scorer.name}: records of other traces", scorer.system.counts.foreign])
        rows.append([f"{scorer.name}: unscored steps with a record", scorer.system.counts.without_value])
    report.table(["what", "count"], rows)
