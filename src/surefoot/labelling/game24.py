"""The Game of 24, checked exactly: four numbers, each used once, make 24 by ``+ - * /``.

The form of Yao et al. (Tree of Thoughts, arXiv 2305.10601) is read, one move a line::

    10 - 4 = 6 (left: 5 6 6)
    5 * 6 = 30 (left: 6 30)
    30 - 6 = 24 (left: 24)
    Answer: (10 - 4) * 5 - 6 = 24
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import permutations

from surefoot.errors import LabelError
from surefoot.labelling._expression import Node, NotRationalError, Reading, TooLargeError, value
from surefoot.labelling._parser import ParseError, parse
from surefoot.labelling._tokens import tokenize
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Evidence, LabelKind, StepLabel

TARGET = 24
MAX_CHARS = 400
"""Longest line that is read as a move or an answer."""

Numbers = tuple[Fraction, ...]

_NUMBER = r"-?(?:[0-9]{1,9}/[0-9]{1,9}|[0-9]{1,9}(?:\.[0-9]{1,9})?)"
_FOUR = re.compile(r"(?<![0-9.])([0-9]{1,4})" + r"[,\s]+(?:and\s+)?([0-9]{1,4})" * 3 + r"(?![0-9.])")
_MOVE = re.compile(rf"(?P<expression>[-+*/()0-9. ×÷−]+)=\s*(?P<result>{_NUMBER})\s*(?P<rest>.*)", re.DOTALL)
_BINARY = re.compile(rf"({_NUMBER})\s+([-+*/])\s+({_NUMBER})")
_LEFT = re.compile(r"\(\s*left:?([-0-9./,\s]*)\)", re.IGNORECASE)
_ANSWER = re.compile(r"(?:final )?answer\s*(?:is)?\s*:?\s*", re.IGNORECASE)
_GIVES_UP = re.compile(
    r"\b(?:none|no (?:possible |valid )?(?:solution|way)|not possible|impossible|cannot|can't|invalid|"
    r"no (?:valid |possible )?(?:combination|operation|sequence)|does not (?:have|produce|result|allow)|"
    r"not be (?:used|possible|obtained)|unable|not (?:able|found))\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=200_000)
def reachable(numbers: Numbers, target: int = TARGET) -> bool:
    """Whether ``numbers``, each used exactly once, can make ``target``. Give them sorted."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            rest = numbers[:i] + numbers[i + 1 : j] + numbers[j + 1 :]
            if any(reachable(tuple(sorted((*rest, made))), target) for made in _made(numbers[i], numbers[j])):
                return True
    return False


def _made(a: Fraction, b: Fraction) -> set[Fraction]:
    made = {a + b, a - b, b - a, a * b}
    if b:
        made.add(a / b)
    if a:
        made.add(b / a)
    return made


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One step of a game: the verdict on it, and whether 24 can still be made after it."""

    verdict: Verdict
    value: float | None
    """1 or 0; 0 from an illegal step on; ``None`` before the first move, or if the game cannot be read."""


class Game24Verifier:
    """A :class:`surefoot.protocols.StepVerifier`: is each move legal, is the answer right.

    A move is legal if it takes numbers that are left, each once, its result is exact, and its list of
    numbers left (if it has one) is right. A decimal with two or more digits after its point may stand for a
    fraction less than one unit of the last digit away (``10 / 6 = 1.666``). A move is judged against the
    numbers that the trace itself has left, so an error counts where it is made. An answer is right if it uses
    each of the problem's numbers once and is exactly 24; "no solution" is right if there is none.
    """

    name = "game24"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step; ``None`` for a line that is neither move nor answer."""
        return [[judged.verdict for judged in play(item)] for item in items]


