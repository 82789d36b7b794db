r"""Formulas to trees: LaTeX (``\frac{\pi x}{4}``) and code (``pi*x/4``).

A formula is read whole or refused: nothing that the grammar does not cover is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, NoReturn

from surefoot.maths import DIGITS, normalise, read_quantity, words


class UnreadableError(ValueError):
    """The grammar does not cover the whole text."""


class TooLargeError(ValueError):
    """The value of a formula has too many digits, or takes too much work."""


class FormulaNode(NamedTuple):
    """A node of a tree.

    - Expressions: ``number`` (value; text = its digits, of a decimal), ``name`` (text), ``+`` (text =
      "mixed" for a mixed number), ``* / ^ neg %``, ``± ∓`` (a sign of one operand), ``call`` (text = the
      function), ``sum prod`` (variable, lower, upper, body).
    - Of several values: ``tuple`` (text = its brackets), ``set``, ``list``, ``∪ ∩ ∖``, ``matrix`` (text =
      the number of columns).
    - ``relation`` (text = one character per operator), ``mod`` (of two parts), ``base`` (digits; the base).
    """

    kind: str
    parts: tuple[FormulaNode, ...] = ()
    text: str = ""
    value: Fraction = Fraction(0)

    def __str__(self) -> str:
        """The same text for the same tree."""
        if self.kind in ("number", "name"):
            return self.text if self.kind == "name" else str(self.value)
        return f"{self.text or self.kind}({', '.join(map(str, self.parts))})"

    def walk(self) -> Iterator[FormulaNode]:
        """This node and all below it."""
        yield self
        for part in self.parts:
            yield from part.walk()


def number(value: int | Fraction) -> FormulaNode:
    """A number without decimals."""
    return FormulaNode("number", value=Fraction(value))


INFINITY = FormulaNode("name", text="∞")
DEGREE = FormulaNode("name", text="°")
_TRIGONOMETRY = words("sin cos tan cot sec csc")
ANGLES = frozenset({*_TRIGONOMETRY, "sinh", "cosh", "tanh"})
FUNCTIONS = ANGLES | words(
    "arcsin arccos arctan arccot arcsec arccsc log ln exp sqrt abs floor ceil gcd lcm min max binom"
)
SHORT = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "arctg": "arctan", "tg": "tan"}
SHORT |= {"tbinom": "binom", "dbinom": "binom"}
GREEK = words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi pi rho sigma "
    "tau phi varphi chi psi omega ell Gamma Delta Theta Lambda Sigma Phi Psi Omega"
)
OPERATORS = {
    word: spellings.split()[0]
    for line in r"""
    ≤ le leq leqslant <=  ≥ ge geq geqslant >=  < lt  > gt  ≠ ne neq !=  ≡ equiv  ≈ approx  = ==  ∈ in  ∪ cup
    ∩ cap  ∖ setminus backslash  * cdot times ast  / div  ± pm  ∓ mp  ^ **  | lvert rvert vert  ⟨ langle
    ⟩ rangle  ⌊ lfloor  ⌋ rfloor  ⌈ lceil  ⌉ rceil  ∞ infty infinity inf oo  ∅ emptyset varnothing  sum  prod
    … ldots dots cdots ...  ° circ degree  ' prime  {{ lbrace {  }} rbrace }  mod bmod pmod  choose  %
    frac tfrac dfrac cfrac  overline bar vec hat  , or lor ;  and land  \\ \
    """.splitlines()
    for spellings in line.strip().split("  ")
    for word in spellings.split()
}
"""Commands of LaTeX, and marks and words of code, with the token that each of them is."""
_CHARACTERS = str.maketrans(
    {
        **{"×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "⁄": "/", "–": "-", "∣": "|", "º": "°"},
        **{"π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "√": r"\sqrt "},
        **{"½": r"\frac12 ", "⅓": r"\frac13 ", "⅔": r"\frac23 ", "¼": r"\frac14 ", "¾": r"\frac34 "},
        **{digit: f"^{{{power}}}" for power, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    }
)
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?")
_FONT = re.compile(r"\\(text[a-z]*|mbox|operatorname|math[a-z]+|boldsymbol|bm|boxed)\*?\s*\{([^{}]*)\}")
_MATRIX = re.compile(r"\\(begin|end)\s*\{\s*(?:[pbB]?matrix|array)\s*\}(?:\{[lcr|]*\})?")
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    rf"|(?P<number>(?:[0-9]+\.(?=\\overline|\\bar)|{DIGITS})(?:(?<=[.0-9])\\(?:overline|bar)\s*(?:\{{[0-9]+\}}|[0-9]))?"
    r"(?:[eE][+-]?[0-9]{1,3}(?![a-zA-Z0-9]))?)"
    r"|\\(?P<command>[a-zA-Z]+|.)|(?P<word>[a-zA-Z]+)|(?P<mark>\*\*|<=|>=|!=|==|\.\.\.|.)",
    re.DOTALL,
)
_BASE = re.compile(
    r"(-?)\s*\(?([0-9A-Z]*[0-9][0-9A-Z]*(?:\.[0-9A-Z]+)?|[A-F]+)\)?\s*"
    r"(?:_\s*(?:\{\s*([0-9]+)\s*\}|([0-9]+))|\(?base\s+([0-9]+)\)?)"
)
_FUNCTION = re.compile("|".join(sorted((*FUNCTIONS, *SHORT), key=len, reverse=True)))
_SYLLABLE = re.compile("[^aeiou][aeiou][^aeiou]")
_MOST_POSTFIXES = 8
_SPACES = words("quad qquad displaystyle limits , : ! $") | {" "}
_SPOKEN = words("is if of to in no not the for at by on as it be so are was an he we you any all my with am")
RELATIONS = "=<>≤≥≠≡≈∈"
_CLOSING = {"(": ")]", "[": ")]", "⟨": "⟩"}
_OPENING = frozenset({"(", "{", "⌊", "⌈", "frac", "overline", "sum", "prod", "∞"})


class FormulaToken(NamedTuple):
    """A token of a formula."""

    kind: str
    """number, name, function or mark."""
    text: str
    touches: bool
    """Whether no space stands before it."""


END = FormulaToken("end", "", touches=False)


@lru_cache(maxsize=512)
def read_formula(text: str, *, lists: bool = False) -> FormulaNode:
    """The tree of ``text``. With ``lists``, "1,234" is two numbers.

    Raises ``UnreadableError`` if ``text`` is not read whole.
    """
    text = _FONT.sub(_without_font, normalise(text).replace(r"\mathbb{R}", r"(-\infty,\infty)"))
    if base := _BASE.fullmatch(text.replace("\\ ", " ").strip()):
        sign, digits, *bases = base.groups()
        integer, _, decimals = digits.partition(".")
        digits = f"{sign}{integer.lstrip('0')}.{decimals.rstrip('0')}"
        return FormulaNode("base", (number(int(next(filter(None, bases)))),), digits)
    parser = FormulaParser(list(_tokens(text.translate(_CHARACTERS), lists=lists)))
    tree = parser.sequence()
    if parser.peek is not END:
        parser.refuse()
    return tree


def _without_font(match: re.Match[str]) -> str:
    if match[1].startswith(("text", "mbox", "mathrm")):
        for word in re.findall("[a-zA-Z]{2,}", match[2]):
            if word not in OPERATORS and word not in FUNCTIONS and word != "base":
                raise UnreadableError(word)
    return f" {match[2]} "


def _tokens(text: str, *, lists: bool) -> Iterator[FormulaToken]:
    text = _SIZES.sub(" ", _MATRIX.sub(lambda match: "\x01" if match[1] == "begin" else "\x02", text))
    if lists:
        text = re.sub(r"(?<=[0-9]),(?=[0-9])", ", ", text)
    touches = False
    for match in _TOKEN.finditer(text):
        kind, token = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "number":
            yield FormulaToken("number", token, touches)
        elif kind == "word":
            yield from _word(token, touches)
        elif kind == "command" and token in GREEK:
            yield FormulaToken("name", token, touches)
        elif kind == "command" and (name := SHORT.get(token, token)) in FUNCTIONS:
            yield FormulaToken("function", name, touches)
        elif kind == "mark" or token in OPERATORS:
            escaped = kind == "command" or token not in "{}"
            yield FormulaToken("mark", OPERATORS.get(token, token) if escaped else token, touches)
        elif kind != "space" and token not in _SPACES:
            raise UnreadableError(token)
        touches = kind != "space"


def _word(word: str, touches: bool) -> Iterator[FormulaToken]:
    function = _FUNCTION.match(word)
    if word in OPERATORS:
        yield FormulaToken("mark", OPERATORS[word], touches)
    elif word in ("oo", "inf", "infty", "infinity"):
        yield FormulaToken("mark", "∞", touches)
    elif word in GREEK:
        yield FormulaToken("name", word, touches)
    elif function and len(word) - function.end() < 2:
        yield FormulaToken("function", SHORT.get(function[0], function[0]), touches)
        yield from (FormulaToken("name", letter, touches=True) for letter in word[function.end() :])
    elif len(word) > 3 or word.casefold() in _SPOKEN or _SYLLABLE.fullmatch(word):
        raise UnreadableError(word)
    else:
        yield from (FormulaToken("name", letter, touches or at > 0) for at, letter in enumerate(word))


class FormulaParser:
    """Recursive descent over tokens.

    Raises ``UnreadableError`` where the grammar does not cover them.
    """

    most_depth = 100

    def __init__(self, tokens: list[FormulaToken]) -> None:
        self.tokens = tokens
        self.doubt: str | None = None
        """What writers may mean differently, such as ``1/2x`` or ``-3^2``."""
        self.at = 0
        self.depth = 0
        self.bars = 0
        """Absolute values that are open."""

    @property
    def peek(self) -> FormulaToken:
        return self.look(0)

    def look(self, ahead: int) -> FormulaToken:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else END

    def refuse(self) -> NoReturn:
        raise UnreadableError(self.peek.text)

    def take(self) -> FormulaToken:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else END

    def accept(self, *marks: str) -> str:
        """The next token if it is one of these marks; an empty text otherwise."""
        token = self.peek
        if token.kind != "mark" or token.text not in marks:
            return ""
        self.at += 1
        return token.text

    def expect(self, *marks: str) -> str:
        return self.accept(*marks) or self.refuse()

    def sequence(self) -> FormulaNode:
        """Values with commas, "and" or "or" between them."""
        parts = [self.relation()]
        marks = set()
        while mark := self.accept(",", "and"):
            marks |= {mark, self.accept("and", ",")}
            parts.append(self.relation())
        return (
            parts[0]
            if len(parts) == 1
            else FormulaNode("list", tuple(parts), "and" if "and" in marks else "")
        )

    def relation(self) -> FormulaNode:
        parts = [self.function_name() or self.union()]
        operators = ""
        while operator := self.accept(*RELATIONS, ":"):
            operators += operator
            parts.append(self.union())
        node = parts[0]
        if ":" in operators:
            node = FormulaNode("tuple", tuple(parts), ":") if not operators.strip(":") else self.refuse()
        elif operators:
            node = FormulaNode("relation", tuple(parts), operators)
        opened = self.look(1).text == "mod" and bool(self.accept("("))
        if self.accept("mod"):
            node = FormulaNode("mod", (node, self.sum()))
        if opened:
            self.expect(")")
        return node

    def function_name(self) -> FormulaNode | None:
        """The left side of "P(x, y) = ..."."""
        at = 1
        while self.look(at).text in (",", "(")[at == 1 :] and self.look(at + 1).kind == "name":
            at += 2
        named = self.peek.kind == "name" and at > 1 and self.look(at).text == ")"
        if not named or self.look(at + 1).text != "=":
            return None
        name = "".join(self.take().text for _ in range(at + 1))
        return FormulaNode("name", text=name)

    def union(self) -> FormulaNode:
        node = self.sum()
        while operator := self.accept("∪", "∩", "∖"):
            node = FormulaNode(operator, (node, self.sum()))
        return node

    def sum(self) -> FormulaNode:
        self.depth += 1
        if self.depth > self.most_depth:
            self.refuse()
        start, parts = self.at, list[FormulaNode]()
        while (sign := self.accept("+", "-", "±", "∓")) or not parts:
            inner = self.accept("+", "-") if parts else ""  # "14 + -1.0i"
            term = self.term()
            first = term.parts[0] if term.kind == "*" else term
            if first.kind == "^" and "-" in (inner, "" if parts else sign):
                self.doubt = "the sign of a power"
            term = FormulaNode("neg", (term,)) if inner == "-" else term
            parts.append(
                FormulaNode("neg" if sign == "-" else sign, (term,)) if sign not in ("", "+") else term
            )
        self.depth -= 1
        node = parts[0] if len(parts) == 1 else FormulaNode("+", tuple(parts))
        if not self.accept("choose"):
            return node
        group = start > 0 and self.tokens[start - 1].text == "{"
        if node.kind == "+" and not group:
            self.refuse()
        return FormulaNode("call", (node, self.sum() if group else self.term()), "binom")

    def term(self) -> FormulaNode:
        parts = [self.power()]
        divided = False
        while True:
            if operator := self.accept("*", "/"):
                if divided and operator == "/":
                    self.doubt = "a division after a division"
                divided = operator == "/"
                sign = self.accept("+", "-")
                factor = self.power()
                if sign == "-":
                    self.doubt = "the sign of a power" if factor.kind == "^" else self.doubt
                    factor = FormulaNode("neg", (factor,))
                parts.append(FormulaNode("/", (number(1), factor)) if operator == "/" else factor)
            elif self.begins():
                if divided:
                    self.doubt = "a division followed by a factor without a sign"
                mixed = len(parts) == 1 and _is_integer(parts[0]) and self.peek.text == "frac"
                factor = self.power()
                if mixed and all(map(_is_integer, factor.parts)) and _is_proper(factor):
                    parts[0] = FormulaNode("+", (parts[0], factor), "mixed")
                else:
                    parts.append(factor)
            else:
                return _product(parts)

    def begins(self) -> bool:
        """Whether a factor begins here, with no sign of multiplication before it."""
        if self.peek.kind == "number":
            return self.tokens[self.at - 1].kind != "number" or self.refuse()
        opened = self.peek.kind == "mark" and self.peek.text in _OPENING and self.look(1).text != "mod"
        return self.peek.kind in ("name", "function") or opened or (self.peek.text == "|" and not self.bars)

    def power(self) -> FormulaNode:
        node, postfixes = self.primary(), 0
        while operator := self.accept("^", "!", "°", "%"):
            postfixes = postfixes + 1 if postfixes < _MOST_POSTFIXES else self.refuse()
            if operator == "^" and not self.accept("°"):
                exponent = self.exponent()
                node = FormulaNode("*" if exponent == DEGREE else "^", (node, exponent))
            elif operator in "^°":
                node = FormulaNode("*", (node, DEGREE))
            else:
                node = FormulaNode("%" if operator == "%" else "call", (node,), operator)
        return node

    def exponent(self) -> FormulaNode:
        if self.peek.text == "{" and self.look(1).text == "°" and self.look(2).text == "}":
            self.at += 3
            return DEGREE
        sign = self.accept("-", "+")
        node = self.group() if self.peek.text == "{" else self.primary()
        if self.accept("^"):
            node = FormulaNode("^", (node, self.exponent()))
        return FormulaNode("neg", (node,)) if sign == "-" else node

    def group(self) -> FormulaNode:
        """A group of TeX, or one in parentheses."""
        closing = {"{": "}", "(": ")"}[self.expect("{", "(")]
        bars, self.bars = self.bars, 0
        node = self.sum()
        self.expect(closing)
        self.bars = bars
        return node

    def argument(self) -> FormulaNode:
        """An argument of a command of TeX: a group, or one character."""
        if self.peek.text == "{":
            return self.group()
        token = self.peek
        if token.kind == "number" and token.text.isdigit() and len(token.text) > 1:
            self.tokens[self.at] = token._replace(text=token.text[1:])
            return number(int(token.text[0]))
        return self.primary()

    def primary(self) -> FormulaNode:
        token = self.take()
        if token.kind == "number":
            return self.literal(token.text)
        if token.kind == "name":
            return self.name(token.text)
        if token.kind == "function":
            return self.call(token.text)
        match token.text:
            case "{" | "{{":
                return self.braces(token.text)
            case "(" | "[" | "⟨":
                return self.brackets(token.text)
            case "|" | "⌊" | "⌈":
                return self.fence(token.text)
            case "frac":
                return FormulaNode("/", (self.argument(), self.argument()), "frac")
            case "overline":
                return FormulaNode("call", (self.argument(),), "overline")
            case "sum" | "prod":
                return self.series(token.text)
            case "\x01":
                return self.matrix()
            case "∞" | "∅" | "…":
                return FormulaNode("name", text=token.text)
            case _:
                self.at -= 1
                return self.refuse()

    def literal(self, text: str) -> FormulaNode:
        quantity = read_quantity(text)
        if quantity is None:
            self.refuse()
        decimal = "." in text and "\\" not in text
        return FormulaNode("number", value=quantity.number, text=text if decimal else "")

    def name(self, text: str) -> FormulaNode:
        if self.accept("_"):
            index = self.group() if self.peek.text == "{" else FormulaNode("name", text=self.take().text)
            if index.kind not in ("number", "name"):
                return FormulaNode("call", (index,), f"{text}_")
            text = f"{text}_{index.text or index.value}"
        while self.accept("'"):
            text += "'"
        if self.peek.text == "(" and self.peek.touches and (text in ("f", "g") or text.endswith("'")):
            return FormulaNode("call", self.arguments(), text)
        return FormulaNode("name", text=text)

    def arguments(self) -> tuple[FormulaNode, ...]:
        self.expect("(")
        node = self.sequence()
        self.expect(")")
        return node.parts if node.kind == "list" else (node,)

    def call(self, name: str) -> FormulaNode:
        index: FormulaNode | None = None
        if name == "sqrt" and self.accept("["):
            index = self.sum()
            self.expect("]")
        if name == "log" and self.accept("_"):
            index = self.argument() if self.peek.text == "{" else self.primary()
        if name == "binom" and self.peek.text == "{":
            return FormulaNode("call", (self.argument(), self.argument()), name)
        exponent = self.exponent() if name != "sqrt" and self.accept("^") else None
        if self.peek.text == "(":
            parts = self.arguments()
        elif self.peek.text == "{" or name == "sqrt":
            parts = (self.group() if self.peek.text == "{" else self.primary(),)
        else:
            factors = [self.power()]
            while self.begins() and self.peek.kind != "function" and self.peek.text != "(":
                factors.append(self.power())
            parts = (_product(factors),)
        if exponent == FormulaNode("neg", (number(1),)) and name in _TRIGONOMETRY:
            name, exponent = f"arc{name}", None
        node = FormulaNode("call", parts if index is None else (*parts, index), name)
        return node if exponent is None else FormulaNode("^", (node, exponent))

    def braces(self, opening: str) -> FormulaNode:
        closing = opening.replace("{", "}")
        if opening != "{" and self.accept(closing):
            return FormulaNode("name", text="∅")
        bars, self.bars = self.bars, 0
        node = self.sequence()
        self.expect(closing)
        self.bars = bars
        if opening == "{" and node.kind != "list":
            return node
        return FormulaNode("set", node.parts if node.kind == "list" else (node,))

    def brackets(self, opening: str) -> FormulaNode:
        bars, self.bars = self.bars, 0
        node = self.sequence()
        closing = self.expect(*_CLOSING[opening])
        self.bars = bars
        if node.kind == "list":
            return FormulaNode("tuple", node.parts, opening + closing)
        if opening + closing not in ("()", "[]"):
            self.refuse()
        return node

    def fence(self, opening: str) -> FormulaNode:
        self.bars += opening == "|"
        node = self.sum()
        self.expect({"|": "|", "⌊": "⌋", "⌈": "⌉"}[opening])
        self.bars -= opening == "|"
        return FormulaNode("call", (node,), {"|": "abs", "⌊": "floor", "⌈": "ceil"}[opening])

    def series(self, kind: str) -> FormulaNode:
        r"""``\sum_{k=0}^{n} body``."""
        self.expect("_")
        self.expect("{")
        bound = self.relation()
        self.expect("}")
        if bound.kind != "relation" or bound.text != "=" or bound.parts[0].kind != "name":
            self.refuse()
        self.expect("^")
        upper = self.exponent()
        return FormulaNode(kind, (*bound.parts, upper, self.term()))

    def matrix(self) -> FormulaNode:
        rows: list[list[FormulaNode]] = [[]]
        while True:
            rows[-1].append(self.sum())
            mark = self.expect("&", "\\\\", "\x02")
            if mark != "&" and self.peek.text == "\x02":
                mark = self.take().text
            if mark == "\x02":
                break
            if mark != "&":
                rows.append([])
        if len({len(row) for row in rows}) > 1:
            self.refuse()
        return FormulaNode("matrix", tuple(part for row in rows for part in row), str(len(rows[0])))


def _is_integer(node: FormulaNode) -> bool:
    return node.kind == "number" and not node.text and node.value.denominator == 1


def _is_proper(fraction: FormulaNode) -> bool:
    over, under = fraction.parts
    return over.value < under.value


def _product(factors: list[FormulaNode]) -> FormulaNode:
    return factors[0] if len(factors) == 1 else FormulaNode("*", tuple(factors))
