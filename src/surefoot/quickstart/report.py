"""The quickstart's ``report.html``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from surefoot.evaluation.intervals import Interval
from surefoot.evaluation.report import Report, curve_figure
from surefoot.quickstart.comparison import Curve, Estimate, Summary

CURVES = {
    "pass_at": "pass@N (ceiling)",
    "prm_gold": "PRM, exact labels",
    "prm": "PRM, Monte Carlo labels",
    "orm": "ORM",
    "orm_lowest_step": "ORM at its lowest step",
    "majority": "majority vote",
}


def write_report(summary: Summary, path: Path) -> None:
    """One offline page: findings, curves, tables. Equal summaries give equal bytes."""
    curves: dict[str, Curve] = {title: getattr(summary, key) for key, title in CURVES.items()}
    report = Report("surefoot quickstart: does step supervision choose better answers?")
    for finding in summary.findings:
        report.text(finding)
    figure = curve_figure({title: _intervals(curve) for title, curve in curves.items()})
    report.heading("Accuracy against the number of samples")
    report.figure(figure, "Accuracy of the chosen answer; bands are 95 % intervals over problems.")
    sizes = list(summary.prm)
    report.table(
        ["selection", *(f"N={size}" for size in sizes)],
        [[title, *(_shown(curve[size]) for size in sizes)] for title, curve in curves.items()],
        "Share of problems answered right, with 95 % intervals",
    )
    report.table(
        ["difference", "value"],
        [[name, _shown(estimate)] for name, estimate in summary.differences.items()],
        "Paired differences",
    )
    report.heading("Other ways to choose")
    report.table(
        ["scorer and rule", *(f"N={size}" for size in sizes)],
        [[name, *(curve[size].value for size in sizes)] for name, curve in summary.selectors.items()],
    )
    report.heading("Do the scorers look at the step?")
    report.table(
        [
            "scorer",
            "step AUC",
            "within position",
            "within problem",
            "probe: right digit first",
            "probe contrast",
        ],
        [
            [name, q.auc, q.auc_within_position, q.auc_within_problem, q.probe_right, q.probe_contrast]
            for name, q in summary.steps.items()
        ],
        "Good prefixes against bad ones on the test traces, by the exact checker",
    )
    report.heading("Policy, labels and cost")
    for caption, values in (
        ("Policy", summary.policy),
        (
            "Monte Carlo labels (hard) against the exact checker; precision and recall of errors",
            summary.label_noise,
        ),
        ("Counts", summary.counts),
    ):
        report.table(["what", "value"], [[key, value] for key, value in values.items()], caption)
    report.table(
        ["stage", "policy tokens read", "policy tokens written", "verifier tokens"],
        [[k, u.prompt_tokens, u.completion_tokens, u.verifier_tokens] for k, u in summary.tokens.items()],
        "Tokens",
    )
    report.write(path)


def _intervals(curve: Mapping[int, Estimate]) -> dict[int, Interval]:
    return {size: Interval(value=e.value, low=e.low, high=e.high) for size, e in curve.items()}


def _shown(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
