"""Values of expressions: exact fractions wherever possible, complex numbers for roots, pi and functions.

Model text decides the computation, so sizes are bounded (``9^9^9^9`` ends at once in an error) and operations
are counted.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from surefoot.answers.formulas import FormulaNode
from surefoot.labelling.verifiers.equations.parsing import is_unknown, places

MAX_BITS = 4096
"""Largest numerator and denominator together."""

Number = Fraction | complex


class UnknownValueError(ArithmeticError):
    """No value: a division by zero, too many digits, a letter without a value."""


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How to read ambiguous notation: ``20%`` as 0.2 or 20 (a unit), ``2\\\\frac{1}{2}`` as 2.5 or 1."""

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

    @property
    def constants(self) -> dict[str, Number]:
        """Names with a fixed value."""
        degree = Fraction(1) if self.degrees else complex(math.pi / 180)
        constants: dict[str, Number] = {"pi": complex(math.pi), "°": degree}
        if self.imaginary:
            constants["i"] = 1j
        if self.euler:
            constants["e"] = complex(math.e)
        return constants


PLAIN = Notation()


def unknowns(nodes: tuple[FormulaNode, ...], notation: Notation) -> frozenset[str]:
    """Letters, calls and signs whose values are open; a call is one unknown, whatever its argument."""
    names: set[str] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if is_unknown(node):
            names.add(str(node))
        else:
            pending += node.parts
            if node.kind == "±":
                names.add("±")
    return frozenset(names - notation.constants.keys() if names else names)


def evaluate(node: FormulaNode, point: Mapping[str, Number], notation: Notation) -> Number:
    """The value of ``node`` where the unknowns have the values of ``point``.

    Raises ``UnknownValueError``.
    """
    try:
        return _Evaluator({**notation.constants, **point}, notation).value(node)
    except UnknownValueError:
        raise
    except ZeroDivisionError as error:
        raise UnknownValueError("a division by zero") from error
    except (ArithmeticError, ValueError) as error:  # of floats: overflow, the logarithm of 0
        raise UnknownValueError("it is undefined") from error


class _Evaluator:
    def __init__(self, point: Mapping[str, Number], notation: Notation) -> None:
        self.point, self.notation = point, notation

    def value(self, node: FormulaNode) -> Number:
        if node.kind == "number":
            return node.value
        if is_unknown(node):
            return self._named(str(node))
        first, *operands = [self.value(part) for part in node.parts]
        match node.kind:
            case "%":
                return _bounded(first * self.notation.percent)
            case "±":
                return _bounded(first * self._named("±"))
            case "call":
                return _bounded(self._call(node.text, first, *operands))
            case "neg":
                return -first
        mixed = node.text == "mixed" and not self.notation.mixed
        operator = "*" if mixed else node.kind
        for operand in operands:
            first = _bounded(_apply(operator, first, operand))
        return first

    def _named(self, name: str) -> Number:
        if name not in self.point:
            raise UnknownValueError(f"no value of {name}")
        return self.point[name]

    def _call(self, name: str, *parts: Number) -> Number:
        if name in _EXACT:
            return _apply(name, *parts)
        x = complex(parts[0])
        if name == "log":
            base = complex(parts[1]) if parts[1:] else math.e if self.notation.natural else 10
            return cmath.log(x) / cmath.log(base)
        if name not in _FUNCTIONS:
            raise UnknownValueError(f"{name} is not known")
        if not self.notation.degrees:
            return _FUNCTIONS[name](x)
        if name in _OF_ANGLES:
            return _FUNCTIONS[name](x * math.pi / 180)
        return _FUNCTIONS[name](x) * (180 / math.pi if name.startswith("arc") else 1)


def _apply(operator: str, *parts: Number) -> Number:
    if all(isinstance(part, Fraction) for part in parts):
        return _EXACT[operator](*parts)
    if operator not in _FLOATING:
        raise UnknownValueError("not a whole number")
    return _FLOATING[operator](*map(complex, parts))


def _bounded(result: Number) -> Number:
    if isinstance(result, Fraction):
        if result.numerator.bit_length() + result.denominator.bit_length() > MAX_BITS:
            raise UnknownValueError("the value has too many digits")
    elif not cmath.isfinite(result):
        raise UnknownValueError("it is undefined")
    return result


def _exact_power(base: Fraction, exponent: Fraction) -> Number:
    if exponent.denominator != 1:
        root = _exact_root(base, Fraction(exponent.denominator))
        if isinstance(root, complex):
            return _power(complex(base), complex(exponent))
        return _exact_power(root, Fraction(exponent.numerator))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) > MAX_BITS or (abs(exponent) * bits > MAX_BITS and base not in (0, 1, -1)):
        raise UnknownValueError("the power has too many digits")
    if base == 0 and exponent <= 0:
        raise UnknownValueError("a power of zero")
    return Fraction(base ** int(exponent))


