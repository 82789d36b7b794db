"""One game, played step by step: is each move legal, and is the answer right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from surefoot.labelling._expression import NotRationalError, Reading, TooLargeError, value
from surefoot.labelling._parser import ParseError
from surefoot.labelling.game24.expressions import BINARY, NUMBER, evaluate, expression_tree, leaves, operate
from surefoot.labelling.game24.numbers import (
    TARGET,
    Numbers,
    is_exact,
    listed,
    problem_numbers,
    reachable,
    same_numbers,
    stands_for,
    stated_numbers,
)
from surefoot.protocols import ProblemTrace, Verdict

MAX_CHARS = 400
"""Longest line that is read as a move or an answer."""

_MOVE = re.compile(rf"(?P<expression>[-+*/()0-9. ×÷−]+)=\s*(?P<result>{NUMBER})\s*(?P<rest>.*)", re.DOTALL)
_LEFT = re.compile(r"\(\s*left:?([-0-9./,\s]*)\)", re.IGNORECASE)
_ANSWER = re.compile(r"(?:final )?answer\s*(?:is)?\s*:?\s*", re.IGNORECASE)
_GIVES_UP = re.compile(
    r"\b(?:none|no (?:possible |valid )?(?:solution|way)|not possible|impossible|cannot|can't|invalid|"
    r"no (?:valid |possible )?(?:combination|operation|sequence)|does not (?:have|produce|result|allow)|"
    r"not be (?:used|possible|obtained)|unable|not (?:able|found))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One step of a game: the verdict on it, and whether 24 can still be made after it."""

    verdict: Verdict
    value: float | None
    """1 or 0; 0 from an illegal step on; ``None`` before the first move, or if the game cannot be read."""


def play(item: ProblemTrace) -> list[Judged]:
    """Judge every step of a trace."""
    start = problem_numbers(item.problem.text)
    count = len(item.trace.steps)
    if start is None:
        reason = "the problem's text does not hold four numbers in a row"
        return [Judged(verdict=Verdict(value=None, reason=reason), value=None)] * count
    game = _Game(start)
    return [game.judge(item.trace.step_text(step).strip()) for step in range(count)]


class _Game:
    def __init__(self, start: Numbers) -> None:
        self.start = start
        self.left: Numbers | None = start
        self.legal = True
        self.moved = False

    def judge(self, line: str) -> Judged:
        if len(line) > MAX_CHARS:
            return self._judged(None, f"a line of more than {MAX_CHARS} characters")
        answer = _ANSWER.match(line)
        if answer:
            return self._answer(line[answer.end() :])
        move = _MOVE.match(line)
        if move:
            return self._move(move)
        if _GIVES_UP.search(line):
            return self._gives_up()
        return self._judged(None, "neither a move nor an answer")

    def _judged(self, verdict: int | None, reason: str, *, value: float | None = None) -> Judged:
        if verdict == -1:
            found = Verdict(value=-1, reason=reason)
        else:
            found = Verdict(value=None if verdict is None else 1, reason=reason)
        if value is None and self.moved:
            value = float(self.legal and self.left is not None and reachable(self.left))
        return Judged(verdict=found, value=value)

    def _answer(self, text: str) -> Judged:
        expression, _, stated = text.rpartition("=")
        if not expression:
            return self._gives_up() if _GIVES_UP.search(text) else self._answered("no expression")
        if not re.fullmatch(rf"\s*{TARGET}(?:\.0*)?\s*[.!]?\s*", stated):
            return self._answered(f"the answer does not say that it is {TARGET}")
        try:
            tree = expression_tree(expression)
            used = leaves(tree)
            made = value(tree, Reading())
        except (ParseError, NotRationalError, TooLargeError, ZeroDivisionError) as error:
            return self._answered(f"the answer cannot be evaluated: {error}")
        if tuple(sorted(used)) != self.start:
            return self._answered(f"uses {listed(used)}, not each of {listed(self.start)} once")
        return self._answered(None if made == TARGET else f"that is {made}, not {TARGET}")

    def _answered(self, problem: str | None) -> Judged:
        if problem is None:
            return self._judged(1, "right", value=1.0)
        return self._judged(-1, problem, value=0.0)

    def _gives_up(self) -> Judged:
        if reachable(self.start, TARGET):
            return self._judged(-1, f"gives up, but {listed(self.start)} can make {TARGET}", value=0.0)
        return self._judged(1, "right: there is no solution", value=0.0)

    def _move(self, move: re.Match[str]) -> Judged:
        stated_left = _LEFT.search(move["rest"])
        shown = stated_left[1].replace(",", " ").split() if stated_left else None
        if self.left is None:
            problem: str | None = None
            made, after = None, None
        else:
            problem, made, after = self._apply(move["expression"].strip(), move["result"])
        if problem is None and after is not None and shown is not None and not same_numbers(shown, after):
            problem = f"left are {listed(after)}, not {' '.join(shown) or 'none'}"
        known = self.left is not None
        self.moved = True
        self.legal = self.legal and known and problem is None
        # The trace goes on from what it says; the exact value stands for its rounded one.
        self.left = after if problem is None and known else stated_numbers(shown)
        if not known:
            return self._judged(None, "the numbers left are not known after an illegal step without a list")
        return self._judged(-1, problem) if problem else self._judged(1, f"legal: makes {made}")

    def _apply(self, expression: str, result: str) -> tuple[str | None, Fraction | None, Numbers | None]:
        """What is wrong with a move, what it makes, and the numbers left after it."""
        left = list(self.left or ())
        try:
            used, made = evaluate(expression)
        except (ParseError, NotRationalError, TooLargeError, ZeroDivisionError) as error:
            return f"{expression!r} cannot be evaluated: {error}", None, None
        if len(used) < 2:
            return "a move takes two numbers", None, None
        for shown in used:
            match = next((number for number in left if stands_for(shown, number)), None)
            if match is None:
                return f"takes {shown}, but left are {listed(self.left or ())}", None, None
            left.remove(match)
        if not all(is_exact(shown) for shown in used):
            made = self._exact(expression, used)
        if not stands_for(result, made):
            return f"{expression} is {made}, not {result}", None, None
        return None, made, tuple(sorted([*left, made]))

    def _exact(self, expression: str, used: list[str]) -> Fraction:
        """Value of a binary move with the exact numbers in the place of rounded ones."""
        pool = list(self.left or ())
        exact = []
        for shown in used:
            number = next(number for number in pool if stands_for(shown, number))
            pool.remove(number)
            exact.append(number)
        binary = BINARY.fullmatch(expression)
        return operate(exact[0], binary[2], exact[1]) if binary else evaluate(expression)[1]
