"""Arithmetic, LaTeX and words in a step: text to tokens, tokens to expression trees, and their exact values.

A reading that writers often mean differently (``1/2x``) is parsed with a *doubt*. Values are ``Fraction``
within bounds on their size, so that ``9^9^9^9`` ends at once in an error.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, factorial, isqrt
from typing import Any, NamedTuple

from surefoot.maths import LATEX_DIGITS, dollars_delimit, words

MAX_BITS = 4096
"""Largest numerator and denominator together."""
_POINTS = 4


class TooLargeError(ArithmeticError):
    """A value over the bounds."""


class NotRationalError(ArithmeticError):
    """The value has letters, roots or pi, and needs algebra."""


MAX_TOKENS = 200
"""Longest side of an equation; also bounds the depth of its tree."""
MAX_DEPTH = 40
MAX_DIGITS = 300

_SAME_LENGTH = str.maketrans("×✕·⋅∙÷∕⁄−–‒＝", "****" + "*" + "///" + "---" + "=")
_FRACTIONS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅙": "1/6", "⅛": "1/8"}

_TOKEN = re.compile(
    rf"""
    (?P<delim>\\[\[\]()]|\$\$?)
  | (?P<break>\\\\(?:\[[^\]\n]{{0,9}}\])?|\n
      |\\(?:begin|end)\{{(?:align|aligned|equation|gather|gathered|split|multline|eqnarray)\*?\}})
  | (?P<skip>\\[,;:!\ \$]|\\(?:q?quad|left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])|[\s~&£€]
      |(?<![\w)\]}}])\*\*(?=\S)|(?<=\S)\*\*(?![\w(]))          # the last two: Markdown's bold
  | (?P<num>{LATEX_DIGITS})
  | (?P<text>\\(?:text|mbox|mathrm|textbf|mathbf|textit)\s?\{{(?P<words>[^{{}}]*)\}})
  | (?P<percent>\\?%)
  | (?P<degree>\^\s?\{{?\s?\\circ\s?\}}?|°)
  | (?P<command>\\[a-zA-Z]+)
  | (?P<dots>\.\.+|…)
  | (?P<op>\*\*|[-+*/^])
  | (?P<rel>!=|<=|>=|=>|->|:=|[<>≤≥≠≈→⇒∼]|=\?)
  | (?P<eq>==?)
  | (?P<post>[²³!])
  | (?P<frac>[½⅓⅔¼¾⅕⅙⅛])
  | (?P<open>[(\[{{])
  | (?P<close>[)\]}}])
  | (?P<sub>[^\W\d_]_(?:\{{[A-Za-z0-9]{{1,8}}\}}|[A-Za-z0-9]))
  | (?P<word>[^\W\d_]{{2,}}(?:[-'’][^\W\d_]+)*|[^\W\d_])
  | (?P<punct>[,;.:?"“”])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_NOT_A_UNIT = words(
    """because so and then is are was were which that this thus therefore since or but if as when while
    where hence giving gives equals means for to from in on at with by"""
)
"""Words after a number that are never its unit."""

_RELATIONS = words(
    "approx le leq ge geq ne neq lt gt sim simeq Rightarrow rightarrow implies to iff Leftrightarrow"
)
"""LaTeX's relations other than equality."""

_GREEK = words("alpha beta gamma delta theta lambda mu phi rho sigma omega pi")
_OPERATORS = {"times": "*", "cdot": "*", "ast": "*", "div": "/"}
_COMMANDS = {"frac": "frac", "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "sqrt": "sqrt"}
_COMMANDS |= {"binom": "binom", "dbinom": "binom", "tbinom": "binom", "boxed": "boxed", "fbox": "boxed"}
_SPOKEN = {"times": "*", "plus": "+", "minus": "-"}
_ENDS_OPERAND = frozenset({"num", "close", "post", "frac", "sym", "unit"})
_STARTS_OPERAND = frozenset({"num", "open", "frac", "sym", "cmd"})


class Token(NamedTuple):
    """A part ``text[start:end]``; ``name`` is its canonical form (``*`` for LaTeX's ``\\times``).

    Kinds: num, frac (½), op, open, close, cmd (frac, sqrt, binom, boxed), sym (a letter), post (``%``,
    ``!``, a superscript), of, unit, eq, rel (other relations), word, bound (punctuation), break (line),
    delim (of LaTeX) and opaque (anything else).
    """

    kind: str
    name: str
    start: int
    end: int
    math: bool
    """Inside LaTeX delimiters."""


def tokenize(text: str) -> list[Token]:
    """Tokens of ``text`` without white space, currency and LaTeX's spacing."""
    return _resolve(list(_scan(text.translate(_SAME_LENGTH))))


def _scan(text: str) -> Iterator[Token]:
    """Tokens as they look without their neighbours; a single letter in plain text has the kind ``letter``."""
    dollars = dollars_delimit(text)
    latex = dollars or "\\(" in text or "\\[" in text
    inside = False
    number_end = -1
    for match in _TOKEN.finditer(text):
        kind, raw, (start, end) = match.lastgroup or "other", match.group(), match.span()
        if match["text"] is not None:  # its last group is "words"
            kind = "text"
        after_number = start == number_end
        if kind == "skip" or (raw[0] == "$" and not dollars):  # dollars are a currency
            continue
        if kind == "delim":
            inside = raw in ("\\(", "\\[") or (raw[0] == "$" and not inside)
        if kind == "num":
            number_end = end
        if kind == "word" and inside and raw.isascii():  # a product of letters
            for at, letter in enumerate(raw, start):
                yield Token("sym" if letter.isalpha() else "opaque", letter, at, at + 1, True)
            continue
        match kind:
            case "num":
                name = re.sub(r"[,{}\\!]", "", raw)
                kind = "opaque" if len(name) > MAX_DIGITS or after_number else "num"  # 1.2.3
            case "text":
                name = match["words"].strip()
                kind = "opaque" if len(name) < 2 else "word"  # \mathbf{v} is a vector
            case "command":
                kind, name = _command(raw[1:])
            case "percent" | "degree":
                kind, name = ("post", "%") if kind == "percent" else ("unit", "degree")
            case "post" | "frac":
                name = _FRACTIONS.get(raw, raw).translate(str.maketrans("²³", "23"))
            case "op":
                name = "^" if raw == "**" else raw
            case "sub":
                kind, name = "sym" if inside or not latex else "word", raw
            case "word":
                kind, name = _plain_word(raw, latex=latex, after_number=after_number)
            case "punct":
                name = raw
                in_number = after_number and text[end : end + 1].isdigit() and raw in ",:."
                # "3 + . 84"
                cut_off = raw == "." and text[max(0, start - 4) : start].rstrip().endswith(tuple("+-*/"))
                kind = "opaque" if in_number or cut_off else "bound"
            case _:
                kind, name = "opaque" if kind in ("dots", "other") else kind, raw
        yield Token(kind, name, start, end, inside)


def _command(name: str) -> tuple[str, str]:
    if name in _OPERATORS:
        return "op", _OPERATORS[name]
    if name in _COMMANDS:
        return "cmd", _COMMANDS[name]
    if name in _RELATIONS:
        return "rel", name
    return ("sym", name) if name in _GREEK else ("opaque", name)


def _plain_word(word: str, *, latex: bool, after_number: bool) -> tuple[str, str]:
    """Kind and name of a word outside a formula; ``latex``: formulas of this text are delimited."""
    if word == "π":
        return "sym", "pi"
    if len(word) == 1 and not word.isascii():
        return "opaque", word
    if len(word) == 1 and not latex:
        return "letter", word
    ordinal = after_number and word in ("st", "nd", "rd", "th")  # "1st - 5"
    return "opaque" if ordinal else "word", word


def _resolve(tokens: list[Token]) -> list[Token]:
    """Decide what depends on the neighbours: ``x`` for times, units, ``of``, spoken operators, letters."""
    resolved: list[Token] = []
    for index, token in enumerate(tokens):
        previous = resolved[-1] if resolved else None
        following = tokens[index + 1 : index + 5]
        if token.kind == "letter":
            kind = _letter_kind(token, previous, following[0] if following else None)
            token = token._replace(kind=kind, name="*" if kind == "op" else token.name)
        elif token.kind == "word" and previous is not None and following:
            token = _resolve_word(token, previous, following)
        if token.kind == "unit" and previous is not None and previous[:2] == ("op", "/"):
            resolved.pop()  # "10 dollars/hour"
        resolved.append(token)
    return resolved


def _letter_kind(token: Token, previous: Token | None, following: Token | None) -> str:
    """Operator (``3 x 4``), symbol (``2x``, ``x + 1``) or word ("a")."""
    if previous is not None and previous.kind in _ENDS_OPERAND:
        if token.name in "xX" and following is not None and previous.kind != "sym":
            spaced = previous.end < token.start and following.start > token.end
            if following.kind == "num" or (following.kind == "open" and spaced):
                return "op"
        if previous.end == token.start:
            return "sym"
    if previous is not None and previous.kind in ("op", "eq"):
        return "sym"
    if following is not None:
        touches = following.start == token.end
        if following.kind in ("op", "eq") or (
            touches and following.kind in ("open", "num", "letter", "post")
        ):
            return "sym"
    return "word"


def _resolve_word(token: Token, previous: Token, following: list[Token]) -> Token:
    """A spoken operator, ``of``, "equals", a unit, or the word itself."""
    word, first = token.name.casefold(), following[0]
    between_operands = previous.kind in _ENDS_OPERAND and first.kind in _STARTS_OPERAND
    if word in _SPOKEN and between_operands:
        return token._replace(kind="op", name=_SPOKEN[word])
    if word == "of" and first.kind in ("num", "open") and previous.kind in ("post", "frac", "num"):
        return token._replace(kind="of", name="of")
    if word in ("equals", "equal") and between_operands:
        return token._replace(kind="eq", name="=")
    if previous[:2] == ("op", "/"):
        return token._replace(kind="unit", name=word)
    if previous.kind not in ("num", "close", "post", "unit", "frac") or word in _NOT_A_UNIT:
        return token
    # "5 red apples *": at most three words, then an operator, an equals sign or a closing bracket
    for number, ahead in enumerate(following):
        times = ahead.name in ("x", "X") and number + 1 < len(following)
        if times and following[number + 1].kind in ("num", "open"):
            return token._replace(kind="unit", name=word)
        if ahead.kind in ("op", "eq", "rel", "close"):
            return token._replace(kind="unit", name=word)
        if ahead.kind != "word":
            break
    return token


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
class Side:
    """One side of an equation."""

    tree: Expression | None
    problem: str | None = None
    """Why it could not be parsed."""
    doubt: str | None = None
    """What writers may mean differently, such as ``1/2x``, ``-3^2`` or ``50 + 20%``."""

    @property
    def places(self) -> int | None:
        """Digits shown after the point if this is a single number (0 for an integer), else ``None``."""
        node = self.tree
        while node is not None and node.kind in ("neg", "%"):
            node = node.parts[0]
        return (node.places or 0) if node is not None and node.kind == "n" else None


class _ParseError(ValueError):
    """The tokens are not an unambiguous expression."""


def parse_side(tokens: Sequence[Token]) -> Side:
    """Parse one side of an equation."""
    parser = _Parser(tokens)
    try:
        return Side(tree=parser.parse(), doubt=parser.doubt)
    except _ParseError as error:
        return Side(tree=None, problem=str(error))


_CLOSING = {"(": ")", "[": "]", "{": "}"}
_FUNCTION_NAMES = frozenset("fghpqFGHPQETNSC")
"""A letter before a bracket that is more often a function than a factor."""


def _node(kind: str, *parts: Expression) -> Expression:
    return Expression(kind=kind, parts=parts)


def _number(value: Fraction | int) -> Expression:
    return Expression(kind="n", value=Fraction(value))


class _Parser:
    """Recursive descent: ``+ -``, then ``* /`` and juxtaposition, then signs, powers and postfixes."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.length = len(tokens)
        self.tokens = [token for token in tokens if token.kind != "unit"]
        self.at = 0
        self.doubt: str | None = None

    def parse(self) -> Expression:
        if not self.length:
            raise _ParseError("nothing there")
        if self.length > MAX_TOKENS:
            raise _ParseError(f"more than {MAX_TOKENS} tokens")
        tree = self.sum(0)
        if self.at < len(self.tokens):
            raise _ParseError(f"cannot parse from {self.tokens[self.at].name!r} on")
        return tree

    def sum(self, depth: int) -> Expression:
        self._check(depth)
        node = self.product(depth)
        while self._sees("op", "+", "-"):
            operator = self._take().name
            right = self.product(depth)
            if (node.kind == "%") != (right.kind == "%"):
                self.doubt = "a percentage added to a number"
            node = _node(operator, node, right)
        return node

    def product(self, depth: int) -> Expression:
        node = self.signed(depth)
        divided = False
        while True:
            if self._sees("op", "*", "/"):
                operator = self._take().name
                if divided and operator == "/":
                    self.doubt = "a division after a division"
                divided = operator == "/"
                node = _node(operator, node, self.signed(depth))
            elif self._sees("of"):
                self._take()
                if len(self.tokens) > 6:
                    self.doubt = "'of' next to other operations"
                node = _node("*", node, self.signed(depth))
            elif self._starts_factor():
                if divided:
                    self.doubt = "a division followed by a factor without a sign"
                node = _node("*", node, self.power(depth))
            else:
                return node

    def signed(self, depth: int) -> Expression:
        if not self._sees("op", "-", "+"):
            return self.power(depth)
        self._check(depth)
        negative = self._take().name == "-"
        node = self.signed(depth + 1)
        if negative and node.kind == "^":
            self.doubt = "the sign of a power"
        return _node("neg", node) if negative else node

    def power(self, depth: int) -> Expression:
        node = self.postfix(depth)
        if self._sees("op", "^"):
            self._take()
            node = _node("^", node, self.exponent(depth + 1))
        return node

    def exponent(self, depth: int) -> Expression:
        self._check(depth)
        if self._sees("op", "-"):
            self._take()
            return _node("neg", self.exponent(depth + 1))
        return self.power(depth)

    def postfix(self, depth: int) -> Expression:
        node = self.atom(depth)
        while self._sees("post"):
            name = self._take().name
            node = _node(name, node) if name in "%!" else _node("^", node, _number(int(name)))
        return node

    def atom(self, depth: int) -> Expression:
        if self.at >= len(self.tokens):
            raise _ParseError("it ends too early")
        token = self._take()
        match token.kind:
            case "num":
                return self.number(token, depth)
            case "sym":
                if token.name in _FUNCTION_NAMES and self._sees("open", "(", "["):
                    raise _ParseError(f"{token.name} may be a function")
                return Expression(kind="s", name=token.name)
            case "open":
                node = self.sum(depth + 1)
                if not self._sees("close", _CLOSING[token.name]):
                    raise _ParseError("brackets do not match")
                self._take()
                return node
            case "cmd":
                return self.command(token.name, depth + 1)
            case "frac":
                return _number(Fraction(token.name))
        raise _ParseError(f"cannot parse {token.name!r}")

    def number(self, token: Token, depth: int) -> Expression:
        """A number, or a mixed one: ``2½``, ``2\\frac{1}{2}``, ``2 1/2``."""
        integer, point, digits = token.name.partition(".")
        node = Expression(kind="n", value=Fraction(token.name), places=len(digits) if point else None)
        if len(integer) > 1 and integer[0] == "0":
            self.doubt = "a number that begins with 0"
        if point or depth > MAX_DEPTH:
            return node
        if self._sees("frac"):
            return _node("mix", node, self.atom(depth))
        if self._sees("cmd", "frac"):
            fraction = self.atom(depth + 1)
            return _node("mix" if all(part.kind == "n" for part in fraction.parts) else "*", node, fraction)
        ahead = self.tokens[self.at : self.at + 3]
        if [token.kind for token in ahead] == ["num", "op", "num"] and ahead[1].name == "/" and integer:
            top, bottom = Fraction(ahead[0].name), Fraction(ahead[2].name)
            if ahead[0].start > token.end and 0 < top < bottom and top.denominator == bottom.denominator == 1:
                self.at += 3
                return _node("mix", node, _number(top / bottom))
        return node

    def command(self, name: str, depth: int) -> Expression:
        match name:
            case "frac" | "binom":
                return _node("/" if name == "frac" else "C", self.argument(depth), self.argument(depth))
            case "boxed":
                return self.argument(depth)
        index = self.atom(depth) if self._sees("open", "[") else _number(2)
        return _node("sqrt", self.argument(depth), index)

    def argument(self, depth: int) -> Expression:
        """``{...}``, or as in TeX the next single character."""
        if self._sees("open", "{", "(") or self._sees("sym"):
            return self.atom(depth)
        if not (self._sees("num") and self.tokens[self.at].name.isdigit()):
            raise _ParseError("a command without its argument")
        token = self.tokens[self.at]
        if len(token.name) == 1:
            self.at += 1
        else:
            self.tokens[self.at] = token._replace(name=token.name[1:], start=token.start + 1)
        return _number(int(token.name[0]))

    def _check(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _ParseError("nested too deeply")

    def _starts_factor(self) -> bool:
        """Whether a factor follows without a sign; "x 5" and "(2) 5" are more likely two separate things."""
        if self.at >= len(self.tokens):
            return False
        return self.tokens[self.at].kind in ("sym", "open", "cmd") and self.tokens[self.at - 1].kind != "op"

    def _sees(self, kind: str, *names: str) -> bool:
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return token.kind == kind and (not names or token.name in names)

    def _take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How to read ambiguous notation: ``20%`` as 0.2 or as 20 (a unit), ``2\\\\frac{1}{2}`` as 2.5 or as
    1."""

    percent: Fraction = Fraction(1, 100)
    mixed: bool = True


def value(node: Expression, reading: Notation, point: Mapping[str, Fraction] | None = None) -> Fraction:
    """Exact value, with the letters' values at ``point``.

    Raises ``NotRationalError``, ``TooLargeError`` or ``ZeroDivisionError``.
    """
    if node.kind == "n":
        return node.value
    if node.kind == "s":
        if point is None:
            raise NotRationalError(node.name)
        return point[node.name]
    parts = [value(part, reading, point) for part in node.parts]
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
    results = [_apply(node.kind, corner, reading) for corner in corners]
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
    """Whether ``left - right`` has one value at random points: an identity, or never true.

    ``False`` is certain: an equation that holds for some values of its letters and not for others. Roots,
    undefined points and values over the bounds give ``True``, for algebra to decide.
    """
    rng = random.Random(0)
    names = sorted(symbols(left) | symbols(right))
    differences = set()
    for _ in range(_POINTS):
        point = {name: Fraction(rng.randrange(10**6, 10**7)) for name in names}
        try:
            differences.add(value(left, Notation(), point) - value(right, Notation(), point))
        except ArithmeticError:
            return True
    return len(differences) == 1


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
}
"""Operators that are the same for fractions and for SymPy's expressions."""

_OPERATIONS: dict[str, Callable[[list[Fraction], Notation], Fraction]] = {
    "^": lambda parts, _: _power(parts[0], parts[1]),
    "mix": lambda parts, reading: parts[0] + parts[1] if reading.mixed else parts[0] * parts[1],
    "%": lambda parts, reading: parts[0] * reading.percent,
    "!": lambda parts, _: Fraction(factorial(_whole(parts[0], 170))),
    "sqrt": lambda parts, _: _root(parts[0], parts[1]),
    "C": lambda parts, _: Fraction(comb(_whole(parts[0], 500), _whole(parts[1], 500))),
}


def _apply(kind: str, parts: list[Fraction], reading: Notation) -> Fraction:
    return _COMMON[kind](*parts) if kind in _COMMON else _OPERATIONS[kind](parts, reading)


_DIGITS = 50


def load_algebra() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Import SymPy and return a function that compares ``left`` with ``right``.

    The answer's ``relation`` is ``identity`` (equal for all values), ``never`` (the difference is a number
    other than 0) or ``open``. ``values`` are both sides as decimals where neither has a letter.
    """
    import sympy

    operations: dict[str, Callable[..., Any]] = {
        **_COMMON,
        "^": operator.pow,
        "mix": operator.add,
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
