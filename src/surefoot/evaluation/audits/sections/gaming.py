"""The gaming audit: score changes by edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from surefoot.evaluation.audits import figures
from surefoot.evaluation.audits.findings import gaming_finding
from surefoot.evaluation.audits.gaming import GamingAudit
from surefoot.evaluation.audits.sections.section import Rows, Section, Table
from surefoot.lab.probe import ProbeResult


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
