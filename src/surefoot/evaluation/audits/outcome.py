"""Collapse to the outcome: does the scorer judge steps, or only predict the final answer?

A model trained on final answers, or on values of prefixes, may look like a process model on average and still
wait for the last step. Four measures show it: where the minimum lies; the effect of a wrong step in traces
whose answer is correct anyway; the score of the last step alone; the score of the steps in random order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import AuditedScorer, Case
from surefoot.evaluation.audits.edits import Piece, cores, edit_stream, pieces, rebuilt
from surefoot.evaluation.frame import Card, card
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.step_layout import FloatArray
from surefoot.protocols import ProblemTrace
from surefoot.records import Trace, Usage
from surefoot.stats.bootstrap import Bootstrap
from surefoot.stats.intervals import FEWEST_UNITS, Interval

OFFSETS = range(-2, 3)
"""Steps around the first error that are reported."""


@dataclass(frozen=True, kw_only=True)
class LowestLast:
    """Where the lowest step is, among traces of two steps or more that are scored throughout."""

    share: Interval
    """Share of traces whose lowest score is the last step's; one that ties with others counts its part."""
    chance: float
    """What a random order of the scores gives: the mean of one over the number of steps."""
    traces: int


@dataclass(frozen=True, kw_only=True)
class AroundError:
    """Scores around the first error of wrong processes; intervals over problems."""

    drop: Interval
    """Score of the step before the first error less the error's score; undefined for an error in the first
    step."""
    by_offset: dict[int, Interval]
    """Mean step score by distance from the first error."""
    traces: int
    """Traces whose first error is known."""
    with_drop: int


@dataclass(frozen=True, kw_only=True)
class Control:
    """Trace scores of altered texts against the outcome of the unaltered traces.

    All controls of one audit are over the same traces: those that have a score in every one of them.
    """

    auc: Interval
    """Share of (right answer, wrong answer) pairs in which the right one scores higher."""
    correlation: Interval
    """Pearson, with the outcome."""
    with_whole: Interval
    """Pearson, with the score of the whole trace."""
    traces: int


@dataclass(frozen=True, kw_only=True)
class OutcomeAudit:
    """How much of one scorer is the outcome."""

    scorer: str
    rule: str
    lowest_last: dict[str, LowestLast]
    """By outcome: "right answer", "wrong answer"."""
    around_error: dict[str, AroundError]
    """By outcome of traces with a wrong process: "right answer" (lucky), "wrong answer"."""
    controls: dict[str, Control]
    """"whole", "last step only", "shuffled steps"; the first alone where no altered text was scored."""
    without_controls: str | None
    """Why the altered texts were not scored."""
    not_in_controls: int
    """Traces with an outcome that the controls leave out: chats and traces of one step, whose altered texts
    do not exist, and those without a score of each text."""
    no_outcome: int
    """Traces left out because their outcome is unknown."""
    unscored: int
    """Traces with an outcome but without an aggregated score."""
    usage: Usage


def audit_outcome(
    audited: AuditedScorer, cases: Sequence[Case], *, draws: int = 1000, seed: int = 0
) -> OutcomeAudit:
    """Audit one scorer on traces with known outcomes; labels are used where available.

    Raises ``ScoreError`` if no trace has an outcome.
    """
    judged = [case for case in cases if case.outcome is not None]
    if not judged:
        raise ScoreError(f"none of {len(cases)} traces has an 'outcome'; grade the answers first")
    scores = audited.score([case.item for case in judged])
    by_outcome = {
        name: [(case, row) for case, row in zip(judged, scores.steps, strict=True) if case.outcome is outcome]
        for name, outcome in (("right answer", True), ("wrong answer", False))
    }
    bootstrap = Bootstrap(draws=draws, seed=seed)
    without = _without_controls(audited, judged)
    texts, usage = ({}, Usage()) if without else _altered(audited, judged, seed)
    controls = _controls(judged, {"whole": scores.traces} | texts, bootstrap)
    return OutcomeAudit(
        scorer=audited.name,
        rule=audited.rule,
        lowest_last={name: _lowest_last(rows, bootstrap) for name, rows in by_outcome.items()},
        around_error={name: _around_error(rows, bootstrap) for name, rows in by_outcome.items()},
        controls=controls,
        without_controls=without,
        not_in_controls=len(judged) - controls["whole"].traces,
        no_outcome=len(cases) - len(judged),
        unscored=int(np.isnan(scores.traces).sum()),
        usage=scores.usage + usage,
    )


def last_step_only(trace: Trace) -> Trace:
    """The trace reduced to its last step."""
    parts = pieces(trace)
    return rebuilt(trace, "last step only", parts[-1:], step=0, was=len(parts) - 1).trace


def shuffled_steps(trace: Trace, rng: np.random.Generator) -> Trace:
    """The steps before the last in random order, never the old one if two of them differ; the last stays.

    White space at the ends of steps stays in place.
    """
    parts = pieces(trace)
    texts = [cores(piece.text) for piece in parts]
    middles = [core for _, core, _ in texts[:-1]]
    order = np.arange(len(middles))
    while len(set(middles)) > 1 and [middles[at] for at in order] == middles:
        order = rng.permutation(len(middles))
    moved = [
        Piece(text=head + middles[at] + tail, gap=piece.gap)
        for at, (head, _, tail), piece in zip(order, texts, parts, strict=False)
    ]
    return rebuilt(trace, "shuffled steps", [*moved, parts[-1]], step=len(moved), was=len(moved)).trace


