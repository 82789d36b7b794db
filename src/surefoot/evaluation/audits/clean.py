"""False process confidence: solutions with a hidden wrong step and a correct answer.

Three groups are compared: *right* (correct steps and answer), *rationalised* (a wrong step, but a correct
answer) and *wrong* (a wrong step and a wrong answer). A scorer of outcomes separates the first from the third
only; a scorer of steps separates it from both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import AuditedScorer, Case, lab_cases
from surefoot.evaluation.frame import Card, card
from surefoot.evaluation.report import Plot, Section
from surefoot.lab.world import ArithmeticChain, other_digit, parse_problem
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace, Usage
from surefoot.segment import Line, segment_trace
from surefoot.stats.bootstrap import Bootstrap, Resample
from surefoot.stats.intervals import Interval
from surefoot.stats.roc import roc_auc_within

Group = Literal["right", "rationalised", "wrong"]

GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True, kw_only=True)
class GroupScores:
    """Trace scores of one group."""

    mean: Interval
    cleared: Interval
    """Share with an aggregated score at or above the threshold, which counts as accepted."""
    traces: int


@dataclass(frozen=True, kw_only=True)
class CleanAudit:
    """Whether one scorer detects rationalised solutions; intervals over problems."""

    scorer: str
    rule: str
    threshold: float
    groups: dict[Group, GroupScores]
    right_over_rationalised: Interval
    """AUC: share of pairs in which the correct solution scores higher; 0.5 = chance."""
    right_over_rationalised_within: Interval
    """The same over pairs of one problem, which removes the effect of the problem's difficulty."""
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
    rows = {name: [n for n, (_, group) in enumerate(grouped) if group == name] for name in GROUPS}
    bootstrap = Bootstrap(draws=draws, seed=seed)

    def auc(bad: Group, *, within: bool = False) -> Interval:
        used = [*rows["right"], *rows[bad]]
        score = values[used]
        good = np.array([1.0] * len(rows["right"]) + [0.0] * len(rows[bad]))
        owners = [problems[n] for n in used]
        if not within:
            return bootstrap.auc(score, good, owners)

        def statistic(draw: Resample) -> float:
            return roc_auc_within(score[draw.items], good[draw.items], draw.clusters).value

        return bootstrap.statistic(owners, statistic)

    def group_scores(used: list[int]) -> GroupScores:
        score, owners = values[used], [problems[n] for n in used]
        unscored = np.isnan(score)
        cleared = np.where(unscored, math.nan, score >= threshold)
        return GroupScores(
            mean=bootstrap.mean(score, owners),
            cleared=bootstrap.mean(cleared, owners),
            traces=int((~unscored).sum()),
        )

    return CleanAudit(
        scorer=audited.name,
        rule=audited.rule,
        threshold=threshold,
        groups={name: group_scores(used) for name, used in rows.items()},
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
    """For each lab problem a correct solution, a rationalised one and a wrong one.

    The rationalised one has a wrong result in a random line, continues correctly from it, and states the
    correct answer as the result of its last operation. Each line starts with the result of the line before,
    so only calculation reveals the fault. The wrong one is the same with the calculated last result. A
    problem that loses the wrong result on the way (0 times anything) has no wrong solution; one with a single
    operation has the correct solution alone. Raises ``RecordError`` for a problem of another world.
    """
    rng = np.random.default_rng(seed)
    items: list[ProblemTrace] = []
    for problem in problems:
        chain = parse_problem(problem.text)
        results = chain.running(chain.start)[1:]
        items.append(_item(problem, chain, results, "right"))
        if len(results) < 2:
            continue
        at = int(rng.integers(len(results) - 1))
        honest = [*results[:at], *chain.running(other_digit(results[at], rng, chain.base), at + 1)]
        items.append(_item(problem, chain, [*honest[:-1], results[-1]], "rationalised"))
        if honest[-1] != results[-1]:
            items.append(_item(problem, chain, honest, "wrong"))
    return lab_cases(items)


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


def clean_section(audits: Sequence[CleanAudit]) -> Section:
    """Correct, rationalised and wrong solutions."""
    return Section(
        title="False process confidence",
        tested="correct answers with a wrong step",
        about="Rationalised solutions have a wrong step and the correct answer. Cleared: a trace score of "
        f"{audits[0].threshold:g} or more.",
        results={"clean": audits},
        cards={audit.scorer: [_card(audit)] for audit in audits},
        limits=[f"Groups: {', '.join(f'{g.traces} {n}' for n, g in audits[0].groups.items())} traces."],
        plots=[Plot("clean.groups", "Mean trace score by group, with 95 % intervals.", y=("mean",))],
    )


def _card(audit: CleanAudit) -> Card:
    text = (
        "of pairs: a correct solution scores higher than one with a hidden wrong step and the same correct "
        "answer. Chance is 0.5."
    )
    traces = min(audit.groups["right"].traces, audit.groups["rationalised"].traces)
    return card("reads", audit.right_over_rationalised, text, traces, "traces of each kind", null=0.5)
