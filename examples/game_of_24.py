"""A verifier of one's own: the Game of 24 (four numbers, each used once, make 24), played by rule.

Solutions have the form of Yao et al. (Tree of Thoughts, arXiv 2305.10601), one move a line::

    10 - 4 = 6 (left: 5 6 6)
    5 * 6 = 30 (left: 6 30)
    30 - 6 = 24 (left: 24)
    Answer: (10 - 4) * 5 - 6 = 24

With this file on the path of Python, ``surefoot label FILE verify:rules=game_of_24:Game24Verifier`` uses it.
"""

from __future__ import annotations

import ast
import asyncio
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations

from surefoot.labelling import VerifierLabeller
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Evidence, Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace

TARGET = 24
MAX_CHARS = 400
"""Longest line that is read as a move or an answer."""

Numbers = tuple[Fraction, ...]

_NUMBER = r"-?(?:[0-9]{1,9}/[0-9]{1,9}|[0-9]{1,9}(?:\.[0-9]{1,9})?)"
_FOUR = re.compile(r"(?<![0-9.])([0-9]{1,4})" + r"[,\s]+(?:and\s+)?([0-9]{1,4})" * 3 + r"(?![0-9.])")
_TWO = re.compile(rf"({_NUMBER})\s+([-+*/])\s+({_NUMBER})")
_MOVE = re.compile(rf"(?P<expression>[-+*/()0-9. ×÷−]+)=\s*(?P<result>{_NUMBER})\s*(?P<rest>.*)", re.DOTALL)
_LEFT = re.compile(r"\(\s*left:?([-0-9./,\s]*)\)", re.IGNORECASE)
_ANSWER = re.compile(r"(?:final )?answer\s*(?:is)?\s*:?\s*", re.IGNORECASE)
_GIVES_UP = re.compile(
    r"\b(?:none|no (?:possible |valid )?(?:solution|way)|not possible|impossible|cannot|can't|invalid|"
    r"no (?:valid |possible )?(?:combination|operation|sequence)|does not (?:have|produce|result|allow)|"
    r"not be (?:used|possible|obtained)|unable|not (?:able|found))\b",
    re.IGNORECASE,
)
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@dataclass(frozen=True, kw_only=True)
class JudgedStep:
    """The verdict on one step, and whether 24 can still be made after it."""

    verdict: Verdict
    value: float | None
    """1 or 0; 0 from an illegal step on; ``None`` before the first move, or if the game cannot be read."""


class Game24Verifier:
    """A :class:`surefoot.protocols.StepVerifier`: is each move legal, is the answer correct.

    A move is legal if it takes numbers that are left, each once, its result is exact, and its list of
    numbers left (if it has one) is correct. A decimal with two or more digits after its point may stand for a
    fraction less than one unit of the last digit away (``10 / 6 = 1.666``). A move is judged against the
    numbers that the trace itself has left, so an error counts where it is made. An answer is correct if it
    uses each of the problem's numbers once and is exactly 24; "no solution" is if there is none.
    """

    name = "game24"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step; ``None`` for a line that is neither move nor answer."""
        return [[step.verdict for step in play(item)] for item in items]


class Game24Values:
    """A :class:`surefoot.protocols.Labeller` of the value under perfect play.

    1 if 24 can still be made from the numbers left after the step, else 0. After an illegal step it stays 0
    up to the answer, which is judged by itself.
    """

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step."""
        return [
            [self._label(item.trace.id, number, step) for number, step in enumerate(play(item))]
            for item in items
        ]

    def _label(self, trace_id: str, number: int, step: JudgedStep) -> StepLabel:
        return StepLabel(
            trace_id=trace_id,
            step=number,
            kind="value",
            value=step.value,
            reason=step.verdict.reason if step.value is None else None,
            source="game24",
            evidence=Evidence(message=step.verdict.reason),
        )


def play(item: ProblemTrace) -> list[JudgedStep]:
    """Judge every step of a trace."""
    start = problem_numbers(item.problem.text)
    count = len(item.trace.steps)
    if start is None:
        reason = "the problem's text does not hold four numbers in a row"
        return [JudgedStep(verdict=Verdict(value=None, reason=reason), value=None)] * count
    game = _Game(start)
    return [game.judge(item.trace.step_text(step).strip()) for step in range(count)]


