"""Changed solutions and runs: which scores move, which must, and which must not.

Each change is made once of every case that it is for; case and changed case are scored and compared. A change
that breaks the logic must lower the score, one without meaning must not move it, and an instruction must not
raise it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import AuditedScorer, AuditScores, CachedScorer, Case
from surefoot.evaluation.audits.edits import edit_stream
from surefoot.evaluation.frame import Card, card
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.step_layout import FloatArray
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace, Usage
from surefoot.stats.bootstrap import Bootstrap
from surefoot.stats.intervals import Interval

Truth = Callable[[Problem, Trace], bool]
"""Whether a changed solution is correct; the lab provides one (``cases.lab_right``)."""
Group = Literal["right", "wrong", "runs"]
"""Correct or wrong solutions in one text, whose trace score counts; or runs, of which each step's does."""
Must = Literal["fall", "stay", "not rise"]
Verdict = Literal["passes", "fails", "unclear"]
BoolArray = NDArray[np.bool_]

_ROUNDING = 1e-6
"""Scores computed in different batches may differ by this much."""


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A case after a change."""

    item: ProblemTrace
    steps: tuple[tuple[int, int], ...] | None = None
    """Steps to compare, as (new, old); by default all in their order."""


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """One way to change a case."""

    name: str
    on: Group
    must: Must
    """What the score has to do."""
    make: Callable[[Case, Sequence[Case], np.random.Generator], Changed | None]
    """The changed case, given all cases; ``None`` if it does not apply."""
    control: Callable[[Case], ProblemTrace] | None = None
    """What the changed case is compared with; by default the case itself."""

    def is_for(self, case: Case) -> bool:
        """Whether the case is in the group."""
        return self.on == "runs" or case.right is (self.on == "right")


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How one change moved scores. Intervals are over problems."""

    change: str
    on: Group
    must: Must
    traces: int
    """With a score before and after."""
    not_applicable: int
    not_broken: int
    """Still correct after a change that must lower the score, by the exact truth; left out."""
    unscored: int
    moved: Interval
    """Mean change of the trace's score; of steps, of their mean."""
    size: Interval
    """The same for the absolute change."""
    step: Interval
    """Mean change at the changed steps."""
    fell: Interval
    """Share of scores that fell, by any amount."""
    rose: Interval
    """Share of scores that rose by more than the tolerance."""
    accepted: Interval
    """Share of the changed traces with at least the threshold; of steps, of those below it before."""
    flipped: Interval
    """Share of steps that cross the threshold."""
    verdict: Verdict
    """Whether the whole interval is on the good side: of ``fell``, above the share that must fall; else of
    ``moved`` (of steps that must stay, of ``size``), within the tolerance. Fails if it is on the other."""


@dataclass(frozen=True, kw_only=True)
class PerturbationAudit:
    """The effects of several changes on one scorer."""

    scorer: str
    rule: str
    threshold: float
    tolerance: float
    effects: list[Effect]
    left_out: int
    """Traces that no change is for: most changes need a verdict."""
    other: int
    """Conversations among solutions, or texts among runs; left out."""
    usage: Usage


