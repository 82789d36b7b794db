"""Arithmetic, algebra, LaTeX and words in a step: text to tokens, tokens to expression trees.

A reading that writers often mean differently (``1/2x``) is parsed with a *doubt*. Nothing is evaluated here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from surefoot.maths import LATEX_DIGITS, dollars_delimit, words

MAX_TOKENS = 200
"""Longest side of an equation; also bounds the depth of its tree."""
MAX_DEPTH = 40
MAX_DIGITS = 300

_SAME_LENGTH = str.maketrans("×✕·⋅∙÷∕⁄−–‒＝", "****" + "*" + "///" + "---" + "=")
_FRACTIONS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅙": "1/6", "⅛": "1/8"}


class Expression(NamedTuple):
    """A node of a tree.

    Kinds: n (number), s (letter, ``pi`` or ``±``), the operators ``+ - * / ^ mix`` (integer and fraction),
    ``neg`` (minus), ``%``, ``!``, ``sqrt`` (radicand, index), ``C`` (binomial), ``abs``, ``floor``, ``ceil``,
    ``deg`` (degrees), ``fn`` (one of ``FUNCTIONS``, by ``name``) and ``call`` (a function of the text).
    """

    kind: str
    parts: tuple[Expression, ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""
    places: int | None = None
    """Digits shown after the point, for a number written with one."""

    def __str__(self) -> str:
        """The same text for the same tree; a call's text names its value as an unknown."""
        if self.kind in "ns":
            return self.name or str(self.value)
        return f"{self.name or self.kind}({', '.join(map(str, self.parts))})"


FUNCTIONS = words("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp cis")
"""Functions by name; the logarithm to a base is ``log_2``."""
PLUS_MINUS = Expression(kind="s", name="±")
"""The sign that ``\\pm`` leaves open, as an unknown of value 1 or -1."""

