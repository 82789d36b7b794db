"""Worked solutions of the digit world's problems, right or with one wrong digit."""

from __future__ import annotations

import numpy as np

from benchmarks.worlds.digits.world import parse_problem, worked_solution
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace


def lab_item(problem: Problem, *, wrong: bool, rng: np.random.Generator) -> ProblemTrace:
    """The worked solution of ``problem``, with the result of one line replaced if ``wrong``."""
    lines = worked_solution(parse_problem(problem.text)).splitlines(keepends=True)
    if wrong:
        at = int(rng.integers(len(lines) - 1))
        digit = (int(lines[at][-2]) + int(rng.integers(1, 10))) % 10
        lines[at] = f"{lines[at][:-2]}{digit}\n"
    trace = Trace(
        problem_id=problem.id, text="".join(lines), answer=problem.answer, outcome=not wrong, policy="hand"
    )
    return ProblemTrace(problem=problem, trace=segment_trace(trace, Line()))
