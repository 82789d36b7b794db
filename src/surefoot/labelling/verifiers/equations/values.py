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

from surefoot.labelling.verifiers.equations.parsing import Expression, leaves

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
    def constants(self) -> dict[str, complex]:
        """Letters with a fixed value."""
        constants = {"pi": complex(math.pi)}
        if self.imaginary:
            constants["i"] = 1j
        if self.euler:
            constants["e"] = complex(math.e)
        return constants


PLAIN = Notation()


def unknowns(nodes: tuple[Expression, ...], notation: Notation) -> frozenset[str]:
    """Letters and calls whose values are open; a call counts as one unknown, whatever its argument."""
    names: set[str] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node.kind in ("s", "call"):
            names.add(str(node))
        else:
            pending += node.parts
    return frozenset(names - notation.constants.keys() if names else names)


def evaluate(node: Expression, point: Mapping[str, Number], notation: Notation) -> Number:
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

    def value(self, node: Expression) -> Number:
        if node.kind == "n":
            return node.value
        if node.kind in ("s", "call"):
            if (name := str(node)) not in self.point:
                raise UnknownValueError(f"no value of {name}")
            return self.point[name]
        parts = [self.value(part) for part in node.parts]
        result = self._apply(node, parts)
        if isinstance(result, Fraction):
            if result.numerator.bit_length() + result.denominator.bit_length() > MAX_BITS:
                raise UnknownValueError("the value has too many digits")
        elif not cmath.isfinite(result):
            raise UnknownValueError("it is undefined")
        return result

    def _apply(self, node: Expression, parts: list[Number]) -> Number:
        first = parts[0]
        match node.kind:
            case "%":
                return first * self.notation.percent
            case "mix":
                return first + parts[1] if self.notation.mixed else first * parts[1]
            case "deg":
                return first if self.notation.degrees else complex(first) * math.pi / 180
            case "fn":
                return self._function(node.name, first)
        if all(isinstance(part, Fraction) for part in parts):
            return _EXACT[node.kind](*parts)
        return _FLOATING[node.kind](*(complex(part) for part in parts))

    def _function(self, name: str, number: Number) -> complex:
        x = complex(number)
        if name.startswith("log"):
            base = int(name[4:]) if name != "log" else math.e if self.notation.natural else 10
            return cmath.log(x) / math.log(max(base, 2))
        if name not in _FUNCTIONS:
            raise UnknownValueError(f"{name} is not known")
        if not self.notation.degrees:
            return _FUNCTIONS[name](x)
        if name in _OF_ANGLES:
            return _FUNCTIONS[name](x * math.pi / 180)
        return _FUNCTIONS[name](x) * (180 / math.pi if name.startswith("arc") else 1)


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


def _exact_root(radicand: Fraction, index: Fraction) -> Number:
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


def _root(radicand: complex, index: complex) -> complex:
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


def _no_value(*_: complex) -> complex:
    raise UnknownValueError("not a whole number")


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
}
_EXACT: dict[str, Callable[..., Number]] = _ARITHMETIC | {
    "^": _exact_power,
    "sqrt": _exact_root,
    "abs": abs,
    "!": lambda n: Fraction(math.factorial(_whole(n, 170))),
    "floor": lambda a: Fraction(math.floor(a)),
    "ceil": lambda a: Fraction(math.ceil(a)),
    "C": lambda n, k: Fraction(math.comb(_whole(n, 500), _whole(k, 500))),
}
_FLOATING: dict[str, Callable[..., complex]] = _ARITHMETIC | {
    "^": _power,
    "sqrt": _root,
    "abs": lambda a: complex(abs(a)),
    "!": _no_value,
    "C": _no_value,
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


def bounds(node: Expression) -> tuple[Fraction, Fraction]:
    """Least and greatest value if the decimals in ``node`` with two or more digits shown were rounded.

    Raises ``UnknownValueError``, also where an interval cannot be computed.
    """
    if node.kind == "n" and node.places is not None and node.places >= 2:
        half = Fraction(1, 2 * 10**node.places)
        return node.value - half, node.value + half
    if all((number.places or 0) < 2 for number in leaves(node, "n")):
        exact = evaluate(node, {}, PLAIN)
        if isinstance(exact, complex):
            raise UnknownValueError("it is not rational")
        return exact, exact
    if node.kind not in (*_ARITHMETIC, "%"):
        raise UnknownValueError("a decimal under a power")
    parts = [bounds(part) for part in node.parts]
    if node.kind == "/" and parts[1][0] <= 0 <= parts[1][1]:
        raise UnknownValueError("a division by zero")
    corners: list[list[Fraction]] = [[]]
    for low, high in parts:
        corners = [[*corner, end] for corner in corners for end in (low, high)]
    scale = PLAIN.percent if node.kind == "%" else 1
    results = [
        corner[0] * scale if node.kind == "%" else _ARITHMETIC[node.kind](*corner) for corner in corners
    ]
    return min(results), max(results)
