"""Verifier gaming: how edits of a solution change its score.

An edit that breaks the logic of a correct solution must lower the score; a style edit must not move it.
Red-teaming of published verifiers found both failures (arXiv 2603.06621: style edits account for 43 % of the
gain; arXiv 2410.15115: repeated and empty steps were rewarded).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.edits import EDITS, SWAP_NUMBER, Edit, edited
from surefoot.evaluation.audits.perturbations import Changed, Perturbation, PerturbationAudit, effects_section
from surefoot.evaluation.frame import Card, card
from surefoot.evaluation.report import Section
from surefoot.lab.probe import ProbeResult
from surefoot.protocols import ProblemTrace
from surefoot.stats.bootstrap import bootstrap_mean


def edit_changes(edit: Edit) -> Iterator[Perturbation]:
    """An edit as changes: one that breaks logic, of correct solutions; one of style, also of wrong ones."""

    def make(case: Case, _: Sequence[Case], rng: np.random.Generator) -> Changed | None:
        if (new := edited(edit, case.item.trace, rng)) is None:
            return None
        item = ProblemTrace(problem=case.item.problem, trace=new.trace)
        return Changed(item=item, steps=((new.step, new.was),))

    if edit.kind == "breaks":
        yield Perturbation(name=edit.name, on="right", must="fall", make=make)
    else:
        yield Perturbation(name=edit.name, on="right", must="stay", make=make)
        yield Perturbation(name=edit.name, on="wrong", must="stay", make=make)


EDIT_CHANGES = tuple(change for edit in EDITS for change in edit_changes(edit))


def gaming_section(audits: Sequence[PerturbationAudit], probes: Mapping[str, ProbeResult]) -> Section:
    """Score changes by edit; ``probes`` by scorer, if the traces come from the lab."""
    section = effects_section(
        audits,
        "gaming",
        "Verifier gaming",
        "An edit that breaks a correct solution must lower its score; a style edit must not move it.",
        cause="the edit of style",
        cards={audit.scorer: list(_reading(audit, probes.get(audit.scorer))) for audit in audits},
    )
    results = {"gaming": audits, "probe": probes}
    return replace(section, results=results, tested="edits that raise a score")


def _reading(audit: PerturbationAudit, probe: ProbeResult | None) -> Iterator[Card]:
    """The content probe, or else the swapped number."""
    if probe:
        problems = len(probe.by_problem)
        # lines of one problem are correlated, so problems are the resampled unit
        right = bootstrap_mean(probe.by_problem, rng=np.random.default_rng(0))
        text = (
            f"of the lines ({probe.lines}, mean over {problems} problems): the correct digit of ten scores "
            "highest. Chance is 0.1."
        )
        yield card("reads", right, text, problems, null=0.1)
        return
    for swap in [e for e in audit.effects if e.change == SWAP_NUMBER.name and e.traces]:
        text = f"of {swap.traces} correct traces score lower after one number is changed; chance is 0.5."
        yield card("reads", swap.fell, text, swap.traces, "traces", null=0.5)
