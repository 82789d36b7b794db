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


_PROBE = "1"


def group_equal(answers: Sequence[str | None], checker: AnswerChecker) -> list[str | None]:
    """Canonical form of each answer, so that equal answers become equal strings and can be counted.

    The first seen member stands for its class, and an answer is compared with these alone, in order of
    appearance; so classes never overlap, whatever the comparison. ``None`` stays ``None``. An answer that
    cannot be compared at all stands alone, and costs at most two failures however many answers there are.
    """
    canonical: dict[str, str] = {}
    representatives: list[str] = []
    for answer in answers:
        if answer is None or answer in canonical:
            continue
        canonical[answer] = answer
        match, comparable = _find_class(answer, representatives, checker)
        if match is not None:
            canonical[answer] = match
        elif comparable:
            representatives.append(answer)
    return [None if answer is None else canonical[answer] for answer in answers]


def _find_class(answer: str, representatives: list[str], checker: AnswerChecker) -> tuple[str | None, bool]:
    """Representative equal to ``answer``, if any; and whether ``answer`` can be compared at all.

    Removes representatives that turn out not to be comparable.
    """
    for representative in list(representatives):
        verdict = checker.equal([(answer, representative)])[0]
        if verdict:
            return representative, True
        if verdict is None:
            # Which of the two is to blame? One that also fails against a plain number would spend a time-out
            # on every other answer, so it takes part no more.
            if checker.equal([(answer, _PROBE)])[0] is None:
                return None, False
            if checker.equal([(_PROBE, representative)])[0] is None:
                representatives.remove(representative)
    return None, True