def _power(base: complex, exponent: complex) -> complex:
    return complex(base**exponent)


def _exact_root(radicand: Fraction, index: Fraction = Fraction(2)) -> Number:
    if index == 2 and radicand >= 0:
        top, bottom = math.isqrt(radicand.numerator), math.isqrt(radicand.denominator)
        if Fraction(top * top, bottom * bottom) == radicand:
            return Fraction(top, bottom)
    elif index > 0 and index.denominator == 1 and (radicand >= 0 or index % 2 == 1):
        size = abs(radicand)
        near = Fraction(round(float(size) ** (1 / int(index)) * 10**6), 10**6).limit_denominator(1000)
        if near.denominator < 1000 and index <= 20 and near ** int(index) == size:
            return near if radicand >= 0 else -near
    return _root(complex(radicand), complex(index))


def _root(radicand: complex, index: complex = 2) -> complex:
    if radicand.imag == 0 and radicand.real < 0 and index.imag == 0 and index.real % 2 == 1:
        return -complex((-radicand) ** (1 / index))
    return complex(radicand ** (1 / index)) if radicand else 0j


def _whole(number: Fraction, most: int) -> int:
    if number.denominator != 1 or number < 0:
        raise UnknownValueError("not a whole number")
    if number > most:
        raise UnknownValueError("the value has too many digits")
    return int(number)


def _real(function: Callable[[float], float]) -> Callable[[complex], complex]:
    def applied(x: complex) -> complex:
        if abs(x.imag) > 1e-9:
            raise UnknownValueError("it is not real")
        return complex(function(x.real))

    return applied


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}
_EXACT: dict[str, Callable[..., Number]] = _ARITHMETIC | {
    "^": _exact_power,
    "sqrt": _exact_root,
    "abs": abs,
    "!": lambda n: Fraction(math.factorial(_whole(n, 170))),
    "floor": lambda a: Fraction(math.floor(a)),
    "ceil": lambda a: Fraction(math.ceil(a)),
    "binom": lambda n, k: Fraction(math.comb(_whole(n, 500), _whole(k, 500))),
}
_FLOATING: dict[str, Callable[..., complex]] = _ARITHMETIC | {
    "^": _power,
    "sqrt": _root,
    "abs": lambda a: complex(abs(a)),
    "floor": _real(lambda a: math.floor(a + 1e-12)),
    "ceil": _real(lambda a: math.ceil(a - 1e-12)),
}
_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "cis": lambda x: cmath.exp(1j * x),
    "cot": lambda x: 1 / cmath.tan(x),
    "sec": lambda x: 1 / cmath.cos(x),
    "csc": lambda x: 1 / cmath.sin(x),
    "ln": cmath.log,
    **{name: getattr(cmath, name) for name in ("sin", "cos", "tan", "exp", "sinh", "cosh", "tanh")},
    **{f"arc{name}": getattr(cmath, f"a{name}") for name in ("sin", "cos", "tan")},
}
_OF_ANGLES = frozenset({"cis", "sin", "cos", "tan", "cot", "sec", "csc"})


def bounds(node: FormulaNode) -> tuple[Fraction, Fraction]:
    """Least and greatest value if the decimals in ``node`` with two or more digits shown were rounded.

    Raises ``UnknownValueError``, also where an interval cannot be computed.
    """
    if node.kind == "number" and (digits := places(node)) >= 2:
        half = Fraction(1, 2 * 10**digits)
        return node.value - half, node.value + half
    if all(places(part) < 2 for part in node.walk()):
        exact = evaluate(node, {}, PLAIN)
        if isinstance(exact, complex):
            raise UnknownValueError("it is not rational")
        return exact, exact
    if node.kind not in (*_ARITHMETIC, "neg", "%"):
        raise UnknownValueError("a decimal under a power")
    (low, high), *operands = (bounds(part) for part in node.parts)
    if node.kind == "neg":
        return -high, -low
    if node.kind == "%":
        return low * PLAIN.percent, high * PLAIN.percent
    for ends in operands:
        if node.kind == "/" and ends[0] <= 0 <= ends[1]:
            raise UnknownValueError("a division by zero")
        corners = [_ARITHMETIC[node.kind](end, other) for end in (low, high) for other in ends]
        low, high = min(corners), max(corners)
    return low, high
