"""False process confidence: solutions that look clean and were written after the answer.

Each of three groups has something another lacks: *right* (right steps, right answer), *rationalised* (a wrong
step, and yet the right answer) and *wrong* (a wrong step and a wrong answer). A scorer of outcomes parts the
first from the third only; a scorer of steps parts it from both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import Case, lab_cases
from surefoot.evaluation.audits.scorers import AuditedScorer, FloatArray
from surefoot.evaluation.plots import interval_marks, legend, new_figure
from surefoot.evaluation.report import Section, Table
from surefoot.lab.world import BASE, ArithmeticChain, apply, parse_problem
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace, Usage
from surefoot.segment import Line, segment_trace
from surefoot.stats.bootstrap import Resample, bootstrap_auc, bootstrap_cluster_mean, bootstrap_statistic
from surefoot.stats.intervals import Interval
from surefoot.stats.roc import roc_auc_within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Group = Literal["right", "rationalised", "wrong"]

GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True, kw_only=True)
class GroupScores:
    """Trace scores of one group."""

    mean: Interval
    cleared: Interval
    """Share with an aggregated score at or above the threshold: taken for right."""
    traces: int


@dataclass(frozen=True, kw_only=True)
class CleanAudit:
    """Whether one scorer sees through rationalised solutions; intervals over problems."""

    scorer: str
    rule: str
    threshold: float
    groups: dict[Group, GroupScores]
    right_over_rationalised: Interval
    """AUC: share of pairs in which the right solution scores higher; 0.5 = cannot tell them apart."""
    right_over_rationalised_within: Interval
    """The same over pairs of one problem, so that a problem's difficulty plays no part."""
    right_over_wrong: Interval
    unscored: int
    ungrouped: int
    """Traces left out: outcome or process unknown, or the process is right and the answer wrong."""
    usage: Usage


def audit_clean(
    audited: AuditedScorer,
    cases: Sequence[Case],
    *,
    threshold: float = 0.5,
    draws: int = 1000,
    seed: int = 0,
) -> CleanAudit:
    """Compare the scores of the three groups.

    Raises ``ScoreError`` if no trace is right, or none is rationalised: there is nothing to compare.
    """
    groups = [group_of(case) for case in cases]
    for needed in ("right", "rationalised"):
        if needed not in groups:
            raise ScoreError(f"none of {len(cases)} traces is {needed!r} by its outcome and its labels")
    grouped = [(case, group) for case, group in zip(cases, groups, strict=True) if group is not None]
    scores = audited.score([case.item for case, _ in grouped])
    values, problems = scores.traces, [case.problem_id for case, _ in grouped]
    place = {name: [n for n, (_, group) in enumerate(grouped) if group == name] for name in GROUPS}

    def auc(bad: Group, *, within: bool = False) -> Interval:
        rows = [*place["right"], *place[bad]]
        good = [1.0] * len(place["right"]) + [0.0] * len(place[bad])
        estimate = _within if within else bootstrap_auc
        rng = np.random.default_rng(seed)
        return estimate(values[rows], good, [problems[n] for n in rows], draws=draws, rng=rng)

    return CleanAudit(
        scorer=audited.name,
        rule=audited.rule,
        threshold=threshold,
        groups={
            name: _group(values[rows], [problems[n] for n in rows], threshold, draws, seed)
            for name, rows in place.items()
        },
        right_over_rationalised=auc("rationalised"),
        right_over_rationalised_within=auc("rationalised", within=True),
        right_over_wrong=auc("wrong"),
        unscored=int(np.isnan(values).sum()),
        ungrouped=len(cases) - len(grouped),
        usage=scores.usage,
    )


def group_of(case: Case) -> Group | None:
    """The group of a trace by its outcome and labels; ``None`` if it has none."""
    if case.outcome is None or case.right is None:
        return None
    if case.right:
        return "right" if case.outcome else None
    return "rationalised" if case.outcome else "wrong"


def rationalised_lab_cases(problems: Sequence[Problem], *, seed: int = 0) -> list[Case]:
    """For each lab problem a right solution, a rationalised one and a wrong one.

    The rationalised one has a wrong result in a random line, goes on from it without a fault, and makes its
    last operation end in the right answer whatever it should give: each line takes up where the one before
    ended, so only calculating shows the fault. The wrong one is the same without the last turn. A problem in
    which the wrong result is forgotten on the way (0 times anything) gives no wrong one; one of a single
    operation has no line to turn and gives only the right one. Raises ``RecordError`` for a problem of
    another world.
    """
    rng = np.random.default_rng(seed)
    items: list[ProblemTrace] = []
    for problem in problems:
        chain = parse_problem(problem.text)
        results = _results(chain)
        items.append(_item(problem, chain, results, "right"))
        if len(results) < 2:
            continue
        at = int(rng.integers(len(results) - 1))
        honest = [*results[:at], int((results[at] + rng.integers(1, BASE)) % BASE)]
        for symbol, digit in chain.operations[at + 1 :]:
            honest.append(apply(honest[-1], symbol, digit))
        items.append(_item(problem, chain, [*honest[:-1], results[-1]], "rationalised"))
        if honest[-1] != results[-1]:
            items.append(_item(problem, chain, honest, "wrong"))
    return lab_cases(items)