_SYMBOLS = f"[²³{''.join(_FRACTIONS)}]"
"""Of the characters of words, the ones that are a token of their own at its beginning."""
_NAMES = "|".join(sorted(FUNCTIONS, key=len, reverse=True))
_TOKEN = re.compile(
    rf"""
    (?P<space>(?:[^\S\n]|[~&£€])+)
  | (?P<num>{LATEX_DIGITS})
  | (?P<sub>(?!{_SYMBOLS})[^\W\d_]_(?:\{{[A-Za-z0-9+,-]{{1,8}}\}}|[A-Za-z0-9]))
  | (?P<word>(?!{_SYMBOLS})[^\W\d_](?:[^\W\d_]+(?:[-'’][^\W\d_]+)*)?)
  | (?P<delim>\\[\[\]()]|\$\$?)
  | (?P<break>\\\\(?:\[[^\]\n]{{0,9}}\])?|\n
      |\\(?:begin|end)\{{(?:align|aligned|equation|gather|gathered|split|multline|eqnarray)\*?\}})
  | (?P<skip>\\[,;:!\ \$]|\\(?:q?quad|left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])
      |(?<![\w)\]}}])\*\*(?=\S)|(?<=\S)\*\*(?![\w(]))          # the last two: Markdown's bold
  | (?P<logarithm>\\log_(?:\{{[0-9]{{1,3}}\}}|[0-9]))
  | (?P<named>\\(?:text|mathrm|operatorname)\s?\{{\s?(?:{_NAMES})\s?\}})
  | (?P<accent>\\(?:overline|overarc|widehat|hat|bar|tilde)\s?\{{[A-Za-z]{{1,4}}\}})
  | (?P<text>\\(?:text|mbox|mathrm|textbf|mathbf|textit)\s?\{{(?P<words>[^{{}}]*)\}})
  | (?P<percent>\\?%)
  | (?P<degree>\^\s?\{{?\s?\\circ\s?\}}?|°)
  | (?P<command>\\[a-zA-Z]+)
  | (?P<dots>\.\.+|…)
  | (?P<factorial>(?<=[0-9)\]}}])!(?==\s?[0-9\\(]))
  | (?P<op>\*\*|[-+*/^±])
  | (?P<rel>!=|<=|>=|=>|->|:=|[<>≤≥≠→⇒]|=\?)
  | (?P<eq>==?|[≈∼])
  | (?P<post>[²³!])
  | (?P<frac>[{"".join(_FRACTIONS)}])
  | (?P<open>[(\[{{])
  | (?P<close>[)\]}}])
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

_RELATIONS = words("le leq ge geq ne neq lt gt Rightarrow rightarrow implies to iff Leftrightarrow")
"""LaTeX's relations other than equality."""

_GREEK = words(
    """alpha beta gamma delta theta lambda mu phi rho sigma omega pi zeta varphi epsilon psi tau eta xi ell
    angle triangle"""
)
_OPERATORS = {"times": "*", "cdot": "*", "ast": "*", "div": "/", "pm": "±", "mp": "±", "choose": "choose"}
_ABOUT = words("approx sim simeq")
_BARS = {"lvert": "|", "rvert": "|", "vert": "|"}
_STEPS = {"lfloor": "rfloor", "lceil": "rceil"}
_COMMANDS = {"frac": "frac", "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "sqrt": "sqrt"}
_COMMANDS |= {"binom": "binom", "dbinom": "binom", "tbinom": "binom", "boxed": "boxed", "fbox": "boxed"}
_SPOKEN = {"times": "*", "plus": "+", "minus": "-"}
_ENDS_OPERAND = frozenset({"num", "close", "post", "frac", "sym", "unit"})
_STARTS_OPERAND = frozenset({"num", "open", "frac", "sym", "cmd", "func"})


_IN_NUMBERS = str.maketrans("", "", ",{}\\!")
_SUPERSCRIPTS = str.maketrans("²³", "23")
_PRIMES = ("'", "’")


class Token(NamedTuple):
    """A part ``text[start:end]``; ``name`` is its canonical form (``*`` for LaTeX's ``\\times``).

    Kinds: num, frac (½), op, open, close, cmd (frac, sqrt, binom, boxed), func, abs (a bar), step (a floor
    or ceiling), sym (a letter), post (``%``, ``!``, a superscript), of, unit, eq, rel (other relations),
    word, bound (punctuation), break (line), delim (of LaTeX) and opaque (anything else).
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
        kind = match.lastgroup or "other"
        if kind in ("space", "skip"):
            continue
        raw, (start, end) = match.group(), match.span()
        after_number = start == number_end
        if kind == "delim":
            if raw[0] == "$" and not dollars:  # a currency
                continue
            inside = raw in ("\\(", "\\[") or (raw[0] == "$" and not inside)
        if kind == "num":
            number_end = end
        if kind == "word" and inside and raw.isascii():  # a product of letters
            if function := _LEADING_FUNCTION.match(raw):
                yield Token("func", function.group(), start, start + function.end(), True)
            for at, letter in enumerate(raw[function.end() if function else 0 :], start):
                yield Token("sym" if letter.isalpha() else "opaque", letter, at, at + 1, True)
            continue
        match kind:
            case "num":
                name = raw.translate(_IN_NUMBERS)
                kind = "opaque" if len(name) > MAX_DIGITS or after_number else "num"  # 1.2.3
            case "word":
                kind, name = _plain_word(raw, latex=latex, after_number=after_number)
                if text[end : end + 1] == "(" and (raw in FUNCTIONS or raw == "sqrt"):
                    kind = "cmd" if raw == "sqrt" else "func"
            case "op":
                name = "^" if raw == "**" else raw
            case "punct":
                name = raw
                in_number = after_number and text[end : end + 1].isdigit() and raw in ",:."
                in_number |= raw == "." and text.startswith(
                    ("\\overline", "\\bar"), end
                )  # a period of digits
                in_number |= (
                    inside and raw == ":" and (after_number or text[end : end + 2].strip().isdigit())
                )  # a ratio
                # "3 + . 84"
                cut_off = raw == "." and text[max(0, start - 4) : start].rstrip().endswith(tuple("+-*/"))
                kind = "opaque" if in_number or cut_off else "bound"
            case "eq":
                name = "≈" if raw in "≈∼" else "="
            case "text" | "words":
                name = match["words"].strip()
                kind = "opaque" if len(name) < 2 else "word"  # \mathbf{v} is a vector
            case "command":
                kind, name = _command(raw[1:])
            case "logarithm":
                kind, name = "func", "log_" + raw[5:].strip("{}")
            case "named":
                kind, name = "func", raw.partition("{")[2].strip("} ")
            case "accent":  # the segment AB, the conjugate of z
                letters = raw.partition("{")[2].strip("} ")
                kind, name = "sym", "".join(sorted(letters)) if len(letters) == 2 else raw
            case "factorial":
                kind, name = "post", "!"
            case "other" if raw == "|":
                kind, name = "abs", raw
            case "percent" | "degree":
                kind, name = ("post", "%") if kind == "percent" else ("unit", "degree")
            case "post" | "frac":
                name = _FRACTIONS.get(raw, raw).translate(_SUPERSCRIPTS)
            case "sub":
                kind, name = "sym" if inside or not latex else "word", raw.replace("{", "").replace("}", "")
            case _:
                kind, name = "opaque" if kind in ("dots", "other") else kind, raw
        yield Token(kind, name, start, end, inside)


def _command(name: str) -> tuple[str, str]:
    if name in _OPERATORS:
        return "op", _OPERATORS[name]
    if name in _ABOUT:
        return "eq", "≈"
    if name in _COMMANDS:
        return "cmd", _COMMANDS[name]
    if name in _RELATIONS:
        return "rel", name
    if name in FUNCTIONS:
        return "func", name
    if name in _BARS:
        return "abs", _BARS[name]
    if name in _STEPS or name in _STEPS.values():
        return "step", name
    return ("sym", name) if name in _GREEK else ("opaque", name)


def _plain_word(word: str, *, latex: bool, after_number: bool) -> tuple[str, str]:
    """Kind and name of a word outside a formula; ``latex``: formulas of this text are delimited."""
    if word == "π":
        return "sym", "pi"
    if not word.isascii() and (len(word) == 1 or any("α" <= letter <= "ω" for letter in word)):
        return "opaque", word  # πr is no unit
    if len(word) == 1 and not latex:
        return "letter", word
    ordinal = after_number and word in ("st", "nd", "rd", "th")  # "1st - 5"
    return "opaque" if ordinal else "word", word


def _resolve(tokens: list[Token]) -> list[Token]:
    """Decide what depends on the neighbours: ``x`` for times, units, ``of``, spoken operators, letters."""
    resolved: list[Token] = []
    for index, token in enumerate(tokens):
        previous = resolved[-1] if resolved else None
        if token.kind == "letter":
            kind = _letter_kind(token, previous, tokens[index + 1] if index + 1 < len(tokens) else None)
            token = token._replace(kind=kind, name="*" if kind == "op" else token.name)
        elif token.kind == "word" and previous is not None and index + 1 < len(tokens):
            token = _resolve_word(token, previous, tokens[index + 1 : index + 5])
        if previous is not None:
            if token.name in _PRIMES and previous.kind == "sym" and previous.end == token.start:
                resolved[-1] = previous._replace(name=previous.name + "'", end=token.end)  # the derivative f'
                continue
            if token.kind == "unit" and previous[:2] == ("op", "/"):
                resolved.pop()  # "10 dollars/hour"
        resolved.append(token)
    return resolved


_LEADING_FUNCTION = re.compile(rf"(?:{_NAMES})(?=.?$)")
"""A function before at most one letter: ``sinx`` in a formula."""


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


class Side(NamedTuple):
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
_CALLED = frozenset("fgFG")
"""Letters that are functions before a bracket."""
_PERHAPS_CALLED = frozenset("hpqHPQETNSC")
"""Letters before a bracket that are more often functions than factors."""


def _node(kind: str, *parts: Expression) -> Expression:
    return Expression(kind, parts)


def _number(value: Fraction | int) -> Expression:
    return Expression(kind="n", value=Fraction(value))


@lru_cache(maxsize=4096)
def _numeral(name: str) -> Expression:
    """The number that is written as ``name``."""
    integer, point, digits = name.partition(".")
    if not point:
        return _number(int(name))
    return Expression(kind="n", value=Fraction(int(integer + digits), 10 ** len(digits)), places=len(digits))


_END = Token("end", "", 0, 0, False)


class _Parser:
    """Recursive descent: ``+ -``, then ``* /`` and juxtaposition, then signs, powers and postfixes."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.length = len(tokens)
        self.tokens = [token for token in tokens if token.kind != "unit" or token.name == "degree"]
        self.tokens.append(_END)
        self.at = 0
        self.doubt: str | None = None

    def parse(self) -> Expression:
        if not self.length:
            raise _ParseError("an empty side")
        if self.length > MAX_TOKENS:
            raise _ParseError(f"more than {MAX_TOKENS} tokens")
        tree = self.sum(0)
        if (token := self.tokens[self.at]) is not _END:
            raise _ParseError(f"cannot parse from {token.name!r} on")
        return tree

    def sum(self, depth: int) -> Expression:
        self._check(depth)
        node = self.product(depth)
        while (token := self.tokens[self.at]).kind == "op" and token.name in ("+", "-", "±"):
            self.at += 1
            operator = token.name
            right = self.product(depth)
            if operator == "±":
                operator, right = "+", _node("*", PLUS_MINUS, right)
            if (node.kind == "%") != (right.kind == "%"):
                self.doubt = "a percentage added to a number"
            node = _node(operator, node, right)
        return node

    def product(self, depth: int) -> Expression:
        node = self.signed(depth)
        divided = False
        while True:
            token = self.tokens[self.at]
            if token.kind == "op" and token.name in ("*", "/"):
                self.at += 1
                operator = token.name
                if divided and operator == "/":
                    self.doubt = "a division after a division"
                divided = operator == "/"
                node = _node(operator, node, self.signed(depth))
            elif token.kind == "of":
                self.at += 1
                if len(self.tokens) > 7:  # with the end
                    self.doubt = "'of' next to other operations"
                node = _node("*", node, self.signed(depth))
            elif self._starts_factor(token):
                if divided:
                    self.doubt = "a division followed by a factor without a sign"
                node = _node("*", node, self.power(depth))
            else:
                return node

    def signed(self, depth: int) -> Expression:
        token = self.tokens[self.at]
        if token.kind != "op" or token.name not in ("-", "+", "±"):
            return self.power(depth)
        self._check(depth)
        self.at += 1
        sign = token.name
        negative = sign == "-"
        node = self.signed(depth + 1)
        if sign == "±":
            return _node("*", PLUS_MINUS, node)
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
        while (token := self.tokens[self.at]).kind in ("post", "unit"):
            self.at += 1
            if token.kind == "unit":
                node = _node("deg", node)
                continue
            name = token.name
            node = _node(name, node) if name in "%!" else _node("^", node, _number(int(name)))
        return node

    def atom(self, depth: int) -> Expression:
        token = self._take()
        match token.kind:
            case "num":
                return self.number(token, depth)
            case "sym":
                return self.letter(token.name, depth)
            case "open":
                node = self.sum(depth + 1)
                if token.name == "{" and self._sees("op", "choose"):
                    self._take()
                    node = _node("C", node, self.sum(depth + 1))
                if not self._sees("close", _CLOSING[token.name]):
                    raise _ParseError("brackets do not match")
                self._take()
                return node
            case "cmd":
                return self.command(token.name, depth + 1)
            case "func":
                return self.function(token.name, depth + 1)
            case "abs":
                node = self.sum(depth + 1)
                if not self._sees("abs"):
                    raise _ParseError("a bar without its pair")
                self._take()
                return _node("abs", node)
            case "step" if token.name in _STEPS:
                node = self.sum(depth + 1)
                if not self._sees("step", _STEPS[token.name]):
                    raise _ParseError("brackets do not match")
                self._take()
                return _node(token.name.removeprefix("l"), node)
            case "frac":
                return _number(Fraction(token.name))
            case "end":
                raise _ParseError("it ends too early")
        raise _ParseError(f"cannot parse {token.name!r}")

    def letter(self, name: str, depth: int) -> Expression:
        """A symbol, or the call of a function."""
        function = name.rstrip("'")
        if function in _CALLED and self._sees("op", "^"):
            raise _ParseError(f"{name} may be an inverse function")
        if self._sees("open", "(", "["):
            if name != function or function in _CALLED:
                return Expression(kind="call", name=name, parts=(self.atom(depth + 1),))
            argument = [token.kind for token in self.tokens[self.at + 1 : self.at + 3]]
            factor = name in "hpq" and self._sees("open", "(") and argument != ["num", "close"]
            if function in _PERHAPS_CALLED and not factor:
                raise _ParseError(f"{name} may be a function")
        return Expression(kind="s", name=name)

    def function(self, name: str, depth: int) -> Expression:
        """``\\sin x``, ``\\sin^2 x``, ``\\sin^{-1} x``, ``\\sin 2x``."""
        exponent = None
        if self._sees("op", "^"):
            self._take()
            exponent = self.atom(depth) if self._sees("open") else _number(int(self._digit()))
        if self._sees("open"):
            argument = self.atom(depth)
        else:
            argument = self.power(depth)
            while self._sees("sym"):
                argument = _node("*", argument, self.power(depth))
        if exponent == _node("neg", _number(1)):
            return Expression(kind="fn", name=f"arc{name}", parts=(argument,))
        node = Expression(kind="fn", name=name, parts=(argument,))
        return node if exponent is None else _node("^", node, exponent)

    def number(self, token: Token, depth: int) -> Expression:
        """A number, or a mixed one: ``2½``, ``2\\frac{1}{2}``, ``2 1/2``."""
        node, name = _numeral(token.name), token.name
        if name[0] == "0" and name[1:2].isdigit():
            self.doubt = "a number that begins with 0"
        if node.places is not None or depth > MAX_DEPTH:
            return node
        if self._sees("frac"):
            return _node("mix", node, self.atom(depth))
        if self._sees("cmd", "frac"):
            fraction = self.atom(depth + 1)
            return _node("mix" if all(part.kind == "n" for part in fraction.parts) else "*", node, fraction)
        ahead = self.tokens[self.at : self.at + 3] if self._sees("num") else []
        if [token.kind for token in ahead] == ["num", "op", "num"] and ahead[1].name == "/":
            top, bottom = _numeral(ahead[0].name).value, _numeral(ahead[2].name).value
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
        return _number(int(self._digit()))

    def _digit(self) -> str:
        """The next digit, in TeX an argument without braces."""
        if not (self._sees("num") and self.tokens[self.at].name.isdigit()):
            raise _ParseError("a command without its argument")
        token = self.tokens[self.at]
        if len(token.name) == 1:
            self.at += 1
        else:
            self.tokens[self.at] = token._replace(name=token.name[1:], start=token.start + 1)
        return token.name[0]

    def _check(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _ParseError("nested too deeply")

    def _starts_factor(self, token: Token) -> bool:
        """Whether a factor follows without a sign; "x 5" and "(2) 5" are more likely two separate things."""
        previous = self.tokens[self.at - 1]
        if token.kind == "num":  # \frac{1}{5}24
            return previous.kind == "close" and previous.name == "}" and token.math
        return token.kind in ("sym", "open", "cmd", "func") and previous.kind != "op"

    def _sees(self, kind: str, *names: str) -> bool:
        token = self.tokens[self.at]
        return token.kind == kind and (not names or token.name in names)

    def _take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]


def leaves(node: Expression, kind: str) -> Iterator[Expression]:
    """All nodes of a kind: ``n``, ``s``, ``call``."""
    pending = [node]
    while pending:
        node = pending.pop()
        if node.kind == kind:
            yield node
        pending += node.parts[::-1]


def symbols(*nodes: Expression) -> set[str]:
    """Names of all letters, ``pi`` included."""
    return {leaf.name for node in nodes for leaf in leaves(node, "s")}


def count_nodes(node: Expression) -> int:
    """Nodes of a tree."""
    return 1 + sum(map(count_nodes, node.parts))