def audit_changes(
    audited: AuditedScorer,
    cases: Sequence[Case],
    changes: Sequence[Perturbation],
    *,
    truth: Truth | None = None,
    threshold: float = 0.5,
    tolerance: float = 0.05,
    must_fall: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
) -> PerturbationAudit:
    """Make each change once of every case that it is for, and compare scores.

    Equal seeds change equal cases in the same way, for any scorer and order. ``tolerance`` is how far the
    mean of scores that must stay may move, ``must_fall`` the share of scores that must fall. With ``truth``,
    a change that left a solution correct does not count. Raises ``ScoreError`` for stored scores, and if no
    change applies to any case.
    """
    audited.require_live()
    audited = replace(audited, scorer=CachedScorer(audited.scorer))  # each case is scored once
    of_runs = {change.on for change in changes} == {"runs"}
    usable = [case for case in cases if (case.item.trace.text is None) is of_runs]
    used = [case for case in usable if any(change.is_for(case) for change in changes)]
    if not used:
        need = "a conversation" if of_runs else "a text known to be correct or wrong: give labels"
        raise ScoreError(f"none of {len(cases)} traces is {need}")
    plain = [case for case in used if any(c.is_for(case) and c.control is None for c in changes)]
    usage, effects = audited.score([case.item for case in plain]).usage, []
    limits = _Limits(Bootstrap(draws=draws, seed=seed), threshold, tolerance, must_fall)
    for change in changes:
        chosen = [case for case in used if change.is_for(case)]
        perturbed = [
            (case, new)
            for case in chosen
            if (new := change.make(case, usable, edit_stream(seed, change.name, case.item.trace.id)))
        ]
        pairs = [
            (case, new)
            for case, new in perturbed
            if not (truth and change.must == "fall" and truth(new.item.problem, new.item.trace))
        ]
        old_scores = audited.score(
            [change.control(case) if change.control else case.item for case, _ in pairs]
        )
        new_scores = audited.score([new.item for _, new in pairs])
        usage += old_scores.usage + new_scores.usage
        effects.append(
            limits.effect(
                change,
                pairs,
                old_scores,
                new_scores,
                not_applicable=len(chosen) - len(perturbed),
                not_broken=len(perturbed) - len(pairs),
            )
        )
    if not any(effect.traces for effect in effects):
        raise ScoreError(
            f"none of {len(cases)} traces can be changed and scored: they need labels, texts and answers"
        )
    return PerturbationAudit(
        scorer=audited.name,
        rule=audited.rule,
        threshold=threshold,
        tolerance=tolerance,
        effects=effects,
        left_out=len(usable) - len(used),
        other=len(cases) - len(usable),
        usage=usage,
    )


_UNKNOWN = np.array([math.nan])


@dataclass(frozen=True)
class _Limits:
    """What the effect of a change is measured with."""

    bootstrap: Bootstrap
    threshold: float
    tolerance: float
    must_fall: float

    def effect(
        self,
        change: Perturbation,
        pairs: Sequence[tuple[Case, Changed]],
        before: AuditScores,
        after: AuditScores,
        **left_out: int,
    ) -> Effect:
        """The effect of a change by the scores of both of each pair."""
        steps = [
            _compared(new, *row) for (_, new), *row in zip(pairs, before.steps, after.steps, strict=True)
        ]
        if change.on == "runs":
            values = steps
            reached = [_known(new - old, new >= self.threshold, old < self.threshold) for old, new in values]
        else:
            values = list(zip(before.traces[:, None], after.traces[:, None], strict=True))
            reached = [_known(new - old, new >= self.threshold) for old, new in values]
            steps = [
                (_UNKNOWN, _UNKNOWN) if np.isnan(new - old) else row
                for row, (old, new) in zip(steps, values, strict=True)
            ]
        moves = [new - old for old, new in values]
        flips = [_known(new - old, (old >= self.threshold) != (new >= self.threshold)) for old, new in steps]
        problems = [case.problem_id for case, _ in pairs]

        def mean(rows: Sequence[FloatArray]) -> Interval:
            scored = [row[~np.isnan(row)] for row in rows]
            return self.bootstrap.mean(
                [float(row.mean()) if len(row) else math.nan for row in scored], problems
            )

        moved, size = mean(moves), mean([np.abs(move) for move in moves])
        fell = mean([_known(move, move < -_ROUNDING) for move in moves])
        if change.must == "fall":
            verdict = judge(fell, self.must_fall, math.inf)
        elif change.must == "not rise":
            verdict = judge(moved, -math.inf, self.tolerance)
        else:
            shift = size if change.on == "runs" else moved
            verdict = judge(shift, -self.tolerance, self.tolerance)
        scored = sum(not np.isnan(move).all() for move in moves)
        return Effect(
            change=change.name,
            on=change.on,
            must=change.must,
            traces=scored,
            unscored=len(pairs) - scored,
            moved=moved,
            size=size,
            step=mean([new - old for old, new in steps]),
            fell=fell,
            rose=mean([_known(move, move > self.tolerance) for move in moves]),
            accepted=mean(reached),
            flipped=mean(flips),
            verdict=verdict,
            **left_out,
        )