@lru_cache(maxsize=200_000)
def reachable(numbers: Numbers) -> bool:
    """Whether ``numbers``, each used exactly once, can make 24. Give them sorted."""
    if len(numbers) == 1:
        return numbers[0] == TARGET
    for i, j in combinations(range(len(numbers)), 2):
        a, b = numbers[i], numbers[j]
        rest = [numbers[k] for k in range(len(numbers)) if k not in (i, j)]
        results = {a + b, a - b, b - a, a * b, *([a / b] if b else []), *([b / a] if a else [])}
        if any(reachable(tuple(sorted((*rest, result)))) for result in results):
            return True
    return False


def problem_numbers(text: str) -> Numbers | None:
    """The four numbers of a problem, sorted; ``None`` unless its text has exactly one such row."""
    rows = list(_FOUR.finditer(text))
    return tuple(sorted(Fraction(digits) for digits in rows[0].groups())) if len(rows) == 1 else None


class _Game:
    """One game, played step by step."""

    def __init__(self, start: Numbers) -> None:
        self.start = start
        self.left: Numbers | None = start
        self.legal = True
        self.moved = False

    def judge(self, line: str) -> JudgedStep:
        if len(line) > MAX_CHARS:
            return self._judged(None, f"a line of more than {MAX_CHARS} characters")
        if answer := _ANSWER.match(line):
            return self._answer(line[answer.end() :])
        if move := _MOVE.match(line):
            return self._move(move)
        if _GIVES_UP.search(line):
            return self._gives_up()
        return self._judged(None, "neither a move nor an answer")

    def _judged(self, verdict: int | None, reason: str, *, value: float | None = None) -> JudgedStep:
        if value is None and self.moved:
            value = float(self.legal and self.left is not None and reachable(self.left))
        judged = Verdict(value=-1 if verdict == -1 else 1 if verdict == 1 else None, reason=reason)
        return JudgedStep(verdict=judged, value=value)

    def _answer(self, text: str) -> JudgedStep:
        expression, _, stated = text.rpartition("=")
        if not expression and _GIVES_UP.search(text):
            return self._gives_up()
        problem = self._answer_problem(expression, stated)
        if problem is None:
            return self._judged(1, "correct", value=1.0)
        return self._judged(-1, problem, value=0.0)

    def _answer_problem(self, expression: str, stated: str) -> str | None:
        if not expression:
            return "no expression"
        if not re.fullmatch(rf"\s*{TARGET}(?:\.0*)?\s*[.!]?\s*", stated):
            return f"the answer does not say that it is {TARGET}"
        try:
            used, result = evaluate(expression)
        except (ValueError, ZeroDivisionError) as error:
            return f"the answer cannot be evaluated: {error}"
        if tuple(sorted(map(Fraction, used))) != self.start:
            return f"uses {' '.join(used)}, not each of {_listed(self.start)} once"
        return None if result == TARGET else f"that is {result}, not {TARGET}"

    def _gives_up(self) -> JudgedStep:
        if reachable(self.start):
            return self._judged(-1, f"gives up, but {_listed(self.start)} can make {TARGET}", value=0.0)
        return self._judged(1, "correct: there is no solution", value=0.0)

    def _move(self, move: re.Match[str]) -> JudgedStep:
        listed = _LEFT.search(move["rest"])
        shown = listed[1].replace(",", " ").split() if listed else None
        problem, result, after = None, None, None
        known = self.left is not None
        if self.left is not None:
            problem, result, after = _apply(self.left, move["expression"].strip(), move["result"])
        if problem is None and after is not None and shown is not None and not _same(shown, after):
            problem = f"left are {_listed(after)}, not {' '.join(shown) or 'none'}"
        self.moved = True
        self.legal = self.legal and known and problem is None
        # The trace goes on from what it says; the exact value stands for its rounded one.
        self.left = after if problem is None and known else _stated(shown)
        if not known:
            return self._judged(None, "the numbers left are not known after an illegal step without a list")
        return self._judged(-1, problem) if problem else self._judged(1, f"legal: makes {result}")


