"""The content probe: ten variants of a line that differ in the result digit alone.

A scorer that has learned which steps are *risky* gives all ten the same score; one that checks the step
prefers the correct digit. Chance is 1 in 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.errors import ScoreError
from surefoot.lab.world import BASE, RESULT, parse_problem, worked_solution
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import Problem, StepScores, Trace
from surefoot.segment import Line, segment_trace
from surefoot.stats.bootstrap import group_sums


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """A scorer's result on the probe."""

    right: float
    """Share of lines whose correct digit has the highest score of the ten; chance is 0.1."""
    contrast: float
    """Mean score of the correct digit minus the mean of the nine wrong ones; 0 = the digit is ignored."""
    lines: int
    by_problem: tuple[float, ...]
    """``right`` of each problem's lines, in their order."""


def content_probe(scorer: StepScorer, problems: Sequence[Problem]) -> ProbeResult:
    """Probe every operation line of each problem's correct solution, up to that line.

    Raises ``RecordError`` for a problem that is not of the lab's world, ``ScoreError`` when there are no
    problems or a line is not scored.
    """
    items = [item for problem in problems for item in _variants(problem)]
    if not items:
        raise ScoreError("the content probe needs at least one problem")
    by_digit = np.array([_last_score(record) for record in scorer.score_traces(items)]).reshape(-1, BASE)
    truth = np.array([int(item.trace.meta["right"]) for item in items]).reshape(-1, BASE)[:, 0]
    lines = np.arange(len(truth))
    right = by_digit[lines, truth]
    wrong = (by_digit.sum(axis=1) - right) / (BASE - 1)
    strict = (by_digit >= right[:, None]).sum(axis=1) == 1  # a tie is not a preference
    problem = [item.problem.id for item in items[::BASE]]
    sums = group_sums(np.column_stack([strict, np.ones(len(strict))]), problem)
    return ProbeResult(
        right=float(strict.mean()),
        contrast=float((right - wrong).mean()),
        lines=len(truth),
        by_problem=tuple((sums[:, 0] / sums[:, 1]).tolist()),
    )


def _last_score(record: StepScores) -> float:
    score = record.scores[-1]
    if score is None:
        raise ScoreError(f"a line of the content probe was not scored: {record.unscored_reason}")
    return score


def _variants(problem: Problem) -> list[ProblemTrace]:
    lines = worked_solution(parse_problem(problem.text)).splitlines(keepends=True)
    items = []
    for number, line in enumerate(lines):
        result = RESULT.search(line)
        if not result:
            continue
        for digit in range(BASE):
            text = "".join(lines[:number]) + f"{line[: result.start()]}= {digit}\n"
            trace = Trace(problem_id=problem.id, text=text, meta={"right": int(result[1])})
            items.append(ProblemTrace(problem=problem, trace=segment_trace(trace, Line())))
    return items
