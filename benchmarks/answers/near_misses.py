"""Answers that are nearly a reference and not equal, and the same answer in other words.

What a pair is worth does not depend on the grader: both sides are read by a translation to sympy of this
file, and a near miss counts only if the values differ (or if it changes a base, a modulus, a bracket, a unit
or an order, which no value shows), a rewriting only if they do not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from sympy.parsing.sympy_parser import (
    convert_xor,
    factorial_notation,
    implicit_multiplication_application,
    parse_expr,
    standard_transformations,
)

UNITS = {
    **{"cm": "m", "km": "m", "kg": "g", "ml": "l", "feet": "inches", "inches": "feet", "hours": "minutes"},
    **{"minutes": "hours", "meters": "feet", "dollars": "cents", "cents": "dollars", "mph": "km"},
    **{"degrees": "inches", "miles": "yards", "m": "cm", "ft": "yd", "clips": "boxes", "days": "weeks"},
}
BY_CONSTRUCTION = frozenset({"base", "modulus", "bound", "unit", "order", "member", "word"})
"""Near misses that change what sympy's value does not show."""


@dataclass(frozen=True)
class Pair:
    """An answer to grade, and whether it is right."""

    kind: str
    answer: str
    reference: str
    right: bool


def pairs(reference: str, rng: random.Random, per_kind: int = 2) -> Iterator[Pair]:
    """Near misses and rewritings of a reference, at most ``per_kind`` of each kind."""
    for makers, right in ((MISSES, False), (REWRITINGS, True)):
        for kind, make in makers.items():
            made = sorted({text for text in make(reference) if text != reference and text.strip()})
            rng.shuffle(made)
            checked = (text for text in made[:8] if holds(kind, text, reference, right))
            for _, text in zip(range(per_kind), checked, strict=False):
                yield Pair(kind, text, reference, right)


def holds(kind: str, answer: str, reference: str, right: bool) -> bool:
    """Whether the two are (un)equal, as far as their values or the way in which one was made say."""
    x, y = value_of(answer), value_of(reference)
    if right:
        return x is None or y is None or same(x, y) is not False
    if kind in BY_CONSTRUCTION:
        return True
    return x is not None and y is not None and same(x, y) is False


def same(x: Any, y: Any) -> bool | None:
    """Whether two values are equal; ``None`` = not known."""
    if isinstance(x, tuple) or isinstance(y, tuple):
        if not (isinstance(x, tuple) and isinstance(y, tuple)) or len(x) != len(y):
            return False
        verdicts = [same(a, b) for a, b in zip(x, y, strict=True)]
        return False if False in verdicts else None if None in verdicts else True
    if isinstance(x, str) or isinstance(y, str):
        return bool(x == y)
    difference = x - y
    letters = sorted(difference.free_symbols, key=str)
    points = [
        {s: sympy.Rational(3 + 2 * k + 7 * n, 11 + 4 * n) for n, s in enumerate(letters)} for k in range(3)
    ]
    try:
        values = [abs(sympy.N(difference.subs(point).doit(), 30, maxn=2000)) for point in points]
        sizes = [abs(sympy.N(x.subs(point).doit(), 30)) for point in points]
        if not all(value.is_number and size.is_number for value, size in zip(values, sizes, strict=True)):
            return None
        return all(value <= size * sympy.Float("1e-25") for value, size in zip(values, sizes, strict=True))
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None


_LOCAL = {"e": sympy.E, "i": sympy.I, "pi": sympy.pi, "infty": sympy.Symbol("infty")}


