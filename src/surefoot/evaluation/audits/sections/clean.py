"""The clean audit: rationalised solutions among right and wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from surefoot.evaluation.audits import figures
from surefoot.evaluation.audits.clean import GROUPS, CleanAudit
from surefoot.evaluation.audits.findings import clean_finding
from surefoot.evaluation.audits.sections.section import Section, Table


def clean_section(audits: Sequence[CleanAudit]) -> Section:
    """Right, rationalised and wrong solutions."""
    return Section(
        title="False process confidence",
        about="Rationalised solutions have a wrong step and the right answer: they look clean from their "
        f"end. Cleared: a trace score of {audits[0].threshold:g} or more.",
        findings=[clean_finding(audit) for audit in audits],
        tables=[
            Table(
                caption="Pairs in which the right solution scores higher (AUC)",
                headers=["scorer", "rule", "over rationalised", "within a problem", "over wrong"],
                rows=[
                    [
                        a.scorer,
                        a.rule,
                        a.right_over_rationalised,
                        a.right_over_rationalised_within,
                        a.right_over_wrong,
                    ]
                    for a in audits
                ],
            ),
            Table(
                caption="Trace scores by group",
                headers=["scorer", "group", "mean", "cleared", "n"],
                rows=[
                    [a.scorer, name, a.groups[name].mean, a.groups[name].cleared, a.groups[name].traces]
                    for a in audits
                    for name in GROUPS
                ],
            ),
            Table(
                caption="What was left out",
                headers=["scorer", "no trace score", "in no group"],
                rows=[[a.scorer, a.unscored, a.ungrouped] for a in audits],
            ),
        ],
        figures=[(partial(figures.groups_figure, audits), "Mean trace score by group, 95 %.")],
    )
