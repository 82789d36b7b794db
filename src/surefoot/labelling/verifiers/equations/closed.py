"""Equations without unknowns: exact comparison of rational sides, floating point for the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal

from surefoot.labelling.verifiers.equations.exact import (
    Notation,
    NotRationalError,
    TooLargeError,
    bounds,
    half_unit,
    value,
)
from surefoot.labelling.verifiers.equations.parsing import Expression, Side, leaves, symbols
from surefoot.labelling.verifiers.equations.points import Pair, Solver
from surefoot.labelling.verifiers.equations.reading import Equation

ClosedState = Literal["holds", "rounded", "fails", "unchecked"]


def compare_closed(
    equation: Equation, sides: Pair, notations: Callable[[], Sequence[Notation]]
) -> tuple[ClosedState, str]:
    """State of an equation without unknowns, and why.

    ``sides`` are its sides with functions replaced by their definitions. Each of ``notations()``
    is a possible reading of functions; an equation that holds in one of them holds.
    """
    if equation.approximate:
        results = [_compare_in(equation, sides, notation) for notation in notations()]
        near = any(state in ("holds", "rounded") for state, _ in results)
        return ("rounded", "equal when rounded") if near else ("unchecked", "an approximation")
    try:
        return _compare_rational(equation, *sides)
    except NotRationalError:
        return _compare_values(equation, *sides, notations())
    except TooLargeError as error:
        return "unchecked", str(error)
    except ZeroDivisionError:
        return "unchecked", "a division by zero"


def _compare_rational(equation: Equation, left: Expression, right: Expression) -> tuple[ClosedState, str]:
    """Compare two rational sides. Raises ``NotRationalError`` for others."""
    x, y = value(left, Notation()), value(right, Notation())
    if x == y:
        return "holds", "equal"
    if _rounds(equation.left, x, y) or _rounds(equation.right, y, x):
        return "rounded", "equal when rounded to the digits shown"
    if (equation.left.places or equation.right.places) and abs(x - y) <= _FLOAT_ERROR * abs(y):
        return "rounded", "equal in floating-point arithmetic"
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


def _compare_values(
    equation: Equation, left: Expression, right: Expression, notations: Sequence[Notation]
) -> tuple[ClosedState, str]:
    """Compare roots, pi, functions and complex numbers in floating point, in each of ``notations``."""
    doubt = None
    if any(leaves(left, "deg")) != any(leaves(right, "deg")):
        doubt = "degrees may be converted"
    elif ("pi" in symbols(left)) != ("pi" in symbols(right)) and (
        any(leaves(left, "fn")) or any(leaves(right, "fn"))
    ):
        doubt = "the argument may be an angle in degrees"
    results = [_compare_in(equation, (left, right), notation) for notation in notations]
    for state in ("holds", "rounded", "unchecked"):
        for result in results:
            if result[0] == state:
                return result
    return ("unchecked", doubt) if doubt else results[0]


def _compare_in(equation: Equation, sides: Pair, notation: Notation) -> tuple[ClosedState, str]:
    values = Solver(notation=notation).values(sides, {})
    if values is None:
        return "unchecked", "it is undefined"
    a, b = complex(values[0][0]), complex(values[1][0])
    scale = max(abs(a), abs(b))
    if abs(a - b) <= _EQUAL * scale:
        return "holds", "equal"
    if max(abs(a.imag), abs(b.imag)) > _EQUAL * scale:
        return "fails", f"{a:.6g}, not {b:.6g}"
    x, y = Fraction(a.real), Fraction(b.real)
    if _rounds(equation.left, x, y) or _rounds(equation.right, y, x):
        return "rounded", "equal when rounded to the digits shown"
    difference = f"{_shown(x)}, not {_shown(y)}"
    decimals = any(leaf.places for side in sides for leaf in leaves(side, "n"))
    if ("pi" in symbols(sides[0])) != ("pi" in symbols(sides[1])):
        ratio = abs(x / y) if y else Fraction(0)
        if any(abs(ratio - usual) <= usual / 100 for usual in (1, _DEGREES, 1 / _DEGREES)):
            return "unchecked", f"{difference}, but pi may be approximated, or an angle converted"
    if (
        _nearly(equation.left, x, y)
        or _nearly(equation.right, y, x)
        or (decimals and abs(x - y) <= _ROUNDED * max(abs(x), abs(y)))
    ):
        return "unchecked", f"{difference}, but it may be rounded"
    return "fails", difference


_EQUAL = 1e-9
_DEGREES = Fraction(180 / math.pi)
_ROUNDED = Fraction(1, 50)
_FLOAT_ERROR = Fraction(1, 2**48)
"""Relative error of a few floating-point operations: ``17 * .1 = 1.7000000000000002``."""
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
    if equation.right.places is None and value(_leading_number(right), Notation()) == x:
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


def _leading_number(node: Expression) -> Expression:
    """The leftmost operand of an expression."""
    while node.parts:
        node = node.parts[0]
    return node
