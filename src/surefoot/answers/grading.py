"""Solutions graded against references, and answers grouped into classes of equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.answers.checker import AnswerChecker
from surefoot.answers.extraction import AnswerStyle, extract_answer


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The final answer of one solution, and whether it is correct."""

    answer: str | None
    """``None`` = there is none, which counts as a wrong outcome."""
    outcome: bool | None
    """``None`` = unknown: no reference, or the comparison failed (see ``AnswerChecker.failures``)."""


@dataclass(frozen=True, kw_only=True)
class Grader:
    """Extraction and comparison in one: the gold grader of a data set."""

    checker: AnswerChecker
    styles: tuple[AnswerStyle, ...] = ("boxed", "hash", "phrase", "last_number")

    def grade(self, texts: Sequence[str], references: Sequence[str | None]) -> list[Grade]:
        """One grade per solution, against the reference of the same place."""
        answers = [extract_answer(text, self.styles) for text in texts]
        pairs = [(a, r) for a, r in zip(answers, references, strict=True) if a is not None and r is not None]
        verdicts = iter(self.checker.equal(pairs))
        grades = []
        for answer, reference in zip(answers, references, strict=True):
            outcome = None
            if reference is not None:
                outcome = next(verdicts) if answer is not None else False
            grades.append(Grade(answer=answer, outcome=outcome))
        return grades