@lru_cache(maxsize=50_000)
def value_of(text: str) -> Any:
    """A sympy expression, or a tuple of them with the marks between; ``None`` = it is not translated."""
    if re.search(
        r"\\(?!d?frac|tfrac|sqrt|pi|cdot|times|left|right|sin|cos|tan|ln|sec|infty|cup|le\b|in\b"
        r"|text ?\{ ?(and|or)|alpha|beta|circ|[,;! %$])|_|\.\.\.|\||[fgP]\(",
        text,
    ):
        return None
    text = re.sub(r"\\left|\\right|\\[,;!$]|\$|\^\{?\\circ\}?|(?<=\d)\{?,\}?(?=\d{3}(?!\d))|\\ ", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text).replace("\\%", "/100")
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\sqrt\s*(\d)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![\d.])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", r"((\1)+\\frac{\2}{\3})", text)
    for _ in range(12):
        text = re.sub(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"\\sqrt\s*\[(\d)\]\s*\{([^{}]*)\}", r"((\2)**(1/(\1)))", text)
        text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r"sqrt(\1)", text)
        text = re.sub(r"\^\s*\{([^{}]*)\}", r"**(\1)", text)
    if "{" in text or "\\sqrt" in text or "\\frac" in text:
        return None
    text = re.sub(r"\\(cdot|times)\b", "*", text)
    depth, part, parts = 0, "", []
    for token in re.split(r"([()\[\],=<>]|\\cup|\\le\b|\\in\b)", text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token, 0)
        if token in ("=", "<", ">", "\\le", "\\in", "\\cup", ",") and (depth <= 1 or token != ","):
            parts += [part, token]
            part = ""
        else:
            part += token
    parts.append(part)
    if len(parts) > 1:  # brackets of a tuple or an interval are marks of their own
        parts = [piece for part in parts for piece in _marks(part)]
    values = tuple(
        _scalar(part.replace("\\", " ")) if re.search(r"\w", part) else part.strip() for part in parts
    )
    return None if None in values else values[0] if len(values) == 1 else values


def _marks(part: str) -> list[str]:
    part = part.strip()
    head = (
        part[0]
        if part[:1] in "([" and part.count("(") + part.count("[") > part.count(")") + part.count("]")
        else ""
    )
    tail = (
        part[-1]
        if part[-1:] in ")]" and part.count("(") + part.count("[") < part.count(")") + part.count("]")
        else ""
    )
    return [piece for piece in (head, part[len(head) : len(part) - len(tail)], tail) if piece]


