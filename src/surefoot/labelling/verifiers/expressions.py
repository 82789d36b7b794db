"""Expressions as trees of a few kinds of nodes: exact values, and a quick test by random points.

Values are ``Fraction`` within bounds on their size, so that ``9^9^9^9`` ends at once in an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import comb, factorial, isqrt
from typing import Any

MAX_BITS = 4096
"""Largest numerator and denominator together."""
_PRIME = 2**61 - 1
_POINTS = 4


class TooLargeError(ArithmeticError):
    """A value over the bounds."""


class NotRationalError(ArithmeticError):
    """The value has letters, roots or pi, and needs algebra."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    """A node of a tree.

    Kinds: n (number), s (letter or ``pi``), the operators ``+ - * / ^ mix`` (integer and fraction), ``neg``
    (minus), ``%``, ``!``, ``sqrt`` (radicand, index), ``C`` (binomial).
    """

    kind: str
    parts: tuple[Expression, ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""
    places: int | None = None
    """Digits shown after the point, for a number written with one."""


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How to read ambiguous notation: ``20%`` as 0.2 or as 20 (a unit), ``2\\\\frac{1}{2}`` as 2.5 or as
    1."""

    percent: Fraction = Fraction(1, 100)
    mixed: bool = True


def value(node: Expression, reading: Notation) -> Fraction:
    """Exact value. Raises ``NotRationalError``, ``TooLargeError`` or ``ZeroDivisionError``."""
    match node.kind:
        case "n":
            return node.value
        case "s":
            raise NotRationalError(node.name)
    parts = [value(part, reading) for part in node.parts]
    result = _OPERATIONS[node.kind](parts, reading)
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
    if all((number.places or 0) < 2 for number in numbers(node)):
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
    results = [_OPERATIONS[node.kind](corner, reading) for corner in corners]
    return min(results), max(results)


def half_unit(places: int) -> Fraction:
    """Half of the last of ``places`` digits after the point."""
    return Fraction(1, 2 * 10**places)


def numbers(node: Expression) -> Iterator[Expression]:
    """All numbers in a tree."""
    if node.kind == "n":
        yield node
    for part in node.parts:
        yield from numbers(part)


def symbols(node: Expression) -> set[str]:
    """Names of all letters in a tree, ``pi`` included."""
    names = {node.name} if node.kind == "s" else set()
    return names.union(*(symbols(part) for part in node.parts))


def as_json(node: Expression) -> list[Any]:
    """Tree as nested lists, numbers as text, for the bounded process."""
    if node.kind == "n":
        return ["n", str(node.value)]
    return ["s", node.name] if node.kind == "s" else [node.kind, *map(as_json, node.parts)]


def may_differ_by_a_constant(left: Expression, right: Expression) -> bool:
    """Whether ``left - right`` has one value at random points modulo a prime: an identity, or never true.

    ``False`` is certain: an equation that holds for some values of its letters and not for others. Roots
    and undefined points give ``True``, for algebra to decide.
    """
    rng = random.Random(0)
    names = sorted(symbols(left) | symbols(right))
    differences = set()
    for _ in range(_POINTS):
        point = {name: rng.randrange(1, _PRIME) for name in names}
        try:
            differences.add((_modular(left, point) - _modular(right, point)) % _PRIME)
        except (NotRationalError, ZeroDivisionError):
            return True
    return len(differences) == 1


def _modular(node: Expression, point: dict[str, int]) -> int:
    match node.kind:
        case "n":
            return node.value.numerator * _inverse(node.value.denominator) % _PRIME
        case "s":
            return point[node.name]
        case "^":
            exponent = value(node.parts[1], Notation())
            if exponent.denominator != 1 or abs(exponent) > MAX_BITS:
                raise NotRationalError("a root or a large power")
            base = _modular(node.parts[0], point)
            return pow(_inverse(base) if exponent < 0 else base, abs(int(exponent)), _PRIME)
    if node.kind not in _MODULAR:
        raise NotRationalError(node.kind)
    return _MODULAR[node.kind](*(_modular(part, point) for part in node.parts)) % _PRIME


def _inverse(number: int) -> int:
    if number % _PRIME == 0:
        raise ZeroDivisionError
    return pow(number, -1, _PRIME)


_MODULAR: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b,
    "mix": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a * _inverse(b),
    "neg": lambda a: -a,
    "%": lambda a: a * _inverse(100),
}


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


_OPERATIONS: dict[str, Callable[[list[Fraction], Notation], Fraction]] = {
    "+": lambda parts, _: parts[0] + parts[1],
    "-": lambda parts, _: parts[0] - parts[1],
    "*": lambda parts, _: parts[0] * parts[1],
    "/": lambda parts, _: parts[0] / parts[1],
    "^": lambda parts, _: _power(parts[0], parts[1]),
    "mix": lambda parts, reading: parts[0] + parts[1] if reading.mixed else parts[0] * parts[1],
    "neg": lambda parts, _: -parts[0],
    "%": lambda parts, reading: parts[0] * reading.percent,
    "!": lambda parts, _: Fraction(factorial(_whole(parts[0], 170))),
    "sqrt": lambda parts, _: _root(parts[0], parts[1]),
    "C": lambda parts, _: Fraction(comb(_whole(parts[0], 500), _whole(parts[1], 500))),
}


_DIGITS = 50


def load_algebra() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Import SymPy and return a function that compares ``left`` with ``right``.

    The answer's ``relation`` is ``identity`` (equal for all values), ``never`` (the difference is a number
    other than 0) or ``open``. ``values`` are both sides as decimals where neither has a letter.
    """
    import sympy

    operations: dict[str, Callable[..., Any]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b,
        "^": lambda a, b: a**b,
        "mix": lambda a, b: a + b,
        "neg": lambda a: -a,
        "%": lambda a: a / 100,
        "!": sympy.factorial,
        "sqrt": lambda a, index: sympy.root(a, index),
        "C": sympy.binomial,
    }

    def build(tree: list[Any]) -> Any:
        if tree[0] == "n":
            return sympy.Rational(tree[1])
        if tree[0] == "s":
            return sympy.pi if tree[1] == "pi" else sympy.Symbol(tree[1])
        return operations[tree[0]](*(build(part) for part in tree[1:]))

    def compare(question: dict[str, Any]) -> dict[str, Any]:
        left, right = build(question["left"]), build(question["right"])
        if not (left.is_finite is not False and right.is_finite is not False) or (left - right).has(
            sympy.nan
        ):
            return {"relation": "open"}
        if left.free_symbols or right.free_symbols:
            difference = sympy.cancel(sympy.together(sympy.expand(left - right)))
            if difference.free_symbols:
                difference = sympy.simplify(difference)
            if difference == 0:
                return {"relation": "identity"}
            constant = not difference.free_symbols and difference.is_zero is False
            return {"relation": "never" if constant else "open"}
        equal = (left - right).equals(0)
        relation = {True: "identity", False: "never", None: "open"}[equal]
        values = [str(side.evalf(_DIGITS)) for side in (left, right) if side.is_real]
        return {"relation": relation, "values": values if len(values) == 2 else None}

    compare({"left": ["s", "x"], "right": ["+", ["s", "x"], ["n", "1/2"]]})  # warm-up
    return compare
