"""Equations: two sides compared, identities, earlier equations that confirm them, and wrong rewritings.

An equation is represented by its residual, left minus right, at a few fixed points: the same letter has the
same value in all equations of all texts. An equation that is true everywhere has residual 0, and one that is
a linear combination of others has a residual that is one.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
    unknowns,
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


MAX_WORK = 300_000
"""Nodes that are evaluated for one step; about half a second."""
MAX_UNKNOWNS = 12
_POSITIVE, _POINTS = 5, 8
"""Points of positive values, for which ``sqrt(x^2) = x`` is meant, and all points."""
_WHOLE = frozenset("nkmjr")
"""Letters that are whole numbers in formulas such as ``\\cos 2\\pi k = 1``."""
_TOLERANCE = 1e-8


class WorkLimitError(ArithmeticError):
    """The equations of a step need more than ``MAX_WORK`` operations."""


class Work:
    """Counts operations, so that hostile text ends at the same one on every machine."""

    def __init__(self) -> None:
        self.spent = 0

    def spend(self, operations: int) -> None:
        """Raises ``WorkLimitError``."""
        self.spent += operations
        if self.spent > MAX_WORK:
            raise WorkLimitError("too much work")


Residual = NDArray[np.complex128]
"""Left minus right at ``_POINTS`` points; NaN where a side lacks a value."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Relation:
    """An equation with unknowns that a text states."""

    left: FormulaNode
    right: FormulaNode
    quote: str
    source: str
    """"the problem" or "step 3"."""
    notation: Notation

    @cached_property
    def unknowns(self) -> frozenset[str]:
        return unknowns(self.sides, self.notation)

    @cached_property
    def written(self) -> frozenset[str]:
        """The same for the same sides in either order."""
        return frozenset((str(self.left), str(self.right)))

    @property
    def sides(self) -> tuple[FormulaNode, FormulaNode]:
        return self.left, self.right

    @cached_property
    def has_decimals(self) -> bool:
        """Whether a number in it may be rounded."""
        return has_decimals(*self.sides)

    @cached_property
    def nodes(self) -> int:
        return sum(1 for side in self.sides for _ in side.walk())

    def values(
        self, number: int, work: Work, known: Mapping[str, Number] = {}
    ) -> tuple[Number, Number] | None:
        """Both sides at point ``number``, where the ``known`` letters have other values."""
        work.spend(self.nodes)
        point = {name: _value_at(name, number) for name in self.unknowns} | dict(known)
        try:
            return evaluate(self.left, point, self.notation), evaluate(self.right, point, self.notation)
        except UnknownValueError:
            return None

    def residual(self, work: Work) -> Residual:
        """Left minus right at all points; exactly 0 where the sides are equal."""
        residual = np.full(_POINTS, np.nan, dtype=np.complex128)
        for number in range(_POINTS):
            if (sides := self.values(number, work)) is not None:
                residual[number] = 0 if equal(*sides) else _floating(sides[0]) - _floating(sides[1])
        return residual

    def differs_little(self, work: Work) -> bool:
        """Whether the sides differ as a rounded value does."""
        pairs = [pair for number in range(_POINTS) if (pair := self.values(number, work)) is not None]
        return all(abs(_floating(x - y)) <= 0.05 * abs(_floating(y)) for x, y in pairs)

    def __str__(self) -> str:
        return f"{self.source}: {self.quote!r}"


def is_identity(residual: Residual) -> bool:
    """Whether the sides are equal at all points, or at all positive ones, that have values."""
    positive = residual[:_POSITIVE]
    values = positive[~np.isnan(positive)]
    return len(values) >= 3 and not values.any()


def is_impossible(relation: Relation, work: Work) -> bool:
    """Whether the sides differ by the same number, whatever the unknowns are."""
    sides = [pair for number in range(_POINTS) if (pair := relation.values(number, work)) is not None]
    if len(sides) < _POINTS - 2:
        return False
    differences = [x - y for x, y in sides]
    if all(isinstance(difference, Fraction) for difference in differences):
        return len(set(differences)) == 1 and differences[0] != 0
    side_spread = _spread(np.array([_floating(x) for x, _ in sides]))
    size = abs(_floating(differences[0]))  # next to a huge difference, the rest would be lost
    spread = _spread(np.array([_floating(difference) for difference in differences]))
    return size < side_spread / _TOLERANCE**0.5 and spread <= _TOLERANCE * min(size, side_spread)


def _spread(values: Residual) -> float:
    return float(np.ptp(values.real) + np.ptp(values.imag))


def is_combination(residual: Residual, others: Sequence[Residual]) -> bool:
    """Whether ``residual`` is a linear combination of ``others`` with constant coefficients.

    Not if they contradict each other: everything follows from a contradiction.
    """
    rows = ~np.isnan(np.array([residual, *others])).any(axis=0)
    if rows.sum() < len(others) + 3:
        return False
    matrix = np.array(others).T[rows]
    scale = np.abs(matrix).max(axis=0)
    if not scale.all():
        return False
    matrix = matrix / scale

    def spanned(target: Residual) -> bool:
        coefficients = np.linalg.lstsq(matrix, target, rcond=None)[0]
        error = np.abs(matrix @ coefficients - target).max()
        return bool(error <= _TOLERANCE * np.abs(target).max())

    return spanned(residual[rows]) and not spanned(np.ones(int(rows.sum()), dtype=np.complex128))


def _floating(number: Number) -> complex:
    try:
        return complex(number)
    except OverflowError:
        return complex(np.nan)