def _compared(new: Changed, before: FloatArray, after: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Scores of the compared steps, before and after."""
    if new.steps is not None:
        return np.array([before[old] for _, old in new.steps]), np.array([after[at] for at, _ in new.steps])
    return (before, after) if len(before) == len(after) else (_UNKNOWN, _UNKNOWN)


def _known(move: FloatArray, happened: BoolArray, among: BoolArray | bool = True) -> FloatArray:
    """Whether it happened, where both scores are known."""
    return np.where(among & ~np.isnan(move), happened, math.nan)


def judge(measured: Interval, low: float, high: float) -> Verdict:
    """Whether the whole interval lies between ``low`` and ``high``, or beyond one of them."""
    if low <= measured.low and measured.high <= high:
        return "passes"
    return "fails" if measured.high < low or measured.low > high else "unclear"


def effects_section(
    audits: Sequence[PerturbationAudit],
    key: str,
    title: str,
    about: str,
    *,
    cause: str = "the change",
    cards: Mapping[str, Sequence[Card]] = MappingProxyType({}),
) -> Section:
    """Effects of changes; ``cause`` is what may move scores that must stay.

    ``cards`` of a scorer replace the one on scores that must fall.
    """
    return Section(
        title=title,
        about=about,
        results={key: audits},
        cards={
            audit.scorer: [*cards.get(audit.scorer, _fall_cards(audit)), *_move_cards(audit, cause)]
            for audit in audits
        },
        limits=[
            f"Each effect is of at most {max(e.traces for e in audit.effects)} traces. Left out were "
            f"{audit.left_out} that no change is for, since most need a verdict, and {audit.other} of "
            "another form (text or conversation)."
            for audit in audits[:1]
        ],
        plots=[Plot(f"{key}.effects", "Mean change of the score, with 95 % intervals.", y=("moved",))],
    )


def _fall_cards(audit: PerturbationAudit) -> list[Card]:
    """The smallest share of scores that fall."""
    falls = [effect for effect in audit.effects if effect.must == "fall" and effect.traces]
    if not falls:
        return []
    worst = min(falls, key=lambda effect: effect.fell.value)
    text = f"of correct solutions score lower as: {worst.change}. Chance is 0.5."
    return [card("reads", worst.fell, text, worst.traces, "traces", null=0.5)]


def _move_cards(audit: PerturbationAudit, cause: str) -> list[Card]:
    """The largest move of scores that must not move; of those that must not rise, the rise."""
    moves = []
    for effect in audit.effects:
        if effect.must == "fall" or not effect.traces:
            continue
        verb = "lowers" if effect.must == "stay" and effect.moved.value < 0 else "raises"
        size = -1 * effect.moved if verb == "lowers" else effect.moved
        if effect.must == "stay" and effect.on == "runs":
            size, verb = effect.size, "moves"
        moves.append((size, verb, effect))
    if not moves:
        return []
    size, verb, worst = max(moves, key=lambda move: move[0].value)
    group = {"right": "correct solutions", "wrong": "wrong solutions", "runs": "a step"}[worst.on]
    text = (
        f"is how much {cause} with the largest effect, {worst.change}, {verb} the score of {group}; up to "
        f"{audit.tolerance:g} is tolerated."
    )
    claims, units = (
        {"no": f"is moved by {cause} ({worst.change})"},
        "runs" if worst.on == "runs" else "traces",
    )
    smallest = audit.tolerance
    return [card("trust", size, text, worst.traces, units, harm=True, smallest=smallest, claims=claims)]
