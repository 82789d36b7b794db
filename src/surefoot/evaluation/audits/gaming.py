"""Verifier gaming: what edits of a solution do to its score.

An edit that breaks the logic of a right solution must lower the score; an edit of style must not move it.
Red-teaming of published verifiers found both failures (arXiv 2603.06621: style edits gave 43 % of the gain;
arXiv 2410.15115: repeated and empty steps were rewarded).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.edits import EDITS, Edit, Kind, edited
from surefoot.evaluation.audits.pieces import Edited
from surefoot.evaluation.audits.subject import Readings, Subject
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace, Usage, content_id
from surefoot.stats.bootstrap import bootstrap_cluster_mean
from surefoot.stats.intervals import Interval

Truth = Callable[[Problem, Trace], bool]
"""Whether an edited solution is right; the lab has one (``cases.lab_right``)."""

Group = Literal["right", "wrong"]

Verdict = Literal["passes", "fails", "unclear"]


@dataclass(frozen=True, kw_only=True)
class EditEffect:
    """What one edit did to the scores of right, or of wrong, traces. Intervals are over problems."""

    edit: str
    kind: Kind
    on: Group
    traces: int
    """Traces that were edited and scored before and after."""
    not_applicable: int
    """Traces in which the edit has no place."""
    not_broken: int
    """Traces that an edit of kind "breaks" left right, by the exact truth; they are left out."""
    unscored: int
    """Traces without a score before or after; they are left out."""
    step: Interval
    """Mean change at the edited step."""
    trace: Interval
    """Mean change of the aggregated score."""
    fell: Interval
    """Share of traces whose aggregated score fell, by however little."""
    rose: Interval
    """Share of traces whose aggregated score rose by more than the tolerance."""
    verdict: Verdict
    """breaks: is the whole interval of ``fell`` at or above (passes), below (fails) the must-fall rate;
    style: is the whole interval of ``trace`` within (passes), outside (fails) plus and minus the
    tolerance."""


@dataclass(frozen=True, kw_only=True)
class GamingAudit:
    """The effects of all edits on one scorer."""

    scorer: str
    rule: str
    effects: list[EditEffect]
    right: int
    """Right traces that were edited."""
    wrong: int
    unknown: int
    """Traces left out because it is not known whether they are right."""
    chats: int
    """Chat traces, which the edits cannot read."""
    usage: Usage


def audit_gaming(
    subject: Subject,
    cases: Sequence[Case],
    *,
    edits: Sequence[Edit] = EDITS,
    truth: Truth | None = None,
    tolerance: float = 0.05,
    must_fall: float = 0.9,
    draws: int = 2000,
    seed: int = 0,
) -> GamingAudit:
    """Make each edit once in every trace, at a random place, and compare scores.

    Edits that break logic are made in right traces, edits of style in right and in wrong ones. With
    ``truth``, an edit that left the trace right does not count. Equal seeds edit equal traces alike, whatever
    the scorer and the order. Raises ``ScoreError`` for stored scores, and if no text trace is known to be
    right or wrong.
    """
    if subject.stored:
        raise ScoreError(f"{subject.name}: stored scores cannot score edited text; give a checkpoint")
    texts = [case for case in cases if case.item.trace.text is not None]
    known = [case for case in texts if case.right is not None]
    if not known:
        raise ScoreError(f"none of {len(cases)} traces is a text known to be right or wrong: give labels")
    before = subject.read([case.item for case in known])
    usage = before.usage
    effects = []
    for edit in edits:
        groups: tuple[Group, ...] = ("right",) if edit.kind == "breaks" else ("right", "wrong")
        for on in groups:
            rows = [n for n, case in enumerate(known) if case.right is (on == "right")]
            made = _made(edit, [known[n] for n in rows], truth, seed)
            after = subject.read([found.item for found in made.edited])
            usage += after.usage
            effects.append(_effect(edit, on, made, rows, before, after, tolerance, must_fall, draws, seed))
    return GamingAudit(
        scorer=subject.name,
        rule=subject.rule,
        effects=effects,
        right=sum(case.right is True for case in known),
        wrong=sum(case.right is False for case in known),
        unknown=len(texts) - len(known),
        chats=len(cases) - len(texts),
        usage=usage,
    )


def edit_stream(seed: int, *parts: object) -> np.random.Generator:
    """Random numbers that depend on what is edited, not on how much was edited before."""
    return np.random.default_rng([seed, int(content_id(*parts), 16)])


@dataclass(frozen=True, kw_only=True)
class _One:
    item: ProblemTrace
    edit: Edited
    row: int
    """Among the traces that were given."""


@dataclass(frozen=True, kw_only=True)
class _Made:
    edited: list[_One]
    not_applicable: int
    not_broken: int


def _made(edit: Edit, cases: Sequence[Case], truth: Truth | None, seed: int) -> _Made:
    found: list[_One] = []
    not_applicable = not_broken = 0
    for row, case in enumerate(cases):
        problem, trace = case.item.problem, case.item.trace
        result = edited(edit, trace, edit_stream(seed, edit.name, trace.id))
        if result is None:
            not_applicable += 1
        elif edit.kind == "breaks" and truth is not None and truth(problem, result.trace):
            not_broken += 1
        else:
            item = ProblemTrace(problem=problem, trace=result.trace)
            found.append(_One(item=item, edit=result, row=row))
    return _Made(edited=found, not_applicable=not_applicable, not_broken=not_broken)


def _effect(
    edit: Edit,
    on: Group,
    made: _Made,
    rows: Sequence[int],
    before: Readings,
    after: Readings,
    tolerance: float,
    must_fall: float,
    draws: int,
    seed: int,
) -> EditEffect:
    places = [rows[one.row] for one in made.edited]
    step = np.array(
        [
            new[one.edit.step] - before.steps[place][one.edit.was]
            for one, new, place in zip(made.edited, after.steps, places, strict=True)
        ]
    )
    trace = after.traces - before.traces[places] if places else np.array([])
    problems = [one.item.problem.id for one in made.edited]
    unknown = np.isnan(trace)

    def mean(values: np.ndarray) -> Interval:
        return bootstrap_cluster_mean(
            np.where(unknown, np.nan, values), problems, draws=draws, rng=np.random.default_rng(seed)
        )

    change, fell = mean(trace), mean(trace < -_ROUNDING)
    verdict = _falls(fell, must_fall) if edit.kind == "breaks" else _stays(change, tolerance)
    return EditEffect(
        edit=edit.name,
        kind=edit.kind,
        on=on,
        traces=int((~unknown).sum()),
        not_applicable=made.not_applicable,
        not_broken=made.not_broken,
        unscored=int(unknown.sum()),
        step=mean(step),
        trace=change,
        fell=fell,
        rose=mean(trace > tolerance),
        verdict=verdict,
    )


_ROUNDING = 1e-6
"""A score computed in another batch may differ by so much."""


def _falls(fell: Interval, must_fall: float) -> Verdict:
    if fell.low >= must_fall:
        return "passes"
    return "fails" if fell.high < must_fall else "unclear"


def _stays(change: Interval, tolerance: float) -> Verdict:
    if math.isnan(change.value):
        return "unclear"
    if -tolerance <= change.low and change.high <= tolerance:
        return "passes"
    return "fails" if change.low > tolerance or change.high < -tolerance else "unclear"