def _results(chain: ArithmeticChain) -> list[int]:
    value, results = chain.start, []
    for symbol, digit in chain.operations:
        value = apply(value, symbol, digit)
        results.append(value)
    return results


def _item(problem: Problem, chain: ArithmeticChain, results: Sequence[int], name: str) -> ProblemTrace:
    starts = [chain.start, *results]
    lines = [
        f"{start} {symbol} {digit} = {result}\n"
        for start, (symbol, digit), result in zip(starts, chain.operations, results, strict=False)
    ]
    trace = Trace(
        problem_id=problem.id,
        text="".join([*lines, f"Answer: {results[-1]}\n"]),
        answer=str(results[-1]),
        outcome=results[-1] == chain.answer,
        policy=f"lab-{name}",
    )
    return ProblemTrace(problem=problem, trace=segment_trace(trace, Line()))


def _group(
    scores: FloatArray, problems: Sequence[str], threshold: float, draws: int, seed: int
) -> GroupScores:
    def mean(values: FloatArray) -> Interval:
        return bootstrap_cluster_mean(values, problems, draws=draws, rng=np.random.default_rng(seed))

    cleared = np.where(np.isnan(scores), math.nan, scores >= threshold)
    return GroupScores(mean=mean(scores), cleared=mean(cleared), traces=int((~np.isnan(scores)).sum()))


def _within(
    scores: FloatArray,
    good: Sequence[float],
    problems: Sequence[str],
    *,
    draws: int,
    rng: np.random.Generator,
) -> Interval:
    truth = np.array(good)

    def statistic(draw: Resample) -> float:
        return roc_auc_within(scores[draw.items], truth[draw.items], draw.clusters).value

    return bootstrap_statistic(problems, statistic, draws=draws, rng=rng)


def clean_section(audits: Sequence[CleanAudit]) -> Section:
    """Right, rationalised and wrong solutions."""
    return Section(
        title="False process confidence",
        about="Rationalised solutions have a wrong step and the correct answer: they look clean from their "
        f"end. Cleared: a trace score of {audits[0].threshold:g} or more.",
        findings=[_finding(audit) for audit in audits],
        tables=[
            Table.of(
                "Pairs in which the correct solution scores higher (AUC)",
                audits,
                {
                    "scorer": "scorer",
                    "rule": "rule",
                    "over rationalised": "right_over_rationalised",
                    "within a problem": "right_over_rationalised_within",
                    "over wrong": "right_over_wrong",
                },
            ),
            Table(
                caption="Trace scores by group",
                headers=["scorer", "group", "mean", "cleared", "n"],
                rows=[
                    [a.scorer, name, a.groups[name].mean, a.groups[name].cleared, a.groups[name].traces]
                    for a in audits
                    for name in GROUPS
                ],
            ),
            Table.of(
                "What was left out",
                audits,
                {"scorer": "scorer", "no trace score": "unscored", "in no group": "ungrouped"},
            ),
        ],
        figures=[(partial(_groups_figure, audits), "Mean trace score by group, 95 %.")],
    )


def _finding(audit: CleanAudit) -> str:
    """Whether rationalised solutions are seen through."""
    return (
        f"{audit.scorer} prefers the correct solution to a rationalised one in "
        f"{audit.right_over_rationalised:.3f} of the pairs, to a wrong one in "
        f"{audit.right_over_wrong:.3f}; it clears {audit.groups['rationalised'].cleared:.3f} of "
        f"the rationalised and {audit.groups['right'].cleared:.3f} of the correct ones."
    )


def _groups_figure(audits: Sequence[CleanAudit]) -> Figure:
    """Mean trace score of the three groups."""
    figure, axes = new_figure("", "mean trace score", lines=len(audits))
    for number, audit in enumerate(audits):
        shift = 0.5 * ((number + 1) / (len(audits) + 1) - 0.5)
        places = [place + shift for place in range(len(GROUPS))]
        interval_marks(
            axes, [audit.groups[name].mean for name in GROUPS], places, number, audit.scorer, upright=True
        )
    axes.set_xticks(range(len(GROUPS)), GROUPS)
    legend(figure)
    return figure
