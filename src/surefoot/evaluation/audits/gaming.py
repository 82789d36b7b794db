"""Verifier gaming: how edits of a solution change its score.

An edit that breaks the logic of a correct solution must lower the score; a style edit must not move it.
Red-teaming of published verifiers found both failures (arXiv 2603.06621: style edits account for 43 % of the
gain; arXiv 2410.15115: repeated and empty steps were rewarded).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.edits import EDITS, Edit, Kind, edit_stream, edited
from surefoot.evaluation.audits.scorers import AuditedScorer
from surefoot.evaluation.audits.settings import GAMING, GamingSettings
from surefoot.evaluation.frame import Card, card
from surefoot.evaluation.report import Plot, Section
from surefoot.lab.probe import ProbeResult
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace, Usage
from surefoot.stats.bootstrap import Bootstrap, bootstrap_mean
from surefoot.stats.intervals import Interval

Truth = Callable[[Problem, Trace], bool]
"""Whether an edited solution is correct; the lab provides one (``cases.lab_right``)."""

Group = Literal["right", "wrong"]

Verdict = Literal["passes", "fails", "unclear"]

_ROUNDING = 1e-6
"""Scores computed in different batches may differ by this much."""


@dataclass(frozen=True, kw_only=True)
class EditEffect:
    """How one edit changed the scores of correct, or of wrong, traces. Intervals are over problems."""

    edit: str
    kind: Kind
    on: Group
    traces: int
    """Traces that were edited, with a score before and after."""
    not_applicable: int
    """Traces without a place for the edit."""
    not_broken: int
    """Traces still correct after an edit of kind "breaks", by the exact truth; they are left out."""
    unscored: int
    """Traces without a score before or after; they are left out."""
    step: Interval
    """Mean change at the edited step."""
    trace: Interval
    """Mean change of the aggregated score."""
    fell: Interval
    """Share of traces whose aggregated score fell, by any amount."""
    rose: Interval
    """Share of traces whose aggregated score rose by more than the tolerance."""
    verdict: Verdict
    """For "breaks": passes if the interval of ``fell`` is at or above the must-fall rate, fails if it is
    below. For "style": passes if the interval of ``trace`` is within plus and minus the tolerance, fails if
    it is outside. Otherwise unclear."""


@dataclass(frozen=True, kw_only=True)
class GamingAudit:
    """The effects of all edits on one scorer."""

    scorer: str
    rule: str
    effects: list[EditEffect]
    right: int
    """Correct traces that were edited."""
    wrong: int
    unknown: int
    """Traces left out because nothing says whether they are correct."""
    chats: int
    """Chat traces, which the edits cannot read."""
    usage: Usage


def audit_gaming(
    audited: AuditedScorer,
    cases: Sequence[Case],
    settings: GamingSettings = GAMING,
    *,
    edits: Sequence[Edit] = EDITS,
    truth: Truth | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> GamingAudit:
    """Make each edit once in every trace, at a random place, and compare scores.

    Edits that break logic are made in correct traces, style edits in correct and in wrong ones. With
    ``truth``, an edit that left the trace correct does not count. Equal seeds edit equal traces in the same
    way, for any scorer and order. Raises ``ScoreError`` for stored scores, and if no text trace is known to
    be correct or wrong.
    """
    audited.require_live()
    texts = [case for case in cases if case.item.trace.text is not None]
    usable = [case for case in texts if case.right is not None]
    if not usable:
        raise ScoreError(f"none of {len(cases)} traces is a text known to be correct or wrong: give labels")
    original = audited.score([case.item for case in usable])
    usage, effects, bootstrap = original.usage, [], Bootstrap(draws=draws, seed=seed)
    for edit in edits:
        groups: tuple[Group, ...] = ("right",) if edit.kind == "breaks" else ("right", "wrong")
        for on in groups:
            rows = [n for n, case in enumerate(usable) if case.right is (on == "right")]
            versions = [
                (n, edited(edit, usable[n].item.trace, edit_stream(seed, edit.name, usable[n].item.trace.id)))
                for n in rows
            ]
            changed = [(usable[n], n, version) for n, version in versions if version]
            if edit.kind == "breaks" and truth:
                changed = [
                    (c, n, version) for c, n, version in changed if not truth(c.item.problem, version.trace)
                ]
            scores = audited.score(
                [ProblemTrace(problem=case.item.problem, trace=version.trace) for case, _, version in changed]
            )
            usage += scores.usage
            applicable = sum(version is not None for _, version in versions)
            step = np.array(
                [
                    new[version.step] - original.steps[n][version.was]
                    for (_, n, version), new in zip(changed, scores.steps, strict=True)
                ]
            )
            trace = scores.traces - original.traces[[n for _, n, _ in changed]] if changed else np.array([])
            unscored = np.isnan(trace)
            problems = [case.problem_id for case, _, _ in changed]

            def mean(
                values: ArrayLike, unscored: ArrayLike = unscored, problems: Sequence[str] = problems
            ) -> Interval:
                return bootstrap.mean(np.where(unscored, np.nan, values), problems)

            change, fell = mean(trace), mean(trace < -_ROUNDING)
            stays = judge_change(change, settings.tolerance)
            effects.append(
                EditEffect(
                    edit=edit.name,
                    kind=edit.kind,
                    on=on,
                    traces=int((~unscored).sum()),
                    not_applicable=len(rows) - applicable,
                    not_broken=applicable - len(changed),
                    unscored=int(unscored.sum()),
                    step=mean(step),
                    trace=change,
                    fell=fell,
                    rose=mean(trace > settings.tolerance),
                    verdict=judge_fall(fell, settings.must_fall) if edit.kind == "breaks" else stays,
                )
            )
    return GamingAudit(
        scorer=audited.name,
        rule=audited.rule,
        effects=effects,
        right=sum(case.right is True for case in usable),
        wrong=sum(case.right is False for case in usable),
        unknown=len(texts) - len(usable),
        chats=len(cases) - len(texts),
        usage=usage,
    )


def judge_fall(fell: Interval, must_fall: float) -> Verdict:
    """Whether at least ``must_fall`` of the scores fell."""
    if fell.low >= must_fall:
        return "passes"
    return "fails" if fell.high < must_fall else "unclear"


def judge_change(change: Interval, tolerance: float) -> Verdict:
    """Whether the mean change lies within ``tolerance``."""
    if math.isnan(change.value):
        return "unclear"
    if -tolerance <= change.low and change.high <= tolerance:
        return "passes"
    return "fails" if change.low > tolerance or change.high < -tolerance else "unclear"


def gaming_section(
    audits: Sequence[GamingAudit],
    probes: Mapping[str, ProbeResult],
    tolerance: float = GAMING.tolerance,
) -> Section:
    """Score changes by edit; ``probes`` by scorer, if the traces come from the lab."""
    return Section(
        title="Verifier gaming",
        tested="edits that raise a score",
        about="An edit that breaks a correct solution must lower its score; a style edit must not move it.",
        results={"gaming": audits, "probe": probes},
        cards={a.scorer: _cards(a, probes.get(a.scorer), tolerance) for a in audits},
        limits=[
            f"Edits were made in {audits[0].right} correct and {audits[0].wrong} wrong traces; "
            f"{audits[0].unknown} traces without a verdict and {audits[0].chats} chats were left out."
        ],
        plots=[
            Plot(
                "gaming.effects",
                "Mean change of the trace's score by edit, with 95 % intervals.",
                y=("trace",),
            )
        ],
    )


def _cards(audit: GamingAudit, probe: ProbeResult | None, tolerance: float) -> list[Card]:
    """The content probe, or else the swapped number; and the style edit that moves the score most."""
    cards = []
    if probe:
        problems = len(probe.by_problem)
        # lines of one problem are correlated, so problems are the resampled unit
        right = bootstrap_mean(probe.by_problem, rng=np.random.default_rng(0))
        text = (
            f"of the lines ({probe.lines}, mean over {problems} problems): the correct digit of ten scores "
            "highest. Chance is 0.1."
        )
        cards.append(card("reads", right, text, problems, null=0.1))
    for swap in [e for e in audit.effects if e.edit == "swapped number" and e.traces and not probe]:
        text = f"of {swap.traces} correct traces score lower after one number is changed; chance is 0.5."
        cards.append(card("reads", swap.fell, text, swap.traces, "traces", null=0.5))
    style = [e for e in audit.effects if e.kind == "style" and not math.isnan(e.trace.value)]
    if style:
        worst = max(style, key=lambda e: abs(e.trace.value))
        sign = math.copysign(1, worst.trace.value)
        text = (
            f"is how much the edit of style with the largest effect, {worst.edit}, "
            f"{'lowers' if sign < 0 else 'raises'} the score of "
            f"{'correct' if worst.on == 'right' else 'wrong'} traces; up to {tolerance:g} is tolerated."
        )
        options: Any = {"smallest": tolerance, "claims": {"no": f"is moved by style ({worst.edit})"}}
        cards.append(card("trust", sign * worst.trace, text, worst.traces, "traces", harm=True, **options))
    return cards
