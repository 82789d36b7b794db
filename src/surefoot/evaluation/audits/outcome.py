"""Collapse to the outcome: does the scorer judge steps, or only foresee the final answer?

A model trained on final answers, or on values of prefixes, may look like a process model on the whole and
still wait for the last step. Four views: where the minimum lies; what a wrong step costs in traces whose
answer is right all the same; the score of the last step alone; the score of the steps in random order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.edits import Piece, cores, pieces, rebuilt
from surefoot.evaluation.audits.gaming import edit_stream
from surefoot.evaluation.audits.scorers import AuditedScorer, AuditScores, FloatArray
from surefoot.evaluation.plots import banded_line, legend, new_figure
from surefoot.evaluation.report import Section, Table
from surefoot.protocols import ProblemTrace
from surefoot.records import Trace, Usage
from surefoot.stats.bootstrap import bootstrap_auc, bootstrap_cluster_mean, bootstrap_correlation
from surefoot.stats.intervals import Cell, Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """Score of the step before the first error less that of the error; traces that err in their first step
    have none."""
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
    """Audit one scorer on traces with known outcomes; labels serve where steps are known.

    Raises ``ScoreError`` if no trace has an outcome.
    """
    judged = [case for case in cases if case.outcome is not None]
    if not judged:
        raise ScoreError(f"none of {len(cases)} traces has an 'outcome'; grade the answers first")
    scores = audited.score([case.item for case in judged])
    by_outcome = {
        name: [n for n, case in enumerate(judged) if case.outcome is wanted]
        for name, wanted in (("right answer", True), ("wrong answer", False))
    }
    without = _without_controls(audited, judged)
    texts, usage = ({}, Usage()) if without else _altered(audited, judged, seed)
    controls = _controls(judged, {"whole": scores.traces} | texts, draws, seed)
    return OutcomeAudit(
        scorer=audited.name,
        rule=audited.rule,
        lowest_last={
            name: _lowest_last(judged, scores, rows, draws, seed) for name, rows in by_outcome.items()
        },
        around_error={
            name: _around_error(judged, scores, rows, draws, seed) for name, rows in by_outcome.items()
        },
        controls=controls,
        without_controls=without,
        not_in_controls=len(judged) - controls["whole"].traces,
        no_outcome=len(cases) - len(judged),
        unscored=int(np.isnan(scores.traces).sum()),
        usage=scores.usage + usage,
    )


def last_step_only(trace: Trace) -> Trace:
    """The trace without all steps but its last."""
    parts = pieces(trace)
    last = len(parts) - 1
    return rebuilt(trace, "last step only", parts[-1:], step=0, was=last).trace


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
        Piece(text=before + middles[at] + after, gap=piece.gap)
        for at, (before, _, after), piece in zip(order, texts, parts, strict=False)
    ]
    return rebuilt(trace, "shuffled steps", [*moved, parts[-1]], step=len(moved), was=len(moved)).trace


def _lowest_last(
    cases: Sequence[Case], scores: AuditScores, rows: Sequence[int], draws: int, seed: int
) -> LowestLast:
    usable = [n for n in rows if len(scores.steps[n]) > 1 and not np.isnan(scores.steps[n]).any()]
    last, chance = [], []
    for row in usable:
        lowest = np.flatnonzero(scores.steps[row] == scores.steps[row].min())
        last.append(float(lowest[-1] == len(scores.steps[row]) - 1) / len(lowest))
        chance.append(1 / len(scores.steps[row]))
    problems = [cases[n].problem_id for n in usable]

    def mean(values: Sequence[float]) -> Interval:
        return bootstrap_cluster_mean(values, problems, draws=draws, rng=np.random.default_rng(seed))

    return LowestLast(share=mean(last), chance=mean(chance).value, traces=len(usable))


def _around_error(
    cases: Sequence[Case], scores: AuditScores, rows: Sequence[int], draws: int, seed: int
) -> AroundError:
    erring = [(n, error) for n in rows if (error := cases[n].first_error) is not None]
    problems = [cases[n].problem_id for n, _ in erring]

    def at(offset: int) -> FloatArray:
        return np.array(
            [
                scores.steps[n][error + offset] if 0 <= error + offset < len(scores.steps[n]) else math.nan
                for n, error in erring
            ]
        )

    def mean(values: FloatArray) -> Interval:
        return bootstrap_cluster_mean(values, problems, draws=draws, rng=np.random.default_rng(seed))

    drop = at(-1) - at(0)
    return AroundError(
        drop=mean(drop),
        by_offset={offset: mean(at(offset)) for offset in OFFSETS},
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
    """Trace scores of each control's texts, [cases], NaN where there is no such text; and the cost."""
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
    cases: Sequence[Case], scores: dict[str, FloatArray], draws: int, seed: int
) -> dict[str, Control]:
    """Every control over the traces that have all scores, or they could not be compared."""
    rows = np.flatnonzero(~np.isnan(list(scores.values())).any(axis=0)).tolist()
    outcome = [float(cases[n].outcome is True) for n in rows]
    problems = [cases[n].problem_id for n in rows]

    def correlation(first: FloatArray, second: Sequence[float] | FloatArray) -> Interval:
        return bootstrap_correlation(first, second, problems, draws=draws, rng=np.random.default_rng(seed))

    return {
        name: Control(
            auc=bootstrap_auc(found[rows], outcome, problems, draws=draws, rng=np.random.default_rng(seed)),
            correlation=correlation(found[rows], outcome),
            with_whole=correlation(found[rows], scores["whole"][rows]),
            traces=len(rows),
        )
        for name, found in scores.items()
    }