def _lowest_last(rows: Sequence[tuple[Case, FloatArray]], bootstrap: Bootstrap) -> LowestLast:
    usable = [(case, row) for case, row in rows if len(row) > 1 and not np.isnan(row).any()]
    problems = [case.problem_id for case, _ in usable]
    last = [float(row[-1] == row.min()) / int((row == row.min()).sum()) for _, row in usable]
    chance = bootstrap.mean([1 / len(row) for _, row in usable], problems)
    return LowestLast(share=bootstrap.mean(last, problems), chance=chance.value, traces=len(usable))


def _around_error(rows: Sequence[tuple[Case, FloatArray]], bootstrap: Bootstrap) -> AroundError:
    erring = [(case, row, error) for case, row in rows if (error := case.first_error) is not None]
    problems = [case.problem_id for case, _, _ in erring]

    def at(offset: int) -> FloatArray:
        positions = [(row, error + offset) for _, row, error in erring]
        return np.array(
            [row[position] if 0 <= position < len(row) else math.nan for row, position in positions]
        )

    drop = at(-1) - at(0)
    return AroundError(
        drop=bootstrap.mean(drop, problems),
        by_offset={offset: bootstrap.mean(at(offset), problems) for offset in OFFSETS},
        traces=len(erring),
        with_drop=int((~np.isnan(drop)).sum()),
    )


def _alterable(case: Case) -> bool:
    return case.item.trace.text is not None and len(case.item.trace.steps) > 1


def _without_controls(audited: AuditedScorer, cases: Sequence[Case]) -> str | None:
    if audited.stored:
        return "stored scores: no new text can be scored"
    return None if any(map(_alterable, cases)) else "no trace is a text of two steps or more"


def _altered(audited: AuditedScorer, cases: Sequence[Case], seed: int) -> tuple[dict[str, FloatArray], Usage]:
    """Trace scores of each control's texts, [cases], NaN without such a text; and the cost."""
    rows = [n for n, case in enumerate(cases) if _alterable(case)]
    traces = [cases[n].item.trace for n in rows]
    altered = {
        "last step only": [last_step_only(trace) for trace in traces],
        "shuffled steps": [shuffled_steps(trace, edit_stream(seed, "shuffle", trace.id)) for trace in traces],
    }
    scores, usage = {}, Usage()
    for name, texts in altered.items():
        reading = audited.score(
            [
                ProblemTrace(problem=cases[n].item.problem, trace=text)
                for n, text in zip(rows, texts, strict=True)
            ]
        )
        usage += reading.usage
        scores[name] = np.full(len(cases), math.nan)
        scores[name][rows] = reading.traces
    return scores, usage


def _controls(
    cases: Sequence[Case], scores: dict[str, FloatArray], bootstrap: Bootstrap
) -> dict[str, Control]:
    """Every control over the traces that have all scores, so that the controls are comparable."""
    rows = np.flatnonzero(~np.isnan(list(scores.values())).any(axis=0)).tolist()
    outcome = [float(cases[n].outcome is True) for n in rows]
    problems = [cases[n].problem_id for n in rows]
    return {
        name: Control(
            auc=bootstrap.auc(values[rows], outcome, problems),
            correlation=bootstrap.correlation(values[rows], outcome, problems),
            with_whole=bootstrap.correlation(values[rows], scores["whole"][rows], problems),
            traces=len(rows),
        )
        for name, values in scores.items()
    }


def outcome_section(audits: Sequence[OutcomeAudit]) -> Section:
    """Position of the minimum, effect of an error, and scores of altered texts."""
    return Section(
        title="Collapse to the outcome",
        tested="outcome leakage",
        about="A scorer of steps drops at the error, whether the answer is correct or wrong, and cannot "
        "predict the outcome from the last step alone or from steps in random order.",
        results={"outcome": audits},
        cards={audit.scorer: _cards(audit) for audit in audits},
        limits=[f"{audits[0].no_outcome} traces without an outcome were left out."]
        * (audits[0].no_outcome > 0),
        plots=[
            Plot(
                "outcome.around_error.by_offset",
                "Mean step score by distance from the first error, with a correct and a wrong answer.",
            )
        ],
    )


def _cards(audit: OutcomeAudit) -> list[Card]:
    """The drop at the first error: with a correct answer, if there are enough, which no outcome explains."""
    lucky, wrong = (audit.around_error[name] for name in ("right answer", "wrong answer"))
    around, answer = (lucky, "correct") if lucky.with_drop >= FEWEST_UNITS else (wrong, "wrong")
    text = f"is the drop of the score at the first error, with a {answer} answer ({around.with_drop} traces)."
    return [card("reads", around.drop, text, around.with_drop, "such traces")] if around.with_drop else []
