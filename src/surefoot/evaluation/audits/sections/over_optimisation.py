"""The over-optimisation audit: gold and proxy under pressure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from surefoot.evaluation.audits import figures
from surefoot.evaluation.audits.findings import over_finding
from surefoot.evaluation.audits.over_optimisation import OverOptimisationAudit
from surefoot.evaluation.audits.sections.section import Section, Table


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
