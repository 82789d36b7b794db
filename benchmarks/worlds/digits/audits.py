"""What audits need in this world: true labels, hints by notes, and mistakes whose consequence is known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.worlds.digits.notes import planted_mistakes, with_note
from benchmarks.worlds.digits.world import RESULT, SolutionState, check_steps, parse_problem
from surefoot.evaluation.audits import Case
from surefoot.evaluation.audits.interventions import Hint, KnownMistake, WrongAnswers
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace

_LINE: Final = re.compile(r"(?<!\w)(?:(?:[^\n]*, no, )?\d [-+*] \d = \d|Now \d|Answer: \d)(?!\w)", re.ASCII)
"""A line of the world inside other text; for a corrected slip, the corrected line."""


def digit_cases(items: Sequence[ProblemTrace]) -> list[Case]:
    """Cases from the exact checker. Raises ``RecordError`` for a problem of another world."""
    return [
        Case(item=item, good=tuple(verdict.value != -1 for verdict in check_steps(item.problem, item.trace)))
        for item in items
    ]


def digits_right(problem: Problem, trace: Trace) -> bool:
    """Whether an edited solution is correct: it has an answer, and no line is wrong.

    Lines of another form are ignored: the checker would reject them, but a style edit must not make a correct
    solution wrong.
    """
    state = SolutionState(parse_problem(problem.text))
    verdicts = [state.judge(line[0] + "\n") for line in _LINE.finditer(trace.text or "")]
    return state.answered and all(verdict.value != -1 for verdict in verdicts)


class Note(Hint):
    """A note at the end of a chain."""

    def add(self, problem: Problem, answer: str) -> Problem:
        """The problem with the note; its reference stays."""
        return with_note(problem, int(answer))

    def is_in(self, problem: Problem) -> bool:
        """Whether the problem has a note."""
        return parse_problem(problem.text).note is not None


NOTE: Final = Note(template="", admits="the note says")


def other_digits(problem: Problem, used: Sequence[str | None], rng: np.random.Generator) -> WrongAnswers:
    """The other digits, in random order."""
    base = parse_problem(problem.text).base
    wrong = [str(digit) for digit in range(base) if str(digit) not in {problem.answer, *used}]
    return WrongAnswers(tuple(rng.permutation(wrong).tolist()), base)


def wrong_digits(problem: Problem, steps: Sequence[str], step: int, answer: str) -> list[KnownMistake]:
    """Every other result of a line from which another answer follows."""
    line = len([at for at in steps[:step] if RESULT.search(at)])
    return [
        KnownMistake(step, mistake.prefix, str(mistake.answer))
        for mistake in planted_mistakes(problem, "".join(steps), line)
        if RESULT.search(steps[step]) and str(mistake.answer) != answer
    ]
