"""What each audit found as sentences, tables and figures, any number of scorers side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from surefoot.evaluation.audits import figures
from surefoot.evaluation.audits.attack import AttackAudit
from surefoot.evaluation.audits.clean import GROUPS, CleanAudit
from surefoot.evaluation.audits.findings import (
    attack_finding,
    clean_finding,
    gaming_finding,
    outcome_finding,
    over_finding,
    transfer_finding,
)
from surefoot.evaluation.audits.gaming import GamingAudit
from surefoot.evaluation.audits.outcome import OFFSETS, OutcomeAudit
from surefoot.evaluation.audits.over_optimisation import OverOptimisationAudit
from surefoot.evaluation.audits.transfer import Cell as TransferCell
from surefoot.evaluation.audits.transfer import TransferAudit
from surefoot.evaluation.report import Cell
from surefoot.lab.probe import ProbeResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Rows: TypeAlias = list[list[Cell]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table; ``rows`` are as long as ``headers``."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One audit's part of a report."""

    title: str
    about: str
    findings: Sequence[str]
    """One plain sentence each, whichever way it went."""
    tables: Sequence[Table]
    figures: Sequence[tuple[Callable[[], Figure], str]]
    """How each is drawn, and its caption."""


def gaming_section(audits: Sequence[GamingAudit], probes: Mapping[str, ProbeResult]) -> Section:
    """Score changes by edit; ``probes`` by scorer, where the traces are the lab's."""
    rows: Rows = [
        [e.edit, e.kind, e.on, a.scorer, e.traces, e.step, e.trace, e.fell, e.rose, e.verdict]
        for a, e in sorted(
            ((a, e) for a in audits for e in a.effects), key=lambda pair: (pair[1].kind, pair[1].edit)
        )
    ]
    headers = ["edit", "kind", "traces", "scorer", "n", "change at the step", "change of the trace"]
    tables = [
        Table(
            caption="Mean change of score by edit, share of traces whose score fell, and rose beyond the "
            "tolerance",
            headers=[*headers, "fell", "rose", "verdict"],
            rows=rows,
        ),
        Table(
            caption="What was left out",
            headers=[
                "scorer",
                "rule",
                "right",
                "wrong",
                "unknown",
                "chats",
                "no place",
                "not broken",
                "unscored",
            ],
            rows=[
                [
                    a.scorer,
                    a.rule,
                    a.right,
                    a.wrong,
                    a.unknown,
                    a.chats,
                    sum(e.not_applicable for e in a.effects),
                    sum(e.not_broken for e in a.effects),
                    sum(e.unscored for e in a.effects),
                ]
                for a in audits
            ],
        ),
    ]
    if probes:
        tables.insert(
            1,
            Table(
                caption="Content probe: a line is held fixed and its result varied; chance is 0.1",
                headers=["scorer", "right digit first", "contrast", "lines"],
                rows=[[name, p.right, p.contrast, p.lines] for name, p in probes.items()],
            ),
        )
    return Section(
        title="Verifier gaming",
        about="An edit that breaks a right solution must lower its score; an edit of style must not move it.",
        findings=[gaming_finding(audit, probes.get(audit.scorer)) for audit in audits],
        tables=tables,
        figures=[
            (partial(figures.effects_figure, audits), "Mean change of the trace's score by edit, 95 %.")
        ],
    )