def _apply(left: Numbers, expression: str, result: str) -> tuple[str | None, Fraction | None, Numbers | None]:
    """What is wrong with a move, what it makes, and the numbers left after it."""
    try:
        used, made = evaluate(expression)
        if len(used) < 2:
            return "a move takes two numbers", None, None
        rest, exact = list(left), []
        for shown in used:
            match = next((number for number in rest if _stands_for(shown, number)), None)
            if match is None:
                return f"takes {shown}, but left are {_listed(left)}", None, None
            rest.remove(match)
            exact.append(match)
        two = _TWO.fullmatch(expression)
        if two and not all(map(_is_exact, used)):
            made = evaluate(f"({exact[0]}) {two[2]} ({exact[1]})")[1]  # not the rounded numbers
    except (ValueError, ZeroDivisionError) as error:
        return f"{expression!r} cannot be evaluated: {error}", None, None
    if not _stands_for(result, made):
        return f"{expression} is {made}, not {result}", None, None
    return None, made, tuple(sorted([*rest, made]))


def evaluate(expression: str) -> tuple[list[str], Fraction]:
    """The numbers of an expression of numbers and ``+ - * /``, as written, and its value.

    Raises ``ValueError`` for anything else, and ``ZeroDivisionError``. Nothing is executed: Python only
    parses the text.
    """
    plain = expression.replace("×", "*").replace("÷", "/").replace("−", "-").strip()
    if two := _TWO.fullmatch(plain):  # "3/2 * 10" takes 3/2, not 3 and 2
        a, b = Fraction(two[1]), Fraction(two[3])
        operation = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[two[2]]
        return [two[1], two[3]], operation(a, b)
    if not re.fullmatch(r"[-+*/()0-9.\s]+", plain) or "**" in plain or "//" in plain:
        raise ValueError("only numbers and + - * / are allowed")
    try:
        tree = ast.parse(plain, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("it is no expression") from error
    used: list[str] = []
    return used, _value(tree, plain, used)


def _value(node: ast.expr, text: str, used: list[str]) -> Fraction:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, text, used), _value(right, text, used))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()) | ast.Constant():
            shown = (ast.get_source_segment(text, node) or "").replace(" ", "")
            used.append(shown)
            return Fraction(shown)
    raise ValueError("only numbers and + - * / are allowed")


def _stated(shown: Sequence[str] | None) -> Numbers | None:
    """Numbers left as a trace writes them, sorted; ``None`` = it does not, or they are no numbers."""
    if shown is None or not 0 < len(shown) <= 4:
        return None
    try:
        return tuple(sorted(Fraction(number) for number in shown))
    except (ValueError, ZeroDivisionError):
        return None


def _same(shown: Sequence[str], numbers: Numbers) -> bool:
    """Whether each of ``shown`` stands for one of ``numbers``, and each of these is there."""
    return len(shown) == len(numbers) and any(
        all(_stands_for(one, other) for one, other in zip(shown, order, strict=True))
        for order in set(permutations(numbers))
    )


def _stands_for(shown: str, exact: Fraction) -> bool:
    """Whether ``exact`` may be written as ``shown``, which is rounded if it has two decimals or more."""
    try:
        number = Fraction(shown)
    except (ValueError, ZeroDivisionError):  # "1/2/3", "1/0"
        return False
    return number == exact or (
        not _is_exact(shown) and abs(number - exact) < Fraction(1, 10 ** len(shown.partition(".")[2]))
    )


def _is_exact(shown: str) -> bool:
    """Whether a number as written leaves no room for rounding."""
    return len(shown.partition(".")[2]) < 2


def _listed(numbers: Sequence[Fraction]) -> str:
    """The numbers as a trace would write them."""
    return " ".join(str(number) for number in numbers)


def main() -> None:
    problem = Problem(text="Use 4 5 6 10 to make 24.", answer="24")
    text = "10 - 4 = 6 (left: 5 6 6)\n5 * 6 = 30 (left: 6 30)\n30 - 6 = 25 (left: 25)\nAnswer: no solution"
    item = ProblemTrace(problem=problem, trace=segment_trace(Trace(problem_id=problem.id, text=text), Line()))
    (labels,) = asyncio.run(VerifierLabeller(verifiers=(Game24Verifier(),)).label([item]))
    (values,) = asyncio.run(Game24Values().label([item]))
    for label, value in zip(labels, values, strict=True):
        print(f"{item.trace.step_text(label.step).strip():40} {label.value:+.0f}  {label.evidence.message}")
        print(f"{'':40} 24 can {'still' if value.value else 'no longer'} be made")


if __name__ == "__main__":
    main()
