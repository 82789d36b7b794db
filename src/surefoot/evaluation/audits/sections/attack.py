"""The attack audit: the search against the verifier, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from surefoot.evaluation.audits import figures
from surefoot.evaluation.audits.attack import AttackAudit
from surefoot.evaluation.audits.findings import attack_finding
from surefoot.evaluation.audits.sections.section import Rows, Section, Table


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
