"""Verifier gaming: what edits of a solution do to its score.

An edit that breaks the logic of a right solution must lower the score; an edit of style must not move it.
Red-teaming of published verifiers found both failures (arXiv 2603.06621: style edits gave 43 % of the gain;
arXiv 2410.15115: repeated and empty steps were rewarded).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.edits import EDITS, Edit, Edited, Kind, edited
from surefoot.evaluation.audits.scorers import AuditedScorer, AuditScores
from surefoot.evaluation.plots import interval_marks, legend, new_figure
from surefoot.evaluation.report import Section, Table
from surefoot.lab.probe import ProbeResult
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace, Usage, content_id
from surefoot.stats.bootstrap import bootstrap_cluster_mean
from surefoot.stats.intervals import Cell, Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    audited: AuditedScorer,
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
    if audited.stored:
        raise ScoreError(f"{audited.name}: stored scores cannot score edited text; give a checkpoint")
    texts = [case for case in cases if case.item.trace.text is not None]
    known = [case for case in texts if case.right is not None]
    if not known:
        raise ScoreError(f"none of {len(cases)} traces is a text known to be correct or wrong: give labels")
    before = audited.score([case.item for case in known])
    usage = before.usage
    effects = []
    for edit in edits:
        groups: tuple[Group, ...] = ("right",) if edit.kind == "breaks" else ("right", "wrong")
        for on in groups:
            rows = [n for n, case in enumerate(known) if case.right is (on == "right")]
            made = _edited_traces(edit, [known[n] for n in rows], truth, seed)
            after = audited.score([one.item for one in made.edited])
            usage += after.usage
            effects.append(_effect(edit, on, made, rows, before, after, tolerance, must_fall, draws, seed))
    return GamingAudit(
        scorer=audited.name,
        rule=audited.rule,
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
class _EditedTrace:
    item: ProblemTrace
    edit: Edited
    row: int
    """Among the traces that the edit is made in."""


@dataclass(frozen=True, kw_only=True)
class _EditedTraces:
    edited: list[_EditedTrace]
    not_applicable: int
    not_broken: int


def _edited_traces(edit: Edit, cases: Sequence[Case], truth: Truth | None, seed: int) -> _EditedTraces:
    usable: list[_EditedTrace] = []
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
            usable.append(_EditedTrace(item=item, edit=result, row=row))
    return _EditedTraces(edited=usable, not_applicable=not_applicable, not_broken=not_broken)


def _effect(
    edit: Edit,
    on: Group,
    made: _EditedTraces,
    rows: Sequence[int],
    before: AuditScores,
    after: AuditScores,
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


def gaming_section(audits: Sequence[GamingAudit], probes: Mapping[str, ProbeResult]) -> Section:
    """Score changes by edit; ``probes`` by scorer, where the traces are the lab's."""
    rows: list[list[Cell]] = [
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
        Table.of(
            "What was left out",
            audits,
            {
                "scorer": "scorer",
                "rule": "rule",
                "right": "right",
                "wrong": "wrong",
                "unknown": "unknown",
                "chats": "chats",
                "no place": lambda a: sum(e.not_applicable for e in a.effects),
                "not broken": lambda a: sum(e.not_broken for e in a.effects),
                "unscored": lambda a: sum(e.unscored for e in a.effects),
            },
        ),
    ]
    if probes:
        tables.insert(
            1,
            Table(
                caption="Content probe: a line is held fixed and its result varied; chance is 0.1",
                headers=["scorer", "correct digit first", "contrast", "lines"],
                rows=[[name, p.right, p.contrast, p.lines] for name, p in probes.items()],
            ),
        )
    return Section(
        title="Verifier gaming",
        about="An edit that breaks a correct solution must lower its score; one of style must not move it.",
        findings=[_finding(audit, probes.get(audit.scorer)) for audit in audits],
        tables=tables,
        figures=[(partial(_effects_figure, audits), "Mean change of the trace's score by edit, 95 %.")],
    )


def _finding(audit: GamingAudit, probe: ProbeResult | None) -> str:
    """Which tests with edits were passed, and which failed."""

    def named(kind: str, verdict: str) -> list[EditEffect]:
        return [e for e in audit.effects if e.kind == kind and e.verdict == verdict]

    parts = []
    for kind, bad in (("breaks", "does not fall for"), ("style", "is moved by")):
        every = [e for e in audit.effects if e.kind == kind]
        failed = named(kind, "fails")
        listed = f", {bad} " + ", ".join(f"{e.edit} ({e.on})" for e in failed) if failed else ""
        what = "edits that break logic" if kind == "breaks" else "edits of style"
        parts.append(f"passes {len(named(kind, 'passes'))} of {len(every)} tests with {what}{listed}")
    sentence = f"{audit.scorer} {parts[0]}; it {parts[1]}."
    if probe:
        sentence += (
            f" In the content probe the correct digit comes first in {probe.right:.0%} of the lines; chance "
            "is 10%."
        )
    return sentence


def _effects_figure(audits: Sequence[GamingAudit]) -> Figure:
    """Mean change of the trace's score by edit, one mark a scorer, with its interval."""
    names = [f"{e.edit} ({e.kind}, {e.on})" for e in audits[0].effects]
    figure, axes = new_figure(
        "change of the trace's score", "", height=1.5 + 0.32 * len(names), lines=len(audits)
    )
    for number, audit in enumerate(audits):
        shift = (number + 1) / (len(audits) + 1) - 0.5
        places = [row + 0.6 * shift for row in range(len(audit.effects))]
        interval_marks(axes, [e.trace for e in audit.effects], places, number, audit.scorer, upright=False)
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    legend(figure)
    return figure
