"""Exact values of expressions as ``Fraction``.

Sizes are bounded, so that ``9^9^9^9`` ends at once in an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb, factorial, floor, isqrt
from typing import Any

from surefoot.labelling.verifiers.equations.parsing import Expression, leaves

MAX_BITS = 4096
"""Largest numerator and denominator together."""


class TooLargeError(ArithmeticError):
    """A value over the bounds."""


class NotRationalError(ArithmeticError):
    """The value has letters, roots, pi or functions, and is computed in floating point."""


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How to read ambiguous notation: ``20%`` as 0.2 or as 20 (a unit), ``2\\\\frac{1}{2}`` as 2.5 or as
    1."""

    percent: Fraction = Fraction(1, 100)
    mixed: bool = True
    degrees: bool = False
    """Angles without a unit are in degrees."""
    imaginary: bool = False
    """The letter i is the imaginary unit."""
    euler: bool = False
    """The letter e is Euler's number."""
    natural: bool = False
    """``log`` is the natural logarithm, otherwise the one to base 10."""


def value(node: Expression, reading: Notation) -> Fraction:
    """Exact value. Raises ``NotRationalError``, ``TooLargeError`` or ``ZeroDivisionError``."""
    if node.kind == "n":
        return node.value
    if node.kind not in _OPERATIONS and node.kind not in _COMMON:
        raise NotRationalError(node.name)
    parts = [value(part, reading) for part in node.parts]
    result = _apply(node.kind, parts, reading)
    if result.numerator.bit_length() + result.denominator.bit_length() > MAX_BITS:
        raise TooLargeError("the value has too many digits")
    return result


def bounds(node: Expression, reading: Notation) -> tuple[Fraction, Fraction]:
    """Least and greatest value if the decimals in ``node`` with two or more digits shown were rounded.

    Raises as ``value`` does, and ``NotRationalError`` where an interval cannot be computed.
    """
    if node.kind == "n" and node.places is not None and node.places >= 2:
        half = half_unit(node.places)
        return node.value - half, node.value + half
    if all((number.places or 0) < 2 for number in leaves(node, "n")):
        exact = value(node, reading)
        return exact, exact
    if node.kind not in ("+", "-", "*", "/", "neg", "%"):
        raise NotRationalError("a decimal under a power")
    parts = [bounds(part, reading) for part in node.parts]
    if node.kind == "/" and parts[1][0] <= 0 <= parts[1][1]:
        raise ZeroDivisionError
    corners: list[list[Fraction]] = [[]]
    for low, high in parts:
        corners = [[*corner, end] for corner in corners for end in (low, high)]
    results = [_apply(node.kind, corner, reading) for corner in corners]
    return min(results), max(results)


def half_unit(places: int) -> Fraction:
    """Half of the last of ``places`` digits after the point."""
    return Fraction(1, 2 * 10**places)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator == 2:
        return _power(_root(base, Fraction(2)), Fraction(exponent.numerator))
    if exponent.denominator != 1:
        raise NotRationalError("a root")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > MAX_BITS and base not in (0, 1, -1):
        raise TooLargeError("the power has too many digits")
    if abs(exponent) > MAX_BITS:
        raise TooLargeError("the exponent is too large")
    if base == 0 and exponent <= 0:
        raise ZeroDivisionError
    return Fraction(base ** int(exponent))


def _root(radicand: Fraction, index: Fraction) -> Fraction:
    if index != 2 or radicand < 0:
        raise NotRationalError("a root")
    top, bottom = isqrt(radicand.numerator), isqrt(radicand.denominator)
    if Fraction(top * top, bottom * bottom) != radicand:
        raise NotRationalError("an irrational root")
    return Fraction(top, bottom)


def _whole(number: Fraction, most: int) -> int:
    if number.denominator != 1 or number < 0:
        raise NotRationalError("not a whole number")
    if number > most:
        raise TooLargeError("the value has too many digits")
    return int(number)


_COMMON: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "neg": operator.neg,
    "abs": abs,
    "deg": operator.pos,
}

_OPERATIONS: dict[str, Callable[[list[Fraction], Notation], Fraction]] = {
    "^": lambda parts, _: _power(parts[0], parts[1]),
    "mix": lambda parts, reading: parts[0] + parts[1] if reading.mixed else parts[0] * parts[1],
    "%": lambda parts, reading: parts[0] * reading.percent,
    "!": lambda parts, _: Fraction(factorial(_whole(parts[0], 170))),
    "sqrt": lambda parts, _: _root(parts[0], parts[1]),
    "floor": lambda parts, _: Fraction(floor(parts[0])),
    "ceil": lambda parts, _: Fraction(ceil(parts[0])),
    "C": lambda parts, _: Fraction(comb(_whole(parts[0], 500), _whole(parts[1], 500))),
}


def _apply(kind: str, parts: list[Fraction], reading: Notation) -> Fraction:
    return _COMMON[kind](*parts) if kind in _COMMON else _OPERATIONS[kind](parts, reading)
