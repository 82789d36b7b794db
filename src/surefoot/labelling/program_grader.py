"""Completions of programs graded by the hidden tests of their problem."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.answers import Grade, Solution
from surefoot.labelling.verifiers.programs import grade_traces, has_hidden_tests
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.sandbox import Sandbox


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
