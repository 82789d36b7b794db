"""The quickstart's ``report.html``."""

from __future__ import annotations

from pathlib import Path

from surefoot.evaluation.plots import curve_figure
from surefoot.evaluation.report import Report
from surefoot.quickstart.summary import CURVES, Curve, Summary


def write_report(summary: Summary, path: Path) -> None:
    """One offline page: findings, curves, tables. Equal summaries give equal bytes."""
    curves: dict[str, Curve] = {title: getattr(summary, key) for key, title in CURVES.items()}
    report = Report("surefoot quickstart: does step supervision choose better answers?")
    for finding in summary.findings:
        report.text(finding)
    figure = curve_figure(curves)
    report.heading("Accuracy against the number of samples")
    report.figure(figure, "Accuracy of the chosen answer; bands are 95 % intervals over problems.")
    sizes = list(summary.prm)
    report.table(
        ["selection", *(f"N={size}" for size in sizes)],
        [[title, *(curve[size] for size in sizes)] for title, curve in curves.items()],
        "Share of problems answered correctly, with 95 % intervals",
        spec=".1%",
    )
    report.table(
        ["difference", "value"],
        list(summary.differences.items()),
        "Paired differences",
        spec="+.1p",
    )
    report.heading("PRM and ORM by every rule")
    report.table(*rule_table(summary), "Share of problems answered correctly, with 95 % intervals")
    report.table(
        ["scorer and rule", *(f"N={size}" for size in sizes)],
        [[name, *(curve[size].value for size in sizes)] for name, curve in summary.selectors.items()],
        "Every scorer by every rule",
        spec=".1%",
    )
    report.heading("Do the scorers look at the step?")
    report.table(
        [
            "scorer",
            "step AUC",
            "within position",
            "within problem",
            "probe: correct digit first",
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


def rule_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of PRM against ORM at the largest N, for the page and the terminal."""
    top = max(summary.prm)
    return ["rule", f"PRM, N={top}", f"ORM, N={top}", "PRM - ORM, points", "ahead"], [
        [
            rule,
            f"{comparison.prm:.1%}",
            f"{comparison.orm:.1%}",
            f"{100 * comparison.difference:+.1f}",
            comparison.verdict,
        ]
        for rule, comparison in summary.prm_against_orm.items()
    ]
