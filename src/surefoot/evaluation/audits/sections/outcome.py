"""The outcome audit: scores around the first error, and of altered texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from surefoot.evaluation.audits import figures
from surefoot.evaluation.audits.findings import outcome_finding
from surefoot.evaluation.audits.outcome import OFFSETS, OutcomeAudit
from surefoot.evaluation.audits.sections.section import Rows, Section, Table


def outcome_section(audits: Sequence[OutcomeAudit]) -> Section:
    """Where the minimum lies, what an error costs, and what the last step alone is worth."""
    lowest: Rows = [
        [a.scorer, name, found.share, found.chance, found.traces]
        for a in audits
        for name, found in a.lowest_last.items()
    ]
    around: Rows = [
        [a.scorer, name, found.drop, *found.by_offset.values(), found.with_drop, found.traces]
        for a in audits
        for name, found in a.around_error.items()
    ]
    controls: Rows = [
        [a.scorer, a.rule, name, found.auc, found.correlation, found.with_whole, found.traces]
        for a in audits
        for name, found in a.controls.items()
    ]
    return Section(
        title="Collapse to the outcome",
        about="A scorer of steps loses score where the error is, whether the answer comes out right or "
        "wrong, and has little to say of a last step alone or of steps in random order.",
        findings=[outcome_finding(audit) for audit in audits],
        tables=[
            Table(
                caption="Share of traces whose lowest step is the last",
                headers=["scorer", "traces with", "share", "chance", "n"],
                rows=lowest,
            ),
            Table(
                caption="Wrong processes: drop of score at the first error, and mean score around it",
                headers=["scorer", "traces with", "drop", *(f"{n:+d}" for n in OFFSETS), "n drop", "n"],
                rows=around,
            ),
            Table(
                caption="Scores of altered texts against the outcome of the unaltered traces, which are the "
                "same for all texts",
                headers=["scorer", "rule", "text", "AUC", "correlation", "with whole trace", "n"],
                rows=controls,
            ),
            Table(
                caption="What was left out",
                headers=[
                    "scorer",
                    "no outcome",
                    "no trace score",
                    "not in altered texts' table",
                    "altered texts",
                ],
                rows=[
                    [a.scorer, a.no_outcome, a.unscored, a.not_in_controls, a.without_controls or "scored"]
                    for a in audits
                ],
            ),
        ],
        figures=[
            (
                partial(figures.around_error_figure, audits),
                "Mean step score around the first error: right answers solid, wrong answers dashed.",
            )
        ],
    )
