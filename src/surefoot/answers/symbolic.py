"""Formulas compared by their values.

Two expressions are equal if they have the same value at random points: exactly where all numbers are
rational, else in so many digits that equal and different values cannot be confused. No algebra is done that
could run out of hand: the work of a question is bounded, and so are the bits of a number.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import mpmath

from surefoot.answers.formulas import (
    ANGLES,
    INFINITY,
    FormulaNode,
    TooLargeError,
    UnreadableError,
    number,
    read_formula,
)
from surefoot.maths import print_number, read_quantity, same_rounded

_DIGITS = (50, 120)
"""Decimal digits of the two computations of each value: a difference of zero shrinks in the second one."""
_POINTS = 4
_MOST_BITS = 50_000
_MOST_TERMS = 1000
_MOST_FACTORIAL = 3000
_MOST_WORK = 60_000
"""Units of work that one comparison may take; a unit takes some microseconds."""
_ROUNDED = Fraction(1, 10**6)
"""Relative difference allowed between constants if one of them contains decimals."""
_HUGE = 1e300
_FLIPPED = str.maketrans("<>≤≥", "><≥≤")
_NESTED = ("list", "set")
_VECTORS = ("()", "⟨⟩")
_ABSURD = FormulaNode("absurd")
"""An equation of numbers that does not hold ("0 = 18"): equal to nothing."""
_PLURAL = frozenset({*_NESTED, "tuple", "matrix", "relation", "mod", "base", "∪", "∩", "∖", "absurd"})
_I = FormulaNode("name", text="i")
_CONSTANTS = ("e", "pi", "i", "°", "∞", "∅", "…")

Value = Any
"""A ``Fraction``, or a number of mpmath."""
_MP = mpmath.MPContext()
_LOCK = threading.Lock()
"""mpmath keeps its precision and its constants for the whole process."""
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def same_formulas(answer: str, reference: str) -> bool:
    """Whether two formulas are equal. Raises ``UnreadableError``, ``TooLargeError``."""
    x, y = _read(answer), _read(reference)
    with _LOCK:
        question = _Question()
        if question.same(x, y):
            return True
        # "(1,234)" may be a number or a pair
        x2 = _as_list(answer, x) if y.kind in _PLURAL else x
        y2 = _as_list(reference, y) if x.kind in _PLURAL else y
        return (x2, y2) != (x, y) and question.same(x2, y2)


def _as_list(text: str, tree: FormulaNode) -> FormulaNode:
    try:
        return read_formula(text, lists=True)
    except UnreadableError:
        return tree


def _read(text: str) -> FormulaNode:
    try:
        return read_formula(text)
    except UnreadableError:
        return read_formula(text, lists=True)


def fingerprint(text: str) -> str:
    """A text that equal formulas have in common. Raises ``UnreadableError``, ``TooLargeError``."""
    tree = _read(text)
    with _LOCK:
        return _Question().fingerprint(tree)


class NamedValue(NamedTuple):
    """A value, its name if it has one, and the equation that says so."""

    name: str
    node: FormulaNode
    equation: FormulaNode | None = None


def _real(value: Value) -> Value:
    return _MP.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _is_integer(*values: Value) -> bool:
    return all(isinstance(value, Fraction) and value.denominator == 1 for value in values)


def _bits(value: Value) -> int:
    """Bits of a fraction, or of the exponent of a number of mpmath."""
    if isinstance(value, Fraction):
        return max(value.numerator.bit_length(), value.denominator.bit_length())
    if not _MP.isfinite(value):
        raise UnreadableError(str(value))
    return abs(int(_MP.mag(value))) if value else 0


def _power(base: Value, exponent: Value) -> Value:
    if base == 0 and not (isinstance(exponent, Fraction) and exponent > 0):
        raise UnreadableError("a power of zero")
    if abs(base) == 1 and _is_integer(exponent):
        return base ** int(exponent % 4)
    if abs(exponent) * (_bits(base) + 1) > _MOST_BITS:
        raise TooLargeError
    if isinstance(base, Fraction) and _is_integer(exponent):
        return base ** int(exponent)
    return _MP.power(_real(base), _real(exponent))


def _function(name: str, parts: Sequence[Value]) -> Value:
    """The value of a known function; raises ``KeyError`` for an unknown name."""
    x, *arguments = parts
    reals = [_real(part) for part in parts]
    match name:
        case "abs":
            return abs(x)
        case "floor" | "ceil" if isinstance(x, Fraction):
            return Fraction((math.floor if name == "floor" else math.ceil)(x))
        case "min" | "max":
            return (min if name == "min" else max)(parts if _is_integer(*parts) else reals)
        case "gcd" | "lcm" if _is_integer(*parts):
            return Fraction((math.gcd if name == "gcd" else math.lcm)(*map(int, parts)))
        case "!" | "binom":
            if max(map(abs, reals)) > _MOST_FACTORIAL:
                raise TooLargeError
            if _is_integer(*parts) and min(parts) >= 0:
                return Fraction((math.factorial if name == "!" else math.comb)(*map(int, parts)))
            return (_MP.factorial if name == "!" else _MP.binomial)(*reals)
        case "sqrt" if x:
            degree = arguments[0] if arguments else Fraction(2)
            odd = _is_integer(degree) and degree % 2 == 1 and not _MP.im(reals[0]) and _MP.re(reals[0]) < 0
            return -_power(-x, 1 / degree) if odd else _power(x, 1 / degree)
        case "sqrt":
            return x
        case "log" | "ln" if x:
            return _MP.log(*reals)
    if abs(reals[0]) > _MOST_BITS:
        raise TooLargeError
    functions = {"exp", *ANGLES, *(f"arc{name}" for name in ANGLES)}
    if name not in functions or arguments:
        raise KeyError(name)
    return getattr(_MP, name.replace("arc", "a"))(reals[0])


class _Evaluation:
    """Values at one of the points."""

    def __init__(self, question: _Question, point: int, digits: int, *, percent: bool) -> None:
        self.question, self.point, self.digits = question, point, digits
        self.percent = Fraction(1, 100) if percent else Fraction(1)
        self.bound: dict[str, Value] = {"°": Fraction(1)}

    def value(self, node: FormulaNode) -> Value:
        """Raises ``UnreadableError`` for an undefined value (1/0), ``TooLargeError``."""
        with _MP.workdps(self.digits):
            try:
                return self.compute(node)
            except (ArithmeticError, TypeError) as error:
                raise UnreadableError(str(error)) from error

    def compute(self, node: FormulaNode) -> Value:
        self.question.spend(1)
        match node.kind:
            case "number":
                return node.value
            case "name":
                return self.name(node.text)
            case "neg":
                return -self.compute(node.parts[0])
            case "%":
                return self.compute(node.parts[0]) * self.percent
            case "call":
                return self.call(node)
            case "sum" | "prod":
                return self.series(node)
            case "+" | "*" | "/" | "^":
                return self.fold(node.kind, [self.compute(part) for part in node.parts])
        raise UnreadableError(node.kind)

    def fold(self, operator: str, parts: Sequence[Value]) -> Value:
        result, *operands = parts
        for operand in operands:
            x, y = result, operand
            if not isinstance(x, Fraction) or not isinstance(y, Fraction):
                x, y = _real(x), _real(y)
            match operator:
                case "+":
                    result = x + y
                case "*":
                    result = x * y
                case "/":
                    result = x / y
                case _:
                    result = _power(result, operand)
            bits = _bits(result)
            if bits > 4 * _MOST_BITS:
                raise TooLargeError
            self.question.spend(1 + bits // 50 if isinstance(result, Fraction) else 10)
        return result

    def name(self, text: str) -> Value:
        if text in self.bound:
            return self.bound[text]
        if text in ("e", "pi", "i"):
            return +{"e": _MP.e, "pi": _MP.pi}.get(text, _MP.mpc(0, 1))
        negative = self.point == 3 or (self.point == 2 and len(text) + ord(text[0]) & 1)
        return -_point(text) if negative else _point(f"{text}{self.point}")

    def call(self, node: FormulaNode) -> Value:
        degree = self.bound["°"]
        if node.text in ANGLES:
            self.bound["°"] = _MP.pi / 180
        parts = [self.compute(part) for part in node.parts]
        self.bound["°"] = degree
        self.question.spend(50)
        try:
            value = _function(node.text, parts)
        except KeyError:
            return self.unknown(node.text, parts)
        if _bits(value) > 4 * _MOST_BITS:
            raise TooLargeError
        return value

    def unknown(self, name: str, parts: Sequence[Value]) -> Fraction:
        """The value of a function that is not known: the same for equal arguments."""
        return _point(f"{name}{[_MP.nstr(_real(part), 25) for part in parts]}")

    def series(self, node: FormulaNode) -> Value:
        variable, low, high, body = node.parts
        first, last = self.compute(low), self.compute(high)
        outer = dict(self.bound)
        if _is_integer(first, last):
            if last - first > _MOST_TERMS:
                raise TooLargeError
            terms = [Fraction(int(node.kind == "prod"))]
            for index in range(int(first), int(last) + 1):
                self.bound[variable.text] = Fraction(index)
                terms.append(self.compute(body))
            total = self.fold("*" if node.kind == "prod" else "+", terms)
        else:
            self.bound[variable.text] = _point(f"bound {len(outer)}")
            total = self.unknown(node.kind, [first, last, self.compute(body)])
        self.bound = outer
        return total


class _Question:
    """One comparison; the work is bounded."""

    def __init__(self) -> None:
        self.work = 0
        self.known: dict[tuple[FormulaNode, int, int, bool], Value] = {}

    def spend(self, work: int) -> None:
        self.work += work
        if self.work > _MOST_WORK:
            raise TooLargeError

    def values(
        self, *nodes: FormulaNode, point: int = 0, digits: int = _DIGITS[0], percent: bool = True
    ) -> list[Value]:
        evaluation = _Evaluation(self, point, digits, percent=percent)
        keys = [(node, point, digits, percent) for node in nodes]
        self.known.update({key: evaluation.value(key[0]) for key in keys if key not in self.known})
        return [self.known[key] for key in keys]

    def agree(self, pair: Callable[[int], Sequence[Value]]) -> bool:
        """Whether two values are equal, computed to a number of digits by ``pair``."""
        x, y = pair(_DIGITS[0])
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return x == y
        x2, y2 = pair(_DIGITS[1])
        with _MP.workdps(_DIGITS[1]):
            rough, fine = abs(_real(x) - _real(y)), abs(_real(x2) - _real(y2))
            tiny, size = _MP.mpf(10) ** (10 - _DIGITS[1]), max(abs(_real(x2)), abs(_real(y2)))
            return bool(fine <= rough * tiny * 10 ** _DIGITS[0] or fine <= tiny * size)

    def same_value(self, x: FormulaNode, y: FormulaNode) -> bool:
        if x == y:
            return True
        percents = [any(node.kind == "%" for node in tree.walk()) for tree in (x, y)]
        readings = [True] if percents[0] == percents[1] else [True, False]
        return any(self.same_at_points(x, y, percent) for percent in readings)

    def same_at_points(self, x: FormulaNode, y: FormulaNode, percent: bool) -> bool:
        if not _is_variable(x) and not _is_variable(y):
            same = self.agree(lambda digits: self.values(x, y, digits=digits, percent=percent))
            return same or self.rounded(x, y)
        imaginary = any(node == _I for tree in (x, y) for node in tree.walk())
        for point in range(_POINTS):
            numbers = self.values(x, y, point=point, percent=percent)
            if point > 1 and not imaginary and any(_MP.im(_real(value)) for value in numbers):
                continue  # the root of a negative number, where the variables are meant to be positive

            def pair(digits: int, point: int = point) -> list[Value]:
                return self.values(x, y, point=point, digits=digits, percent=percent)

            if not self.agree(pair):
                if len({any(node.kind in ("sum", "prod") for node in tree.walk()) for tree in (x, y)}) > 1:
                    raise UnreadableError("a sum without its closed form")
                return False
        return True

    def rounded(self, x: FormulaNode, y: FormulaNode) -> bool:
        """Whether one of two constants has decimals and is the other rounded."""
        steps = [max((_step(node) for node in tree.walk()), default=Fraction(0)) for tree in (x, y)]
        numbers = [_real(value) for value in self.values(x, y)]
        if not any(steps) or any(_MP.im(value) for value in numbers):
            return False
        a, b = (Fraction(_MP.nstr(_MP.re(value), 40)) for value in numbers)
        decimals = [tree for tree, step in zip((x, y), steps, strict=True) if step]
        if all(node.kind in ("number", "neg") for tree in decimals for node in tree.walk()):
            return same_rounded(a, b, *steps)
        return len(decimals) == 1 and max(steps) <= _ROUNDED and abs(a - b) <= _ROUNDED * max(abs(a), abs(b))

    def approximates(self, x: FormulaNode, y: FormulaNode) -> bool:
        """Whether a decimal is a constant in fewer digits, as in "1/3 = 0.33"."""
        step = _step(y)
        if not step or _is_variable(x):
            return False
        difference = abs(_real(self.values(x)[0]) - _real(self.values(y)[0]))
        return bool(difference <= _real(step) / 2)

    def same_equation(self, x: FormulaNode, y: FormulaNode) -> bool:
        """Whether two relations of two sides have the same solutions: their differences are proportional."""
        (difference, operator), (other_difference, other_operator) = _difference(x), _difference(y)
        a, b = self.values(difference, other_difference)
        if operator != other_operator or not a or not b:
            return False
        if operator in "<≤" and (_MP.im(_real(a)) or _MP.im(_real(b)) or (a > 0) != (b > 0)):
            return False

        def crossed(point: int, digits: int) -> tuple[Value, Value]:
            (a, b), (c, d) = (
                self.values(difference, other_difference, point=at, digits=digits) for at in (0, point)
            )
            return (
                (a * d, b * c)
                if all(isinstance(z, Fraction) for z in (a, b, c, d))
                else (_real(a) * _real(d), _real(b) * _real(c))
            )

        return all(self.agree(partial(crossed, point)) for point in range(1, _POINTS))

    def item(self, node: FormulaNode) -> NamedValue:
        """A value with the name that it is given: "x = 3", "f(x) = 3x", "0 < x <= 1"."""
        if node.kind == "mod":
            inner = self.item(node.parts[0])
            return NamedValue(inner.name, FormulaNode("mod", (inner.node, node.parts[1])))
        operators = set(node.text)
        if node.kind != "relation" or not operators <= set("=≡≈∈"):
            return (_interval(node) if node.kind == "relation" else None) or NamedValue("", node)
        sides = list(node.parts)
        if len(sides) == 2 and not _name(sides[0]) and _name(sides[1]):
            sides.reverse()
        name = _name(sides[0])
        values = sides[1:] if name else sides
        if "≈" in operators and len(values) > 1:
            values = values[:1]
        if len(values) == 1:
            return NamedValue(name, values[0], node if operators == {"="} else None)
        if len(values) == 2 and not name and any(map(_is_variable, values)):
            return NamedValue("", node)
        holds = all(
            self.same_value(values[0], side) or self.approximates(values[0], side) for side in values[1:]
        )
        if not holds and any(map(_is_variable, values)):
            raise UnreadableError("a chain of equations with several meanings")
        return NamedValue(name, values[0] if holds else _ABSURD)

    def members(self, node: FormulaNode) -> list[NamedValue]:
        """The values of a list, a set or a union; one of "±" is two."""
        if node.text == "and" and any(
            part.kind == "relation" and set(part.text) & set("<>≤≥≠") for part in node.parts
        ):
            raise UnreadableError("conditions that hold together")
        if node.kind in ("list", "set", "∪"):
            members = [member for part in node.parts for member in self.members(part)]
            if node.kind == "set":
                members = [
                    x for at, x in enumerate(members) if not any(self.same_item(x, y) for y in members[:at])
                ]
        elif node.kind == "relation" and node.text == "≠" and (name := _name(node.parts[0])):
            ends = ((FormulaNode("neg", (INFINITY,)), node.parts[1]), (node.parts[1], INFINITY))
            members = [NamedValue(name, FormulaNode("tuple", part, "()")) for part in ends]
        else:
            members = [self.item(tree) for tree in _both_signs(node)]
        names = [member.name for member in members]
        if node.kind == "list" and names[0] and not any(names[1:]):  # "k = 1, 2, 4"
            members = [member._replace(name=names[0]) for member in members]
        return members

    def same(self, x: FormulaNode, y: FormulaNode) -> bool:
        """Whether two answers are equal; lists, sets and unions in any order."""
        conditions = any(part.kind == "relation" for part in (*x.parts, *y.parts))
        if {x.kind, y.kind} == {"tuple", "list"} and not conditions:
            vector = x if x.kind == "tuple" else y
            return vector.text in _VECTORS and self.same_in_order(x.parts, y.parts)
        members, candidates = self.members(x), self.members(y)
        if len(members) != len(candidates):
            return False
        names = [{value.name for value in values} for values in (members, candidates)]
        dots = any(member.node.text == "…" for member in members)
        if dots or (max(map(len, names)) > 1 and {""} in names):
            return all(map(self.same_item, members, candidates))
        for member in members:
            at = next((k for k, other in enumerate(candidates) if self.same_item(member, other)), None)
            if at is None:
                return False
            del candidates[at]
        return True

    def same_in_order(self, xs: Sequence[FormulaNode], ys: Sequence[FormulaNode]) -> bool:
        return len(xs) == len(ys) and all(map(self.same, xs, ys))

    def same_item(self, answer: NamedValue, reference: NamedValue) -> bool:
        (name, x, equation), (other_name, y, other_equation) = answer, reference
        renamed = bool(name and other_name and name != other_name)
        if renamed or "relation" in (x.kind, y.kind):
            equations = [equation or x, other_equation or y]
            if all(node.kind == "relation" and _is_equation(node) for node in equations):
                return self.same_equation(*equations)
            flipped = FormulaNode("relation", x.parts[::-1], x.text[::-1].translate(_FLIPPED))
            if renamed or x.kind != y.kind:
                return False
            return any(z.text == y.text and self.same_in_order(z.parts, y.parts) for z in (x, flipped))
        kinds = {x.kind, y.kind}
        if not kinds & _PLURAL:
            return self.same_value(x, y)
        if ":" in (x.text, y.text) and not any(z.kind in _PLURAL for z in (x, y) if z.text != ":"):
            return self.same_ratio(*(z.parts if z.text == ":" else (z, number(1)) for z in (x, y)))
        if kinds == {"mod"}:
            a, m, b, n = self.values(*x.parts, *y.parts)
            return m == n and (
                self.same_value(x.parts[0], y.parts[0]) or (_is_integer(a, b, m) and (a - b) % m == 0)
            )
        if kinds <= {"tuple", "matrix"}:
            vectors = all(
                z.text in ("1", str(len(z.parts))) if z.kind == "matrix" else z.text in _VECTORS
                for z in (x, y)
            )
            alike = (x.kind, x.text) == (y.kind, y.text) or (vectors and "tuple" in kinds)
            return alike and self.same_in_order(x.parts, y.parts)
        if kinds <= set(_NESTED):
            return self.same(x, y)
        return x == y or (
            len(kinds) == 1 and not kinds & {"base", "absurd"} and self.same_in_order(x.parts, y.parts)
        )

    def same_ratio(self, xs: Sequence[FormulaNode], ys: Sequence[FormulaNode]) -> bool:
        """Whether the numbers are the same. "3:4" is "6:8" as a ratio, not as a time, so that is unknown."""
        if self.same_in_order(xs, ys):
            return True
        a, b, *_ = self.values(*xs)
        c, d, *_ = self.values(*ys)
        if len(xs) == len(ys) == 2 and b and d and self.agree(lambda _: (a * d, b * c)):
            raise UnreadableError("a ratio or a time")
        return False

    def fingerprint(self, node: FormulaNode) -> str:
        if node.kind in ("tuple", "matrix"):
            prints = [self.fingerprint(part) for part in node.parts]
        else:
            nodes = [member.node for member in self.members(node)]
            if nodes == [node]:
                return self.print_of(node)
            prints = list(map(self.fingerprint, nodes))
        return prints[0] if len(set(prints)) == 1 else f"collection of {sorted(prints)}"

    def print_of(self, node: FormulaNode) -> str:
        if node.kind in _PLURAL:
            return f"{node.kind} {node.text if node.kind == 'base' else ''}"
        value = self.values(node)[0]
        imaginary = _MP.im(_real(value))
        if isinstance(value, Fraction) or abs(imaginary) < _MP.mpf(10) ** -20:
            return _print(value)
        return f"{_print(_MP.re(value))} + {_print(imaginary)} i"


def _is_equation(relation: FormulaNode) -> bool:
    return len(relation.parts) == 2 and not any(part.kind in _PLURAL for part in relation.parts)


def _is_variable(tree: FormulaNode) -> bool:
    return any(node.kind == "name" and node.text not in _CONSTANTS for node in tree.walk())


def _step(node: FormulaNode) -> Fraction:
    quantity = read_quantity(node.text) if node.kind == "number" and node.text else None
    return quantity.step if quantity else Fraction(0)


def _name(node: FormulaNode) -> str:
    """The name on the left of "x = 3", "f(x) = 3", "a_n = 3", "(x, y) = (1, 2)"; empty = it is none."""
    if node.kind == "name":
        return node.text
    inner = [_name(part) for part in node.parts]
    if node.kind == "tuple" and all(inner):
        return f"({', '.join(inner)})"
    return f"{node.text}({node.parts})" if node.kind == "call" and len(node.text) < 3 else ""


def _difference(relation: FormulaNode) -> tuple[FormulaNode, str]:
    first, second = relation.parts if relation.text not in (">", "≥") else relation.parts[::-1]
    return FormulaNode("+", (first, FormulaNode("neg", (second,)))), relation.text.translate(
        str.maketrans(">≥", "<≤")
    )


def _interval(relation: FormulaNode) -> NamedValue | None:
    """The interval that "a < x <= b" or "x > a" describes; ``None`` = it is another relation."""
    parts, operators = relation.parts, relation.text
    if operators[0] in ">≥":
        parts, operators = parts[::-1], operators[::-1].translate(_FLIPPED)
    if not set(operators) <= set("<≤") or len(parts) > 3:
        return None
    at = 1 if len(parts) == 3 else int(not _name(parts[0]) or parts[0].text in _CONSTANTS)
    name = _name(parts[at])
    if not name or name in _CONSTANTS or any(_is_variable(part) for part in (*parts[:at], *parts[at + 1 :])):
        return None
    low = parts[at - 1] if at else FormulaNode("neg", (INFINITY,))
    high = parts[at + 1] if at + 1 < len(parts) else INFINITY
    brackets = ("[" if at and operators[at - 1] == "≤" else "(") + ("]" if operators[at:] == "≤" else ")")
    return NamedValue(name, FormulaNode("tuple", (low, high), brackets))


def _both_signs(node: FormulaNode) -> Iterator[FormulaNode]:
    """The readings of "±": all upper signs, and all lower ones."""
    if not any(part.kind in ("±", "∓") for part in node.walk()):
        yield node
        return

    def signed(tree: FormulaNode, plus: str) -> FormulaNode:
        parts = tuple(signed(part, plus) for part in tree.parts)
        if tree.kind in ("±", "∓"):
            return parts[0] if tree.kind == plus else FormulaNode("neg", parts)
        return tree._replace(parts=parts)

    yield signed(node, "±")
    yield signed(node, "∓")


def _print(value: Value) -> str:
    if isinstance(value, Fraction):
        return print_number(value)
    value = _MP.re(value)
    return print_number(Fraction(_MP.nstr(value, 30))) if abs(value) < _HUGE else "huge"


def _point(name: str) -> Fraction:
    """The number at which a variable of this name is evaluated, between 0.5 and 2.5."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return Fraction(1, 2) + Fraction(int.from_bytes(digest, "big"), 2**31)