def outcome_section(audits: Sequence[OutcomeAudit]) -> Section:
    """Where the minimum lies, what an error costs, and what the last step alone is worth."""
    lowest: list[list[Cell]] = [
        [a.scorer, name, found.share, found.chance, found.traces]
        for a in audits
        for name, found in a.lowest_last.items()
    ]
    around: list[list[Cell]] = [
        [a.scorer, name, found.drop, *found.by_offset.values(), found.with_drop, found.traces]
        for a in audits
        for name, found in a.around_error.items()
    ]
    controls: list[list[Cell]] = [
        [a.scorer, a.rule, name, found.auc, found.correlation, found.with_whole, found.traces]
        for a in audits
        for name, found in a.controls.items()
    ]
    return Section(
        title="Collapse to the outcome",
        about="A scorer of steps loses score where the error is, whether the answer comes out correct or "
        "wrong, and has little to say of a last step alone or of steps in random order.",
        findings=[_finding(audit) for audit in audits],
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
            Table.of(
                "What was left out",
                audits,
                {
                    "scorer": "scorer",
                    "no outcome": "no_outcome",
                    "no trace score": "unscored",
                    "not in altered texts' table": "not_in_controls",
                    "altered texts": lambda a: a.without_controls or "scored",
                },
            ),
        ],
        figures=[
            (
                partial(_around_error_figure, audits),
                "Mean step score around the first error: correct answers solid, wrong answers dashed.",
            )
        ],
    )


def _finding(audit: OutcomeAudit) -> str:
    """What an error costs by outcome, and what the last step alone tells."""
    lucky, wrong = (audit.around_error[name].drop for name in ("right answer", "wrong answer"))
    sentence = (
        f"At the first error the score of {audit.scorer} drops by {lucky:.3f} where the answer is correct "
        f"all the same, and by {wrong:.3f} where it is wrong."
    )
    if "last step only" in audit.controls:
        whole, last, shuffled = (
            audit.controls[name].auc for name in ("whole", "last step only", "shuffled steps")
        )
        sentence += (
            f" It tells correct answers from wrong ones with AUC {whole:.3f}; from the last step alone "
            f"with {last:.3f}, with the steps before it shuffled {shuffled:.3f} (the same "
            f"{audit.controls['whole'].traces} traces)."
        )
    return sentence


def _around_error_figure(audits: Sequence[OutcomeAudit]) -> Figure:
    """Mean step score by distance from the first error."""
    figure, axes = new_figure("steps from the first error", "mean step score", lines=len(audits))
    for number, audit in enumerate(audits):
        for (_, found), style in zip(audit.around_error.items(), ("-", "--"), strict=True):
            label = audit.scorer if style == "-" else None
            banded_line(axes, list(found.by_offset), list(found.by_offset.values()), number, label, style)
    legend(figure)
    return figure