def _value_at(name: str, number: int) -> Fraction:
    """The value of a letter at a point."""
    seed = zlib.crc32(f"{number} {name}".encode())
    if name in _WHOLE:
        return Fraction(3 + seed % 7)
    value = Fraction(20 + seed % 211, 70)
    return value if number < _POSITIVE or seed % 3 else -value


def confirming(relation: Relation, earlier: Sequence[Relation], work: Work) -> tuple[Relation, ...]:
    """One or two earlier equations that ``relation`` is a linear combination of, or nothing."""
    residual = relation.residual(work)
    related = [other for other in reversed(earlier) if other.unknowns & relation.unknowns][:_RELATED]
    residuals = [other.residual(work) for other in related]
    for size in (1, 2):
        for chosen in combinations(range(len(related)), size):
            if is_combination(residual, [residuals[number] for number in chosen]):
                return tuple(related[number] for number in chosen)
    return ()


_RELATED = 8
"""Earlier equations that are tried, the latest."""


def wrong_rewriting(relation: Relation, previous: Relation, work: Work, *, named: bool) -> str | None:
    """Why ``relation`` cannot be ``previous`` in another form, as its place says; ``None`` = it may be.

    ``named``: a word such as "expanding" says that it is. An equation with other unknowns may be a
    substitution, one whose left side is the right side before continues a chain, and one with several
    unknowns may be the next of a system unless it is ``named``.
    """
    if relation.unknowns != previous.unknowns or relation.written == previous.written:
        return None
    if relation.left.parts and str(relation.left) == str(previous.right):
        return None
    if _one_side_changes(relation, previous, work):
        reason = "the other side is the same"
    elif _sign_is_lost(relation, previous, work):
        reason = "a term changed sides without its sign"
    elif (named or len(relation.unknowns) == 1) and _solutions_change(relation, previous, work):
        reason = "it has other solutions"
    else:
        return None
    return f"not what {previous.quote!r} becomes: {reason}"


def _one_side_changes(relation: Relation, previous: Relation, work: Work) -> bool:
    """Whether one side is the same expression, more than a letter or a number, and the other is not."""

    def both(side: str) -> Relation:
        return replace(relation, left=getattr(relation, side), right=getattr(previous, side))

    for same, other in ((both("left"), both("right")), (both("right"), both("left"))):
        if not (same.left.parts and same.right.parts and same.unknowns):
            continue
        names = [unknowns((side,), relation.notation) for side in (other.left, other.right)]
        if names[0] and names[0] == names[1] and is_identity(same.residual(work)):
            residual = other.residual(work)
            rounded = (relation.has_decimals or previous.has_decimals) and other.differs_little(work)
            return not np.isnan(residual).any() and bool(residual.all()) and not rounded
    return False


def _solutions_change(relation: Relation, previous: Relation, work: Work) -> bool:
    """Whether two equations are of the same degree without being proportional.

    Values, and factors that are set to 0 one after the other, do not count as rewritings.
    """
    factors = _is_zero(relation.right) and _is_zero(previous.right) and relation.left.kind != "*"
    rounded = relation.has_decimals or previous.has_decimals
    if previous.left.kind == "name" or factors or rounded:
        return False
    residuals = relation.residual(work), previous.residual(work)
    if np.isnan(residuals).any() or is_combination(residuals[0], residuals[1:]):
        return False
    ratios = []
    for size in (10**6, 10**9):
        far = {name: size * _value_at(name, 0) for name in relation.unknowns}
        values = [other.values(0, work, far) for other in (relation, previous)]
        top, bottom = (None if pair is None else pair[0] - pair[1] for pair in values)
        if not (isinstance(top, Fraction) and isinstance(bottom, Fraction) and top and bottom):
            return False
        ratios.append(top / bottom)
    return abs(ratios[0] / ratios[1] - 1) < Fraction(1, 100)


def _sign_is_lost(relation: Relation, previous: Relation, work: Work) -> bool:
    """Whether the terms are the same but for signs, some changed sides, and the equation became another."""
    terms, old_terms = _terms(relation, work), _terms(previous, work)
    if terms is None or old_terms is None:
        return False
    (lhs, rhs), (old_lhs, old_rhs) = terms, old_terms
    moved = Counter(map(abs, lhs)) != Counter(map(abs, old_lhs))
    unsigned = Counter(map(abs, lhs + rhs)) == Counter(map(abs, old_lhs + old_rhs))
    return moved and unsigned and abs(sum(lhs) - sum(rhs)) != abs(sum(old_lhs) - sum(old_rhs))


def _terms(relation: Relation, work: Work) -> tuple[list[Fraction], list[Fraction]] | None:
    """Values at the first point of the terms of both sides, with their signs and without 0.

    ``None`` for fewer than three terms, or if one is not a fraction there.
    """
    sides: tuple[list[Fraction], list[Fraction]] = ([], [])
    for side, terms in zip(relation.sides, sides, strict=True):
        for sign, term in _addends(side):
            pair = replace(relation, left=term, right=term).values(0, work)
            if pair is None or not isinstance(pair[0], Fraction):
                return None
            terms += [sign * pair[0]] if pair[0] else []
    return sides if len(sides[0]) + len(sides[1]) >= 3 else None


def _addends(node: FormulaNode, sign: int = 1) -> list[tuple[int, FormulaNode]]:
    if node.kind == "+":
        return [addend for part in node.parts for addend in _addends(part, sign)]
    return _addends(node.parts[0], -sign) if node.kind == "neg" else [(sign, node)]


def _is_zero(node: FormulaNode) -> bool:
    return node.kind == "number" and not node.value
