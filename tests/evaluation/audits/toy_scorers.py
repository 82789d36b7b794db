"""Scorers whose failings are known, and lab traces for them to judge."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.worlds.digits.audits import digit_cases
from benchmarks.worlds.digits.world import Difficulty, SolutionState, apply, generate_problems, parse_problem
from surefoot.evaluation.audits import AuditedScorer, Case
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepScores, Trace
from surefoot.segment import Line, segment_trace

LINE = re.compile(r"\d [-+*] \d = \d|Now \d|Answer: \d")


class Toy:
    """Step scores by a rule ``(problem, trace) -> one score a step``."""

    def __init__(self, rule: Callable[[Problem, Trace], Sequence[float | None]]) -> None:
        self.rule = rule

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        rows = [tuple(self.rule(item.problem, item.trace)) for item in items]
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer="toy",
                scores=row,
                unscored_reason="no score" if None in row else None,
            )
            for item, row in zip(items, rows, strict=True)
        ]


def length(problem: Problem, trace: Trace) -> list[float]:
    """The longer, the better."""
    return [1 - math.exp(-step.end / 100) for step in trace.steps]


def outcome(problem: Problem, trace: Trace) -> list[float]:
    """Waits for the answer."""
    last = trace.step_text(len(trace.steps) - 1).strip()
    return [0.5] * (len(trace.steps) - 1) + [float(last.endswith(f"Answer: {problem.answer}"))]


def exact(problem: Problem, trace: Trace) -> list[float]:
    """Reads the lab's lines, whatever is written around them; 0 from the first wrong one on."""
    state, scores = SolutionState(parse_problem(problem.text)), [1.0] * len(trace.steps)
    for found in LINE.finditer(trace.text or ""):
        if state.judge(found[0] + "\n").value == -1:
            return [
                0.0 if step.end >= found.end() else score
                for step, score in zip(trace.steps, scores, strict=True)
            ]
    return scores


def constant(problem: Problem, trace: Trace) -> list[float]:
    """Sees nothing."""
    return [0.7] * len(trace.steps)


def audited(
    rule: Callable[[Problem, Trace], Sequence[float | None]], how: str = "min", **more
) -> AuditedScorer:
    return AuditedScorer(name=rule.__name__, scorer=Toy(rule), rule=how, **more)


def lab_material(count: int = 24, *, wrong: Sequence[bool] = (False, True), seed: int = 3) -> list[Case]:
    """For each problem one trace for every entry of ``wrong``; a wrong one has one wrong result.

    Lines after it follow from it, so some wrong ones are lucky: 0 times anything forgets the error.
    """
    rng = np.random.default_rng(seed)
    problems = generate_problems(
        count, seed=seed, difficulty=Difficulty(min_operations=4, max_operations=6, operations="+-**")
    )
    return digit_cases([_solution(problem, bad, rng) for problem in problems for bad in wrong])


def _solution(problem: Problem, wrong: bool, rng: np.random.Generator) -> ProblemTrace:
    chain = parse_problem(problem.text)
    at = int(rng.integers(len(chain.operations))) if wrong else -1
    value, lines = chain.start, []
    for number, (symbol, digit) in enumerate(chain.operations):
        result = apply(value, symbol, digit)
        if number == at:
            result = int((result + rng.integers(1, 10)) % 10)
        lines.append(f"{value} {symbol} {digit} = {result}\n")
        value = result
    trace = Trace(
        problem_id=problem.id,
        text="".join([*lines, f"Answer: {value}\n"]),
        answer=str(value),
        outcome=str(value) == problem.answer,
        sample=int(wrong),
    )
    return ProblemTrace(problem=problem, trace=segment_trace(trace, Line()))
