"""Equations of numbers: whether both sides are equal, and why a difference may be meant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Literal

from surefoot.answers.formulas import DEGREE, FormulaNode
from surefoot.labelling.verifiers.equations.parsing import FUNCTIONS, Side, has_decimals
from surefoot.labelling.verifiers.equations.reading import Equation
from surefoot.labelling.verifiers.equations.values import (
    PLAIN,
    Notation,
    Number,
    UnknownValueError,
    bounds,
    evaluate,
)

ClosedState = Literal["holds", "rounded", "fails", "unchecked"]


def compare(
    equation: Equation, left: FormulaNode, right: FormulaNode, notations: Sequence[Notation]
) -> tuple[ClosedState, str]:
    """State of an equation without unknowns, and why.

    Each of ``notations`` is a possible reading of functions, the likeliest first; an equation that holds in
    one of them holds.
    """
    try:
        pairs = [(notation, notation, "") for notation in notations]
        values = [(evaluate(left, {}, a), evaluate(right, {}, b), a, note) for a, b, note in pairs]
        rational = all(isinstance(value, Fraction) for value in values[0][:2])
        if rational:
            values = values[:1]
            values += [
                (evaluate(left, {}, a), evaluate(right, {}, b), a, note)
                for note, readings in _READINGS
                for a, b in readings
            ]
    except UnknownValueError as error:
        return "unchecked", str(error)
    for x, y, reading, note in values:
        if equal(x, y):
            return "holds", f"equal{note}"
        if _rounded(equation, x, y, reading):
            return "rounded", f"equal when rounded to the digits shown{note}"
    x, y = values[0][:2]
    difference = f"{_shown(x)}, not {_shown(y)}"
    if equation.approximate:
        return "unchecked", "an approximation"
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        excuse = _excuse(equation, left, right, x, y)
    else:
        excuse = _floating_excuse(equation, left, right, complex(x), complex(y))
    return ("unchecked", f"{difference}, but {excuse}") if excuse else ("fails", difference)


def equal(x: Number, y: Number) -> bool:
    """Whether two values are equal; exact for fractions, else up to the error of floating-point numbers."""
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x == y
    return abs(complex(x) - complex(y)) <= _EQUAL * max(abs(complex(x)), abs(complex(y)))


def _rounded(equation: Equation, x: Number, y: Number, reading: Notation) -> bool:
    """Whether one side is the other rounded to the digits that it shows, or off by floating point."""
    a, b = _real(x), _real(y)
    if a is None or b is None:
        return False
    for side in (equation.left, equation.right):
        if side.places and abs(a - b) <= _unit(side, reading) / 2:
            return True
    return bool(equation.left.places or equation.right.places) and abs(a - b) <= _FLOAT_ERROR * abs(b)


def _real(number: Number) -> Fraction | None:
    """As a fraction; ``None`` for a complex number that is not real."""
    if isinstance(number, Fraction):
        return number
    return Fraction(number.real) if abs(number.imag) <= _EQUAL * abs(number) else None


_EQUAL = 1e-9
_ROUNDED = Fraction(1, 50)
_FLOAT_ERROR = Fraction(1, 2**48)
"""Relative error of a few floating-point operations: ``17 * .1 = 1.7000000000000002``."""
_BY_UNIT, _AS_FACTOR = Notation(percent=Fraction(1)), Notation(mixed=False)
_READINGS = (
    (", '%' read as a unit", ((_BY_UNIT, PLAIN), (PLAIN, _BY_UNIT), (_BY_UNIT, _BY_UNIT))),
    (", a number before a fraction read as a factor", ((_AS_FACTOR, _AS_FACTOR),)),
)


def _unit(side: Side, reading: Notation = PLAIN) -> Fraction:
    """One unit of the last digit that the side shows."""
    node, scale = side.tree, Fraction(1)
    while node is not None and node.kind in ("neg", "%"):
        scale *= reading.percent if node.kind == "%" else 1
        node = node.parts[0]
    return scale / Fraction(10) ** (side.places or 0)


def _nearly(side: Side, x: Fraction, y: Fraction) -> bool:
    """Whether ``side``, of value ``x``, may be ``y`` cut off or rounded up: it differs by less than one unit
    of the last digit, and ``y`` has more digits but is at least that unit of a decimal."""
    if side.places is None:
        return False
    unit = _unit(side)
    return abs(x - y) < unit and (y / unit).denominator != 1 and (side.places == 0 or abs(y) >= unit)


def _excuse(
    equation: Equation, left: FormulaNode, right: FormulaNode, x: Fraction, y: Fraction
) -> str | None:
    """Why the equation of rational numbers might still be right in another reading."""
    if _nearly(equation.left, x, y) or _nearly(equation.right, y, x):
        return "it may be rounded on purpose"
    try:
        (low, high), (low2, high2) = bounds(left), bounds(right)
        if low <= high2 and low2 <= high:
            return "that is within the rounding of its decimals"
    except UnknownValueError:
        return "a decimal in it may be rounded"
    if equation.right.places is None and evaluate(_leading_number(right), {}, PLAIN) == x:
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


def _floating_excuse(
    equation: Equation, left: FormulaNode, right: FormulaNode, x: complex, y: complex
) -> str | None:
    """The same where a side has roots, pi or functions."""
    nodes = [list(side.walk()) for side in (left, right)]
    angles = any(node.text in FUNCTIONS for side in nodes for node in side)
    one_has_pi, one_has_degrees = (len({mark in side for side in nodes}) > 1 for mark in (_PI, DEGREE))
    if one_has_degrees or (one_has_pi and angles):
        return "an angle may be converted"
    a, b = _real(x), _real(y)
    if a is None or b is None:
        return None
    if one_has_pi and b and any(abs(abs(a / b) - usual) <= usual / 100 for usual in (1, *_HALF_TURN)):
        return "pi may be approximated, or an angle converted"
    close = abs(a - b) <= _ROUNDED * max(abs(a), abs(b))
    if _nearly(equation.left, a, b) or _nearly(equation.right, b, a) or (has_decimals(left, right) and close):
        return "it may be rounded"
    return None


_PI = FormulaNode("name", text="pi")
_HALF_TURN = (Fraction(180 / math.pi), Fraction(math.pi / 180))


def _shown(number: Number) -> str:
    real = _real(number)
    if real is None:
        return f"{complex(number):.6g}"
    if real.denominator == 1 and abs(real) < 10**15:
        return str(real)
    decimal = Context(prec=10).divide(Decimal(real.numerator), Decimal(real.denominator))  # of any size
    short = f"{decimal.normalize(Context(prec=10)):.10g}"
    return short if Fraction(decimal) == real else f"{decimal:.6g}..."


def _leading_number(node: FormulaNode) -> FormulaNode:
    """The leftmost operand of an expression."""
    while node.parts:
        node = node.parts[0]
    return node
