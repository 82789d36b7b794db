"""Arithmetic and algebra in a step, checked exactly: equations that hold, do not hold, cannot be checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, Self

from surefoot.errors import LabelError
from surefoot.io.bounded_worker import BoundedWorker
from surefoot.labelling.verifiers.equations import Equation, find_equations, leading_number
from surefoot.labelling.verifiers.expressions import (
    Expression,
    Notation,
    NotRationalError,
    TooLargeError,
    as_json,
    bounds,
    half_unit,
    load_algebra,
    may_differ_by_a_constant,
    symbols,
    value,
)
from surefoot.labelling.verifiers.parsing import Side
from surefoot.protocols import ProblemTrace, Verdict

MAX_CHARS = 20_000
"""Longest step that is parsed."""

EquationState = Literal["holds", "rounded", "fails", "unchecked"]


@dataclass(frozen=True, kw_only=True)
class EquationCheck:
    """The result for one equation."""

    text: str
    """The equation as written."""
    state: EquationState
    """``rounded`` counts as holding."""
    reason: str


class ArithmeticVerifier:
    """A :class:`surefoot.protocols.StepVerifier` for the equations in a step.

    It parses plain text (``48/2 = 24``, ``2 x $3 = $6``), GSM8K's calculator marks (``<<48/2=24>>``) and
    LaTeX, chains included. Each equation

    - *holds* if both sides are equal exactly, or are identical for all values of their letters;
    - holds *rounded* if one side is a single decimal number (at least one digit after the point) and the
      other differs from it by at most half a unit of its last shown digit: ``10/3 = 3.33``;
    - *does not hold* if the sides differ otherwise and no other reading is plausible;
    - *cannot be checked* in all other cases. Among them: equations to solve and definitions (``x = 5``); an
      integer instead of a fraction less than 1 away, or a decimal less than one unit of its last digit away
      (rounded up, down or cut off on purpose); a result within the rounding of the decimals on the other side
      (``3 * 3.33 = 10.00``); a chain that continues with the result (``5 + 5 = 10 + 2 = 12``); units that may
      be converted; steps that refute or suppose (``0 = 1, a contradiction``), other number bases.

    A step is -1 if an equation does not hold, +1 if one was checked and all that were checked hold, and
    ``None`` otherwise. Letters and roots go to SymPy, in a process limited to ``timeout_s`` seconds an
    equation and ``memory_mb`` MiB; most equations need none. Use as a context manager, or call ``close``.
    """

    name = "arithmetic"

    def __init__(self, *, timeout_s: float = 5.0, memory_mb: int = 1024) -> None:
        """Raises ``LabelError`` for a limit that is not positive."""
        if timeout_s <= 0 or memory_mb <= 0:
            raise LabelError(f"timeout_s={timeout_s} and memory_mb={memory_mb} must be positive")
        self._worker = BoundedWorker(load_algebra, timeout_s=timeout_s, memory_mb=memory_mb, error=LabelError)
        self._algebra = lru_cache(maxsize=20_000)(self._ask)

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``LabelError`` if the process cannot start."""
        return [
            [
                self._verdict(item.trace.step_text(step), item.problem.text)
                for step in range(len(item.trace.steps))
            ]
            for item in items
        ]

    def check(self, text: str, *, problem: str = "") -> list[EquationCheck]:
        """The result for each equation of one step, in order.

        ``problem`` is the problem's text: if it defines number bases or operations, a false equation cannot
        be checked. A step longer than ``MAX_CHARS`` is not parsed.
        """
        if len(text) > MAX_CHARS:
            return []
        checks = [self._check(equation) for equation in find_equations(text)]
        failed = any(check.state == "fails" for check in checks)
        context = _context_doubt(text, problem) if failed else None
        if context is None:
            return checks
        return [
            replace(check, state="unchecked", reason=f"{check.reason}, but {context}")
            if check.state == "fails"
            else check
            for check in checks
        ]

    def close(self) -> None:
        """Stop the process for algebra. Can be repeated; a later check starts another."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _verdict(self, text: str, problem: str) -> Verdict:
        checks = self.check(text, problem=problem)
        if not checks:
            long = len(text) > MAX_CHARS
            return Verdict(value=None, reason="the step is too long" if long else "nothing to check")
        failed = [check for check in checks if check.state == "fails"]
        if failed:
            return Verdict(value=-1, reason=f"does not hold: {failed[0].text} ({failed[0].reason})")
        held = [check for check in checks if check.state in ("holds", "rounded")]
        if not held:
            return Verdict(value=None, reason=f"cannot be checked: {checks[0].reason}")
        rounded = sum(check.state == "rounded" for check in held)
        note = f", {rounded} of them rounded" if rounded else ""
        return Verdict(value=1, reason=f"{len(held)} of {len(checks)} equations hold{note}")

    def _check(self, equation: Equation) -> EquationCheck:
        left, right = equation.left, equation.right
        if left.tree is None or right.tree is None:
            problem = left.problem or right.problem or "it cannot be parsed"
            return EquationCheck(text=equation.text, state="unchecked", reason=problem)
        try:
            state, reason = self._compare(equation, left.tree, right.tree)
        except TooLargeError as error:
            state, reason = "unchecked", str(error)
        except ZeroDivisionError:
            state, reason = "unchecked", "a division by zero"
        if state == "fails" and equation.doubt:
            state, reason = "unchecked", f"{equation.doubt}, else {reason}"
        return EquationCheck(text=equation.text, state=state, reason=reason)

    def _compare(self, equation: Equation, left: Expression, right: Expression) -> tuple[EquationState, str]:
        try:
            return _compare_numbers(equation, left, right)
        except NotRationalError:
            pass
        names = symbols(left) | symbols(right)
        if names - {"pi"} and not may_differ_by_a_constant(left, right):
            return "unchecked", "an equation to solve or a definition"
        relation, values = self._algebra(left, right)
        if relation == "identity":
            return "holds", "equal for all values" if names - {"pi"} else "equal"
        if values is not None:
            return _compare_values(equation, *values)
        if relation == "never":
            return "fails", "true for no value"
        failed = relation.startswith("algebra")
        return "unchecked", relation if failed else "an equation to solve or a definition"

    def _ask(self, left: Expression, right: Expression) -> tuple[str, tuple[Fraction, Fraction] | None]:
        reply = self._worker.ask({"left": as_json(left), "right": as_json(right)})
        if reply.failure:
            return f"algebra failed: {reply.failure}", None
        values = reply.answer.get("values")
        return reply.answer["relation"], (Fraction(values[0]), Fraction(values[1])) if values else None


def _compare_numbers(equation: Equation, left: Expression, right: Expression) -> tuple[EquationState, str]:
    """Compare two sides without letters. Raises ``NotRationalError`` if there are any."""
    x, y = value(left, Notation()), value(right, Notation())
    if x == y:
        return "holds", "equal"
    if _rounds(equation.left, x, y) or _rounds(equation.right, y, x):
        return "rounded", "equal when rounded to the digits shown"
    for note, readings in _READINGS:
        for left_reading, right_reading in readings:
            u, v = value(left, left_reading), value(right, right_reading)
            if u == v:
                return "holds", f"equal, {note}"
            if _rounds(equation.left, u, v, left_reading) or _rounds(equation.right, v, u, right_reading):
                return "rounded", f"equal when rounded to the digits shown, {note}"
    difference = f"{_shown(x)}, not {_shown(y)}"
    reason = _excuse(equation, left, right, x, y)
    return ("unchecked", f"{difference}, but {reason}") if reason else ("fails", difference)


def _compare_values(equation: Equation, x: Fraction, y: Fraction) -> tuple[EquationState, str]:
    """Compare roots and pi by their decimals."""
    if _rounds(equation.left, x, y) or _rounds(equation.right, y, x):
        return "rounded", "equal when rounded to the digits shown"
    if ("pi" in _names(equation.left)) != ("pi" in _names(equation.right)):
        return "unchecked", "an approximation of pi, or degrees"
    difference = f"{_shown(x)}, not {_shown(y)}"
    if _nearly(equation.left, x, y) or _nearly(equation.right, y, x):
        return "unchecked", f"{difference}, but it may be rounded"
    return "fails", difference


def _names(side: Side) -> set[str]:
    return symbols(side.tree) if side.tree else set()


_PLAIN, _BY_UNIT, _AS_FACTOR = Notation(), Notation(percent=Fraction(1)), Notation(mixed=False)
_READINGS = (
    ("'%' read as a unit", ((_BY_UNIT, _PLAIN), (_PLAIN, _BY_UNIT), (_BY_UNIT, _BY_UNIT))),
    ("a number before a fraction read as a factor", ((_AS_FACTOR, _AS_FACTOR),)),
)


def _rounds(side: Side, x: Fraction, y: Fraction, reading: Notation = _PLAIN) -> bool:
    """Whether ``side``, of value ``x``, is ``y`` rounded to the digits it shows."""
    return bool(side.places) and abs(x - y) <= _unit(side, reading) / 2


def _nearly(side: Side, x: Fraction, y: Fraction) -> bool:
    """Whether ``y`` lies within one unit of the last digit of ``side``, and has more digits than it shows."""
    return side.places is not None and abs(x - y) < _unit(side) and (y / _unit(side)).denominator != 1


def _unit(side: Side, reading: Notation = _PLAIN) -> Fraction:
    unit = 2 * half_unit(side.places or 0)
    return unit * reading.percent if side.tree is not None and _is_percent(side.tree) else unit


def _is_percent(node: Expression) -> bool:
    return node.kind == "%" or (node.kind == "neg" and _is_percent(node.parts[0]))


def _excuse(equation: Equation, left: Expression, right: Expression, x: Fraction, y: Fraction) -> str | None:
    """Why the equation might still be right in another reading."""
    if _nearly(equation.left, x, y) or _nearly(equation.right, y, x):
        return "it may be rounded on purpose"
    try:
        (low, high), (low2, high2) = bounds(left, Notation()), bounds(right, Notation())
        if low <= high2 and low2 <= high:
            return "that is within the rounding of its decimals"
    except (NotRationalError, ZeroDivisionError):
        return "a decimal in it may be rounded"
    if equation.right.places is None and value(leading_number(right), Notation()) == x:
        return "the chain continues with the result"
    if equation.measured and x and y and (x / y in _CONVERSIONS or y / x in _CONVERSIONS):
        return "a unit may be converted"
    if equation.scaled and x and y and (x / y in _SCALES or y / x in _SCALES):
        return "the step scales its numbers"
    return None


_CONVERSIONS = frozenset((2, 3, 4, 5, 7, 8, 10, 12, 14, 16, 20, 24, 25, 28, 30, 31, 36, 48, 50, 52, 60, 100))
_CONVERSIONS |= {128, 168, 180, 360, 365, 366, 1000, 1440, 1760, 2000, 3600, 5280, 86400, 10**6}
"""Ratios of common units of time, money, length, weight and volume."""
_SCALES = frozenset((12, 100, 1000, 10**6, 10**9))


def _shown(number: Fraction) -> str:
    if number.denominator == 1:
        return str(number) if abs(number) < 10**15 else f"{float(number):.6g}"
    exact = f"{float(number):.10g}"
    return exact if Fraction(exact) == number else f"{float(number):.6g}..."


_REFUTED = re.compile(
    r"\b(?:contradict\w*|impossible|not possible|no solutions?|cannot|can't|false|never|incorrect|wrong|"
    r"absurd|not true|not equal|does ?n[o']t|is ?n[o']t|not (?:a )?(?:valid|work)|suppose|assum\w+|if|guess|"
    r"try|mistake|oops|wait|instead|should|would)\b|\?",
    re.IGNORECASE,
)
_OTHER_ARITHMETIC = re.compile(
    r"\b(?:bases?|mod|modulo|modul\w+|binary|octal|hexadecimal|ternary|congruen\w+|clock|o'clock|remainders?)\b|"
    r"\\p?b?mod\b|≡|\\equiv|[0-9]_\{?[0-9]",
    re.IGNORECASE,
)
_OWN_OPERATION = re.compile(
    r"\b(?:defined?|operation|digit stands|letter)\b|[@#♠♣♥♦⊕⊗◇△]|\\(?:star|oplus|otimes|diamond|\w+suit)",
    re.IGNORECASE,
)


def _context_doubt(text: str, problem: str) -> str | None:
    if match := _REFUTED.search(text):
        return f"the step says {match.group()!r}"
    if match := _OTHER_ARITHMETIC.search(text) or _OTHER_ARITHMETIC.search(problem):
        return f"{match.group()!r} may mean another arithmetic"
    if match := _OWN_OPERATION.search(problem):
        return f"the problem may define its own operation ({match.group()!r})"
    return None