class Game24Labeller:
    """A :class:`surefoot.protocols.Labeller` with up to two labels a step.

    ``correctness`` is the verdict of :class:`Game24Verifier`. ``value`` is 1 if 24 can still be made from
    the numbers left after the step, else 0: the value under perfect play. After an illegal step it stays 0 up
    to the answer, which is judged by itself.

    Raises ``LabelError`` for other kinds, or none.
    """

    def __init__(self, kinds: Sequence[LabelKind] = ("correctness", "value")) -> None:
        if not kinds or set(kinds) - {"correctness", "value"}:
            raise LabelError(f"kinds is {tuple(kinds)}; choose from correctness, value")
        self.kinds = tuple(kinds)

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item; for each step one label of each kind."""
        return [
            [
                self._label(item.trace.id, step, kind, judged)
                for step, judged in enumerate(play(item))
                for kind in self.kinds
            ]
            for item in items
        ]

    @staticmethod
    def _label(trace_id: str, step: int, kind: LabelKind, judged: Judged) -> StepLabel:
        found = judged.verdict.value if kind == "correctness" else judged.value
        return StepLabel(
            trace_id=trace_id,
            step=step,
            kind=kind,
            value=found,
            reason=judged.verdict.reason if found is None else None,
            source=Game24Verifier.name,
            evidence=Evidence(message=judged.verdict.reason),
        )


def play(item: ProblemTrace) -> list[Judged]:
    """Judge every step of a trace."""
    start = problem_numbers(item.problem.text)
    count = len(item.trace.steps)
    if start is None:
        reason = "the problem's text does not hold four numbers in a row"
        return [Judged(verdict=Verdict(value=None, reason=reason), value=None)] * count
    game = _Game(start)
    return [game.judge(item.trace.step_text(step).strip()) for step in range(count)]


def problem_numbers(text: str) -> Numbers | None:
    """The four numbers of a problem, sorted; ``None`` unless its text has exactly one such row."""
    rows = list(_FOUR.finditer(text))
    return tuple(sorted(Fraction(digits) for digits in rows[0].groups())) if len(rows) == 1 else None


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
            tree = _expression(expression)
            used = _leaves(tree)
            made = value(tree, Reading())
        except (ParseError, NotRationalError, TooLargeError, ZeroDivisionError) as error:
            return self._answered(f"the answer cannot be evaluated: {error}")
        if tuple(sorted(used)) != self.start:
            return self._answered(f"uses {_list(used)}, not each of {_list(self.start)} once")
        return self._answered(None if made == TARGET else f"that is {made}, not {TARGET}")

    def _answered(self, problem: str | None) -> Judged:
        if problem is None:
            return self._judged(1, "right", value=1.0)
        return self._judged(-1, problem, value=0.0)

    def _gives_up(self) -> Judged:
        if reachable(self.start, TARGET):
            return self._judged(-1, f"gives up, but {_list(self.start)} can make {TARGET}", value=0.0)
        return self._judged(1, "right: there is no solution", value=0.0)

    def _move(self, move: re.Match[str]) -> Judged:
        stated_left = _LEFT.search(move["rest"])
        shown = stated_left[1].replace(",", " ").split() if stated_left else None
        if self.left is None:
            problem: str | None = None
            made, after = None, None
        else:
            problem, made, after = self._apply(move["expression"].strip(), move["result"])
        if problem is None and after is not None and shown is not None and not _same_numbers(shown, after):
            problem = f"left are {_list(after)}, not {' '.join(shown) or 'none'}"
        known = self.left is not None
        self.moved = True
        self.legal = self.legal and known and problem is None
        # The trace goes on from what it says; the exact value stands for its rounded one.
        self.left = after if problem is None and known else _stated(shown)
        if not known:
            return self._judged(None, "the numbers left are not known after an illegal step without a list")
        return self._judged(-1, problem) if problem else self._judged(1, f"legal: makes {made}")

    def _apply(self, expression: str, result: str) -> tuple[str | None, Fraction | None, Numbers | None]:
        """What is wrong with a move, what it makes, and the numbers left after it."""
        left = list(self.left or ())
        try:
            used, made = _evaluate(expression)
        except (ParseError, NotRationalError, TooLargeError, ZeroDivisionError) as error:
            return f"{expression!r} cannot be evaluated: {error}", None, None
        if len(used) < 2:
            return "a move takes two numbers", None, None
        for shown in used:
            match = next((number for number in left if _stands_for(shown, number)), None)
            if match is None:
                return f"takes {shown}, but left are {_list(self.left or ())}", None, None
            left.remove(match)
        if not all(_is_exact(shown) for shown in used):
            made = self._exact(expression, used)
        if not _stands_for(result, made):
            return f"{expression} is {made}, not {result}", None, None
        return None, made, tuple(sorted([*left, made]))

    def _exact(self, expression: str, used: list[str]) -> Fraction:
        """Value of a binary move with the exact numbers in the place of rounded ones."""
        pool = list(self.left or ())
        exact = []
        for shown in used:
            number = next(number for number in pool if _stands_for(shown, number))
            pool.remove(number)
            exact.append(number)
        binary = _BINARY.fullmatch(expression)
        return _operate(exact[0], binary[2], exact[1]) if binary else _evaluate(expression)[1]


def _evaluate(expression: str) -> tuple[list[str], Fraction]:
    """Numbers used, as written, and the value."""
    plain = expression.replace("×", "*").replace("÷", "/").replace("−", "-")
    if binary := _BINARY.fullmatch(plain):
        one, other = Fraction(binary[1]), Fraction(binary[3])
        return [binary[1], binary[3]], _operate(one, binary[2], other)
    tree = _expression(plain)
    return [str(number) for number in _leaves(tree)], value(tree, Reading())


def _operate(one: Fraction, operator: str, other: Fraction) -> Fraction:
    match operator:
        case "+":
            return one + other
        case "-":
            return one - other
        case "*":
            return one * other
    return one / other


def _expression(text: str) -> Node:
    tree = parse(tokenize(text)).tree
    pending = [tree]
    while pending:
        node = pending.pop()
        negative_number = node.kind == "neg" and node.parts[0].kind == "n"
        if node.kind not in ("n", "+", "-", "*", "/") and not negative_number:
            raise ParseError(f"only + - * / are allowed, not {node.kind!r}")
        pending += [] if negative_number else node.parts
    return tree


def _leaves(node: Node) -> list[Fraction]:
    if node.kind in ("n", "neg"):
        return [value(node, Reading())]
    return [number for part in node.parts for number in _leaves(part)]


def _is_exact(shown: str) -> bool:
    return len(shown.partition(".")[2]) < 2


def _stands_for(shown: str, exact: Fraction) -> bool:
    try:
        number = Fraction(shown)
    except (ValueError, ZeroDivisionError):  # "1/2/3", "1/0"
        return False
    return number == exact or (
        not _is_exact(shown) and abs(number - exact) < Fraction(1, 10 ** len(shown.partition(".")[2]))
    )


def _same_numbers(shown: Sequence[str], numbers: Numbers) -> bool:
    return len(shown) == len(numbers) and any(
        all(_stands_for(one, other) for one, other in zip(shown, order, strict=True))
        for order in set(permutations(numbers))
    )


def _stated(shown: Sequence[str] | None) -> Numbers | None:
    if shown is None or not 0 < len(shown) <= 4:
        return None
    try:
        return tuple(sorted(Fraction(number) for number in shown))
    except (ValueError, ZeroDivisionError):
        return None


def _list(numbers: Sequence[Fraction]) -> str:
    return " ".join(str(number) for number in numbers)