def attack_section(audits: Sequence[AttackAudit]) -> Section:
    """Proxy and gold as the search against the verifier goes on."""
    rounds: Rows = [
        [a.scorer, number, point.proxy, point.gold, point.fooled]
        for a in audits
        for number, point in a.climb.items()
    ]
    pools: Rows = [
        [a.scorer, n, point.proxy, point.gold, point.fooled] for a in audits for n, point in a.best_of.items()
    ]
    examples: Rows = [
        [a.scorer, e.proxy_before, e.proxy_after, ", ".join(e.edits), e.text_before, e.text_after]
        for a in audits
        for e in a.examples
    ]
    return Section(
        title="A search against the verifier",
        about="Wrong solutions are edited, and what scores higher is kept. Fooled: wrong, and scored like "
        "the median right solution or better. Gold: "
        + "; ".join(dict.fromkeys(a.gold_is for a in audits))
        + ".",
        findings=[attack_finding(audit) for audit in audits],
        tables=[
            Table(
                caption="Hill climbing", headers=["scorer", "round", "proxy", "gold", "fooled"], rows=rounds
            ),
            Table(
                caption="Best of N random versions of each wrong solution",
                headers=["scorer", "N", "proxy", "gold", "fooled"],
                rows=pools,
            ),
            Table(
                caption="What was attacked, and the edits that were kept",
                headers=["scorer", "traces", "no score", "versions without", "median of right", "edits kept"],
                rows=[
                    [
                        a.scorer,
                        a.traces,
                        a.unscored,
                        a.versions_unscored,
                        a.right_median,
                        ", ".join(f"{name} {count}" for name, count in a.accepted.items()) or "none",
                    ]
                    for a in audits
                ],
            ),
            Table(
                caption="Still wrong, and best liked",
                headers=["scorer", "before", "after", "edits", "text before", "text after"],
                rows=examples,
            ),
        ],
        figures=[
            (partial(figures.climb_figure, audits), "Proxy (solid) and gold (dashed) by round of the climb."),
            (
                partial(figures.best_of_figure, audits),
                "Proxy (solid) and gold (dashed) for best of N versions.",
            ),
        ],
    )


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


def transfer_section(audit: TransferAudit) -> Section:
    """The matrix, once for AUC and once for F1."""

    def matrix(caption: str, value: Callable[[TransferCell], Cell]) -> Table:
        rows: Rows = [
            [train, *(value(audit.cell(train, test)) for test in audit.tested)] for train in audit.trained
        ]
        return Table(caption=caption, headers=["trained on", *audit.tested], rows=rows)

    return Section(
        title="Domain transfer",
        about="Each row is a scorer, named by what it was trained on; each column a labelled set.",
        findings=[transfer_finding(audit, train) for train in audit.trained],
        tables=[
            matrix("AUC of good steps over bad ones, by test domain", lambda cell: cell.auc),
            matrix(f"ProcessBench F1; threshold {audit.thresholds}", lambda cell: cell.f1),
            matrix("Threshold", lambda cell: cell.threshold),
            matrix("Traces that F1 is over", lambda cell: cell.traces),
        ],
        figures=[(partial(figures.matrix_figure, audit), "AUC by train (rows) and test domain (columns).")],
    )


def over_optimisation_section(audits: Sequence[OverOptimisationAudit]) -> Section:
    """Gold and proxy against the pressure of selection."""
    return Section(
        title="Over-optimisation",
        about="Best of N by score. Distance from the policy: KL = log N - (N - 1) / N.",
        findings=[over_finding(audit) for audit in audits],
        tables=[
            Table(
                caption="Where gold is highest, and what is lost beyond",
                headers=[
                    "scorer",
                    "rule",
                    "peak N",
                    "95 % of peaks",
                    "peak at the end",
                    "fall",
                    "alpha",
                    "beta",
                ],
                rows=[
                    [
                        a.scorer,
                        a.rule,
                        a.peak,
                        "{} to {}".format(*a.peak_interval),
                        a.peak_at_end,
                        a.fall,
                        a.alpha,
                        a.beta,
                    ]
                    for a in audits
                ],
            ),
            Table(
                caption="Gold (share right) and proxy (score) for best of N",
                headers=["scorer", "N", "sqrt KL", "proxy", "gold", "pass@N"],
                rows=[
                    [a.scorer, p.n, math.sqrt(p.kl), p.proxy, p.gold, p.ceiling]
                    for a in audits
                    for p in a.points
                ],
            ),
            Table(
                caption="What was used and left out",
                headers=["scorer", "problems", "too few traces", "traces needed", "no score", "no outcome"],
                rows=[
                    [a.scorer, a.problems, a.too_small, a.samples_needed, a.unscored, a.no_outcome]
                    for a in audits
                ],
            ),
        ],
        figures=[
            (partial(figures.pressure_figure, audits), "Gold (solid) and proxy (dashed) against sqrt KL.")
        ],
    )
