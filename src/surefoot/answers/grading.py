"""Solutions graded against references: the one rule of what counts as a policy's final answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

from surefoot.answers.checker import AnswerChecker
from surefoot.answers.extraction import EXPLICIT, AnswerStyle, extract_statement, last_box_is_cut
from surefoot.maths import as_product, restore_backslashes, variables_of
from surefoot.records import Problem, ending_of

_REMEMBERED = 32
"""Solutions whose answer is remembered: a search asks for it several times."""
_WORD = re.compile(r"\w")
_CLOSING = re.compile(r"\s*\W*\s*I hope (?:it|this) is correct\W*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A solution to grade: a completion and its prefix."""

    text: str
    """The completion."""
    prefix: str = ""
    """The text that the completion continues: answers in it are not the policy's."""
    finish_reason: str | None = None
    """Why it ended, in the provider's word; unknown is treated as a natural end."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The final answer of one solution, and whether it is correct."""

    answer: str | None
    """``None`` = there is none, which counts as a wrong outcome."""
    outcome: bool | None
    """``None`` = unknown: no reference, or it cannot be compared (see ``AnswerChecker.grade``)."""


@dataclass(frozen=True, kw_only=True)
class Grader:
    """Extraction and comparison in one: the gold grader of a data set."""

    reads = frozenset({"answer"})

    checker: AnswerChecker
    styles: tuple[AnswerStyle, ...] = ("boxed", "hash", "phrase", "last_number")

    def grade(
        self, solutions: Sequence[Solution], references: Sequence[str | None], problem: str = ""
    ) -> list[Grade]:
        """One grade per solution, against the reference of the same place.

        A variable of the ``problem`` (its text) is not read as a unit: "4 m" is then not 4.
        """
        answers = [final_answer(solution, self.styles) for solution in solutions]
        products = [answer and as_product(answer, variables_of(problem)) for answer in answers]
        pairs = [(a, r) for a, r in zip(products, references, strict=True) if a is not None and r is not None]
        verdicts = iter(self.checker.grade(pairs))
        grades = []
        for answer, reference in zip(answers, references, strict=True):
            outcome = None
            if reference is not None:
                outcome = next(verdicts) if answer is not None else False
            grades.append(Grade(answer=answer, outcome=outcome))
        return grades

    def can_grade(self, problem: Problem) -> bool:
        """Whether it has a reference answer."""
        return problem.answer is not None

    async def grade_problem(self, problem: Problem, solutions: Sequence[Solution]) -> list[Grade]:
        """One grade per solution; other requests go on during algebra, which may take seconds."""
        references = [problem.answer] * len(solutions)
        if self.checker.method != "math":
            return self.grade(solutions, references, problem.text)
        return await self.checker.run(lambda: self.grade(solutions, references, problem.text))


@runtime_checkable
class ProblemGrader(Protocol):
    """Decides the outcome of solutions of one problem: by its reference answer, or by running its tests."""

    def can_grade(self, problem: Problem) -> bool:
        """Whether this grader can grade solutions of the problem."""
        ...

    async def grade_problem(self, problem: Problem, solutions: Sequence[Solution]) -> list[Grade]:
        """One grade per solution."""
        ...


def final_answer(solution: Solution, styles: Sequence[AnswerStyle]) -> str | None:
    """The answer that a solution gives; ``None`` = it gives none.

    - An explicit answer (every style but ``last_number``) counts if its statement ends in the completion.
    - One in the prefix counts if the solution was finished there: it ends the prefix, and the completion adds
      no word and ended naturally. A policy adds nothing to a finished solution.
    - The last number counts if it is in the completion, and the completion ended naturally.
    - Of a text that ended otherwise (at a limit, a filter or a tool call), an explicit answer counts if it is
      closed: "The answer is 1" may be the beginning of "The answer is 18."
    - A text whose last box is never closed has none.

    Raises ``AnswerError`` for an unknown style.
    """
    return _final_answer(solution, tuple(styles))


@lru_cache(_REMEMBERED)
def _final_answer(solution: Solution, styles: tuple[AnswerStyle, ...]) -> str | None:
    prefix = restore_backslashes(solution.prefix)
    text, prefix_end = prefix + restore_backslashes(solution.text), len(prefix)
    if last_box_is_cut(text):
        return None
    cut_off = ending_of(solution.finish_reason) not in ("finished", "unknown")
    for style in styles:
        if style not in EXPLICIT:
            statement = None if cut_off else extract_statement(text, [style], start=prefix_end)
            if statement is not None:
                return statement.answer
            continue
        statement = extract_statement(text, [style])
        if statement is None:
            continue
        if statement.end > prefix_end:
            if statement.closed or not cut_off:
                return statement.answer
        elif not cut_off and _adds_nothing(text[statement.end :]):
            return statement.answer
    return None


def _adds_nothing(text: str) -> bool:
    return not _WORD.search(text) or _CLOSING.fullmatch(text) is not None
