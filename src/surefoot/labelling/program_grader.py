"""Completions of programs graded by the hidden tests of their problem."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from surefoot.answers import Grade, Solution
from surefoot.labelling.verifiers.programs import grade_traces, has_hidden_tests
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.sandbox import Sandbox
from surefoot.segment.code import parses


@dataclass(frozen=True)
class ProgramGrader:
    """A :class:`surefoot.answers.ProblemGrader`: a program is right if every hidden test passes.

    The outcome is unknown where the tests or the sandbox failed. There are no answers.
    """

    sandbox: Sandbox

    def can_grade(self, problem: Problem) -> bool:
        """Whether it has hidden tests."""
        return has_hidden_tests(problem)

    async def grade_problem(self, problem: Problem, solutions: Sequence[Solution]) -> list[Grade]:
        """One grade per solution; other requests go on meanwhile. Raises ``SandboxError``."""
        items = [
            ProblemTrace(problem=problem, trace=Trace(problem_id=problem.id, text=one.prefix + one.text))
            for one in solutions
        ]
        verdicts = await asyncio.to_thread(grade_traces, self.sandbox, items)
        return [Grade(answer=None, outcome=None if one is None else one.passed) for one in verdicts]


def step_rewards(sandbox: Sandbox, item: ProblemTrace) -> list[float | None]:
    """Change of the share of hidden tests that pass, by each step: they add up to last minus first share.

    The program is graded after each step, and before the first. A step after which it does not parse yet,
    such as ``for x in y:``, changes nothing, unless it is the last. ``None``: nothing is known of a run.

    Raises:
        ValueError: the trace has messages in place of a text.
        SandboxError: programs cannot be run.
    """
    trace = item.trace
    prefixes = [trace.prefix(steps) for steps in range(len(trace.steps) + 1)]
    whole = [text for text in prefixes[:-1] if parses(text)] + prefixes[-1:]
    traces = [Trace(problem_id=item.problem.id, text=text) for text in whole]
    verdicts = grade_traces(sandbox, [ProblemTrace(problem=item.problem, trace=one) for one in traces])
    graded = {text: None if one is None else one.fraction for text, one in zip(whole, verdicts, strict=True)}
    shares: list[float | None] = [graded.get(prefixes[0], 0.0)]
    for text in prefixes[1:]:
        shares.append(graded.get(text, shares[-1]))
    return [None if before is None or after is None else after - before for before, after in pairwise(shares)]