def _scalar(text: str) -> Any:
    letters = {
        letter: sympy.Symbol(letter) for letter in "abcdfghjklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    }
    steps = (*standard_transformations, convert_xor, factorial_notation, implicit_multiplication_application)
    try:
        tree = parse_expr(text, {**letters, **_LOCAL}, steps, evaluate=True)
    except Exception:  # what it cannot read it meets with any error
        return None
    return tree if isinstance(tree, sympy.Expr) else None


Maker = Callable[[str], Iterator[str]]


def _each(pattern: str, replace: Callable[[re.Match[str]], str | list[str]]) -> Maker:
    compiled = re.compile(pattern)

    def make(text: str) -> Iterator[str]:
        for match in compiled.finditer(text):
            found = replace(match)
            for new in [found] if isinstance(found, str) else found:
                yield text[: match.start()] + new + text[match.end() :]

    return make


def _other_digits(match: re.Match[str]) -> list[str]:
    return [digit for digit in "123456789" if digit != match[0]]


def _swap(text: str) -> Iterator[str]:
    inner = re.fullmatch(
        r"((?:.*= ?)?(?:\\left)? ?(?:\(|\\langle))([^()]*)((?:\\right)? ?(?:\)|\\rangle))", text
    )
    if inner and "infty" not in text:
        parts = [part.strip() for part in inner[2].split(",")]
        for k in range(len(parts) - 1):
            if same(value_of(parts[k]), value_of(parts[k + 1])) is False:
                order = [*parts[:k], parts[k + 1], parts[k], *parts[k + 2 :]]
                yield f"{inner[1]}{', '.join(order)}{inner[3]}"
    rows = re.fullmatch(r"(\\begin\{pmatrix\})([^&]*)(\\end\{pmatrix\})", text)
    if rows:
        parts = rows[2].split(r"\\")
        if len({part.strip() for part in parts}) == len(parts):
            yield rows[1] + r" \\ ".join(reversed(parts)) + rows[3]


def _members(text: str) -> Iterator[str]:
    parts = text.split(",")
    if len(parts) > 1 and not re.search(r"[()\[\]{}]|\d,\d\d\d|langle", text):
        yield ",".join(parts[:-1])
        yield ",".join(parts[1:])
        yield f"{text}, 777"


def _bounds(text: str) -> Iterator[str]:
    if re.search(r"infty|cup|[\[(][^()\[\]]*,[^()\[\]]*[\])]", text) and (
        "[" in text or "infty" in text or "cup" in text
    ):
        for match in re.finditer(r"[\[\]()](?!\[)", text):
            if "infty" not in text[max(0, match.start() - 8) : match.end() + 8] and "sqrt" not in text:
                new = {"[": "(", "]": ")", "(": "[", ")": "]"}[match[0]]
                yield text[: match.start()] + new + text[match.end() :]


MISSES: dict[str, Maker] = {
    "digit": _each(r"(?<!_)(?<!_\{)(?<!\d)\d", _other_digits),
    "last digit": _each(r"(?<=\d)\d(?!\d)", _other_digits),
    "sign": _each(
        r"(?<!\w)-\s*(?=[\w\\])|^(?=[\d\\(x-z](?!text|begin|left))|(?<=[\w)}] )\+",
        lambda m: "+" if "-" in m[0] else "-",
    ),
    "exponent": _each(r"(?<=\^)\d|(?<=\^\{)\d(?=\})", _other_digits),
    "power": _each(r"(?<=[a-z\d])(?=\s|$)(?!.*text)", lambda _: "^3"),
    "base": _each(r"(?<=[\dA-Z]_)\d|(?<=[\dA-Z]_\{)\d+(?=\})", lambda m: str(int(m[0]) + 1)),
    "modulus": _each(r"(?<=pmod\{)\d+", lambda m: str(int(m[0]) + 2)),
    "letter": _each(
        r"(?<![a-zA-Z\\{])[a-df-hj-z](?![a-zA-Z(}_])", lambda m: [s for s in "knxyz" if s != m[0]]
    ),
    "constant": _each(r"\\pi|(?<![a-zA-Z\\])[ei](?![a-zA-Z])", lambda m: "{2}" if m[0] != "i" else "{1}"),
    "root": _each(r"\\sqrt(?=\{)", lambda _: ["", r"\sqrt[3]"]),
    "function": _each(
        r"\\(sin|cos|tan|ln)\b",
        lambda m: {"sin": r"\cos", "cos": r"\sin", "tan": r"\sin", "ln": r"\sin"}[m[1]],
    ),
    "inverse": _each(r"frac\{(\w+)\}\{(\w+)\}", lambda m: f"frac{{{m[2]}}}{{{m[1]}}}"),
    "point": _each(r"(?<!\d)(\d+)\.(\d)(\d*)", lambda m: f"{m[1]}{m[2]}{'.' * bool(m[3])}{m[3]}"),
    "unit": _each(r"(?<=[\d}] )(?:text|mbox)\{\s*(\w+)", lambda m: m[0])
    and _each(r"(?<=\{)(\s*)(\w+)(?=[\s}^])", lambda m: [f"{m[1]}{UNITS[m[2]]}"] if m[2] in UNITS else []),
    "bound": _bounds,
    "order": _swap,
    "member": _members,
    "word": _each(
        r"(?<=text\{)(east|Saturday|C|even|odd|circle|Friday|parabola)(?=\})", lambda _: ["west", "D"]
    ),
    "tiny": _each(r"$", lambda _: [" + 10^{-12}"]),
    "scale": _each(r"^(?!.*=)(?=[\d\\(a-z])(?!\\text|\\begin|\\left|\\\{|\\langle)", lambda _: "2 \\cdot "),
}


def _fractions(match: re.Match[str]) -> list[str]:
    top, bottom = int(match[1]), int(match[2])
    forms = [
        f"\\frac{{{3 * top}}}{{{3 * bottom}}}",
        f"\\dfrac{{{top}}}{{{bottom}}}",
        f"\\tfrac{{{top}}}{{{bottom}}}",
    ]
    return [*forms, f"{{{top}}}/{{{bottom}}}"] if match.string == match[0] else forms


def _numbers(text: str) -> Iterator[str]:
    whole = re.fullmatch(r"(-?)(\d+)", text)
    if whole:
        yield f"{text}.0"
        yield f"{int(whole[2]):,}" if not whole[1] else f"-{int(whole[2]):,}"
        yield f"\\frac{{{2 * int(text)}}}{{2}}"
        yield f"{2 * int(text)}/2"
    part = re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", text)
    if part:
        value = Fraction(int(part[2]), int(part[3]))
        yield f"{part[1]}{value}"
        if 10**6 % value.denominator == 0:
            yield f"{part[1]}{float(value):.6f}".rstrip("0")
    decimal = re.fullmatch(r"-?\d*\.\d+", text)
    if decimal:
        yield f"{text}0"
        yield re.sub(r"^(-?)\.", r"\g<1>0.", text)
        yield str(Fraction(text))


def _code(text: str) -> Iterator[str]:
    value = value_of(text)
    if (
        isinstance(value, sympy.Expr)
        and value.free_symbols
        and not value.has(sympy.E, sympy.I, sympy.factorial)
    ):
        yield str(value)
        yield sympy.latex(value)
        yield sympy.latex(sympy.expand(value))


def _turned(text: str) -> Iterator[str]:
    sides = re.fullmatch(r"([\w\\{} ]+) \+ ([\w\\{} ]+)", text)
    if sides and "text" not in text and all(side.count("{") == side.count("}") for side in sides.groups()):
        yield f"{sides[2]} + {sides[1]}"
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and not re.search(r"[()\[\]{}]|text|ldots|=|circ|\d,\d\d\d|langle", text):
        yield ", ".join(reversed(parts))
        yield " and ".join(parts) if len(parts) == 2 else f"{', '.join(parts[:-1])}, and {parts[-1]}"


REWRITINGS: dict[str, Maker] = {
    "spaces": lambda text: iter(
        [re.sub(r"(?<=[^\\\s{])([+,=])(?!\\!|\})", r" \1 ", text), f" {text} ", text.replace(", ", ",")]
    ),
    "dollars": lambda text: iter([f"${text}$", f"\\({text}\\)", f"${text}$."]),
    "full stop": lambda text: iter([f"{text}."]),
    "left and right": _each(r"^\(([^()]*)\)$", lambda m: f"\\left({m[1]}\\right)"),
    "fractions": _each(r"\\d?frac\{(\d+)\}\{(\d+)\}", _fractions),
    "numbers": _numbers,
    "braces": _each(r"(?<=[\^_])(\w)(?!\w)", lambda m: f"{{{m[1]}}}"),
    "degrees": _each(
        r"(?<!\w \d\d)\^\{?\\circ\}?$", lambda _: ["^{\\circ}", "°", " degrees", "\\text{ degrees}", ""]
    ),
    "units": _each(
        r"\s*(?:\\, ?)?\\text ?\{\s*(cm|km|kg|ml|feet|hours|dollars|units|inches)\}$",
        lambda m: [f" {m[1]}", ""],
    ),
    "name": _each(r"^(?=[\d\\.-])(?!.*(?:[=,<]|text|mbox|begin|circ|%|\$|pm|mod|_|:))", lambda _: "x = "),
    "bold": lambda text: iter([f"**{text}**"] if re.fullmatch(r"-?[\d,]+", text) else []),
    "half power": _each(r"(?<!\d)\\sqrt\{(\d+)\}", lambda m: f"{{{m[1]}}}^{{1/2}}"),
    "product sign": _each(r"(?<=\d)(?=\\(?:sqrt|pi))", lambda _: [r" \cdot ", r" \times ", "*"]),
    "turned": _turned,
    "code": _code,
    "font": _each(
        r"(?<![\da-zA-Z\\])([ie])(?![a-zA-Z(])", lambda m: [f"\\mathrm{{{m[1]}}}", f"\\text{{{m[1]}}}"]
    ),
    "matrix": _each(
        r"^\\begin\{pmatrix\}(.*)\\end\{pmatrix\}$", lambda m: f"\\begin{{bmatrix}}{m[1]}\\end{{bmatrix}}"
    ),
    "choice": _each(
        r"^\\text\{\(?([A-E])\)?\}$|^([A-E])$",
        lambda m: [
            f"({m[1] or m[2]})",
            f"{m[1] or m[2]}",
            f"\\textbf{{({m[1] or m[2]})}}\\ 40",
            f"{m[1] or m[2]}: forty",
        ],
    ),
    "eaten": lambda text: iter(
        [text.replace("\\f", "\f").replace("\\t", "\t")]
        if re.search(r"\\(frac|text|times)", text) and "tan" not in text
        else []
    ),
}
