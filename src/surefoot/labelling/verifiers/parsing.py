"""Text of a step into tokens of arithmetic, LaTeX and words, and tokens into trees. Nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from surefoot.labelling.verifiers.expressions import Expression
from surefoot.maths import LATEX_DIGITS, dollars_delimit, words

_SAME_LENGTH = str.maketrans("×✕·⋅∙÷∕⁄−–‒＝", "****" + "*" + "///" + "---" + "=")
_SUPERSCRIPTS = {"²": "2", "³": "3"}
_FRACTIONS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅙": "1/6", "⅛": "1/8"}

_TOKEN = re.compile(
    r"""
    (?P<delim>\\[\[\]()]|\$\$?)
  | (?P<break>\\\\(?:\[[^\]\n]{0,9}\])?|\n)
  | (?P<rows>\\(?:begin|end)\{(?:align|aligned|equation|gather|gathered|split|multline|eqnarray)\*?\})
  | (?P<skip>\\[,;:!\ \$]|\\(?:q?quad|left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])|[\s~&£€])
  | (?P<num>"""
    + LATEX_DIGITS
    + r""")
  | (?P<text>\\(?:text|mbox|mathrm|textbf|mathbf|textit)\s?\{(?P<words>[^{}]*)\})
  | (?P<percent>\\?%)
  | (?P<degree>\^\s?\{?\s?\\circ\s?\}?|°)
  | (?P<command>\\[a-zA-Z]+)
  | (?P<dots>\.\.+|…)
  | (?P<bold>(?<![\w)\]}])\*\*(?=\S)|(?<=\S)\*\*(?![\w(]))
  | (?P<op>\*\*|[-+*/^])
  | (?P<rel>!=|<=|>=|=>|->|:=|[<>≤≥≠≈→⇒∼]|=\?)
  | (?P<eq>==?)
  | (?P<sup>[²³])
  | (?P<frac>[½⅓⅔¼¾⅕⅙⅛])
  | (?P<open>[(\[{])
  | (?P<close>[)\]}])
  | (?P<fact>!)
  | (?P<sub>[^\W\d_]_(?:\{[A-Za-z0-9]{1,8}\}|[A-Za-z0-9]))
  | (?P<word>[^\W\d_]{2,}(?:[-'’][^\W\d_]+)*|[^\W\d_])
  | (?P<punct>[,;.:?"“”])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


_CONJUNCTIONS = words(
    """because so and then is are was were which that this thus therefore since or but if as when while
    where hence giving gives equals means for to from in on at with by"""
)
"""After a number, these are no unit."""

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


def tokenize(text: str) -> list[Token]:
    """Tokens of ``text``; white space, currency and LaTeX's spacing are left out.

    Kinds: num, frac (½), op, open, close, cmd (frac, sqrt, binom, boxed), sym (a letter), post (``%``,
    ``!``, a superscript), of, unit, eq, rel (other relations), word, bound (punctuation), break (line),
    delim (of LaTeX) and opaque (what cannot be read).
    """
    return _resolve(list(_raw(text.translate(_SAME_LENGTH))))


def _raw(text: str) -> Iterator[Token]:
    dollars = dollars_delimit(text)
    latex = dollars or "\\(" in text or "\\[" in text
    inside = False
    last_number = -1
    for match in _TOKEN.finditer(text):
        kind, raw, start, end = match.lastgroup or "other", match.group(), match.start(), match.end()
        if match["text"] is not None:
            kind = "text"
        name = raw
        match kind:
            case "skip":
                continue
            case "delim":
                if raw.startswith("$") and not dollars:
                    continue  # currency
                inside = raw in ("\\(", "\\[") or (raw.startswith("$") and not inside)
            case "rows":
                kind = "break"
            case "num":
                name = re.sub(r"[,{}\\!]", "", raw)
                if len(name) > MAX_DIGITS or start == last_number:
                    kind = "opaque"  # 1.2.3
                last_number = end
            case "text":
                name = match["words"].strip()
                kind = "opaque" if len(name) < 2 else "word"  # \mathbf{v} is a vector
            case "percent" | "sup" | "fact":
                kind, name = "post", "%" if kind == "percent" else _SUPERSCRIPTS.get(raw, raw)
            case "degree":
                kind, name = "unit", "degree"
            case "command":
                kind, name = _command(raw[1:])
            case "dots" | "other":
                kind = "opaque"
            case "bold":
                continue
            case "op":
                name = "^" if raw == "**" else raw
            case "frac":
                name = _FRACTIONS[raw]
            case "sub":
                kind = "sym" if inside or not latex else "word"
            case "word":
                if inside and raw.isascii():
                    for place, letter in enumerate(raw):
                        if letter.isalpha():
                            yield Token("sym", letter, start + place, start + place + 1, True)
                        else:
                            yield Token("opaque", letter, start + place, start + place + 1, True)
                    continue
                if raw == "π":
                    kind, name = "sym", "pi"
                elif len(raw) == 1 and not raw.isascii():
                    kind = "opaque"
                elif len(raw) == 1 and not latex:
                    kind = "letter"
                elif start == last_number and raw in ("st", "nd", "rd", "th"):
                    kind = "opaque"  # "1st - 5"
            case "punct":
                tight = start == last_number and text[end : end + 1].isdigit()
                kind = "opaque" if tight and raw in ",:." else "bound"
                if raw == "." and text[max(0, start - 4) : start].rstrip().endswith(("+", "-", "*", "/")):
                    kind = "opaque"  # "3 + . 84"
        yield Token(kind, name, start, end, inside)


def _command(name: str) -> tuple[str, str]:
    if name in _OPERATORS:
        return "op", _OPERATORS[name]
    if name in _COMMANDS:
        return "cmd", _COMMANDS[name]
    if name in _RELATIONS:
        return "rel", name
    return ("sym", name) if name in _GREEK else ("opaque", name)


def _resolve(tokens: list[Token]) -> list[Token]:
    """Settle what depends on the neighbours: ``x`` for times, units, ``of``, spoken operators, letters."""
    done: list[Token] = []
    for index, token in enumerate(tokens):
        before = done[-1] if done else None
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.kind == "letter":
            token = token._replace(kind=_letter(token, before, after))
            if token.kind == "op":
                token = token._replace(name="*")
        elif token.kind == "word" and before is not None and after is not None:
            token = _word(token, before, after, tokens[index + 1 : index + 5])
        if token.kind == "unit" and before is not None and before.kind == "op" and before.name == "/":
            done.pop()  # "10 dollars/hour"
        done.append(token)
    return done


def _letter(token: Token, before: Token | None, after: Token | None) -> str:
    tight_before = before is not None and before.end == token.start and before.kind in _ENDS_OPERAND
    tight_after = (
        after is not None and after.start == token.end and after.kind in ("open", "num", "letter", "sup")
    )
    if token.name in "xX" and before is not None and after is not None and before.kind in _ENDS_OPERAND:
        spaced = before.end < token.start and after.start > token.end
        if before.kind != "sym" and (after.kind == "num" or (after.kind == "open" and spaced)):
            return "op"
    beside = ("op", "eq")
    if tight_before or tight_after or (before is not None and before.kind in beside):
        return "sym"
    if after is not None and (after.kind in beside or (after.kind == "post" and after.start == token.end)):
        return "sym"
    return "word"


def _word(token: Token, before: Token, after: Token, ahead: list[Token]) -> Token:
    word = token.name.casefold()
    if word in _SPOKEN and before.kind in _ENDS_OPERAND and after.kind in _STARTS_OPERAND:
        return token._replace(kind="op", name=_SPOKEN[word])
    if (
        word == "of"
        and after.kind in ("num", "open")
        and (before.kind in ("post", "frac") or before.kind == "num")
    ):
        return token._replace(kind="of", name="of")
    if word in ("equals", "equal") and before.kind in _ENDS_OPERAND and after.kind in _STARTS_OPERAND:
        return token._replace(kind="eq", name="=")
    if before.kind == "op" and before.name == "/":
        return token._replace(kind="unit", name=word)
    if before.kind in ("num", "close", "post", "unit", "frac"):
        # "5 red apples *": at most three words, then an operator, an equals sign or a closing bracket
        if word in _CONJUNCTIONS:
            return token
        for number, coming in enumerate(ahead):
            times = coming.name in ("x", "X") and number + 1 < len(ahead)
            if times and ahead[number + 1].kind in ("num", "open"):
                return token._replace(kind="unit", name=word)
            if coming.kind in ("op", "eq", "rel", "close"):
                return token._replace(kind="unit", name=word)
            if coming.kind != "word":
                break
    return token


MAX_TOKENS = 200
"""Longest side of an equation; bounds the depth of its tree, too."""
MAX_DEPTH = 40
MAX_DIGITS = 300


class Token(NamedTuple):
    """``name`` is the canonical form (``*`` for a LaTeX times) of ``text[start:end]``."""

    kind: str
    name: str
    start: int
    end: int
    math: bool
    """Inside LaTeX delimiters."""


class ParseError(ValueError):
    """These tokens are no expression that can be read without doubt."""


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A tree, and whether its reading rests on a rule that writers often break."""

    tree: Expression
    doubt: str | None
    """E.g. ``1/2x``, ``-3^2``, ``50 + 20%``."""


def parse(tokens: Sequence[Token]) -> Parsed:
    """Tree of one side of an equation. Raises ``ParseError``."""
    if not tokens:
        raise ParseError("nothing there")
    if len(tokens) > MAX_TOKENS:
        raise ParseError(f"more than {MAX_TOKENS} tokens")
    parser = _Parser(tokens)
    tree = parser.sum(0)
    if parser.at < len(parser.tokens):
        raise ParseError(f"cannot read on at {parser.tokens[parser.at].name!r}")
    return Parsed(tree=tree, doubt=parser.doubt)


_CLOSING = {"(": ")", "[": "]", "{": "}"}
_FUNCTION_NAMES = frozenset("fghpqFGHPQETNSC")
"""A letter before a bracket that is more often a function than a factor."""


class _Parser:
    """Recursive descent over ``+ -``, then ``* /`` and juxtaposition, then signs, then powers."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = [token for token in tokens if token.kind != "unit"]
        self.at = 0
        self.doubt: str | None = None

    def sum(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise ParseError("nested too deeply")
        node = self.product(depth)
        while self._sees("op", "+", "-"):
            operator = self._take().name
            right = self.product(depth)
            if (node.kind == "%") != (right.kind == "%"):
                self.doubt = "a percentage added to a number"
            node = Expression(kind=operator, parts=(node, right))
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
                node = Expression(kind=operator, parts=(node, self.signed(depth)))
            elif self._sees("of"):
                self._take()
                if len(self.tokens) > 6:
                    self.doubt = "'of' beside other operations"
                node = Expression(kind="*", parts=(node, self.signed(depth)))
            elif self._starts_factor():
                if divided:
                    self.doubt = "a division followed by a factor without a sign"
                node = Expression(kind="*", parts=(node, self.power(depth)))
            else:
                return node

    def signed(self, depth: int) -> Expression:
        if self._sees("op", "-", "+"):
            if depth > MAX_DEPTH:
                raise ParseError("nested too deeply")
            negative = self._take().name == "-"
            node = self.signed(depth + 1)
            if negative and node.kind == "^":
                self.doubt = "the sign of a power"
            return Expression(kind="neg", parts=(node,)) if negative else node
        return self.power(depth)

    def power(self, depth: int) -> Expression:
        node = self.postfix(depth)
        if self._sees("op", "^"):
            self._take()
            exponent = self.signed_exponent(depth + 1)
            node = Expression(kind="^", parts=(node, exponent))
        return node

    def signed_exponent(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise ParseError("nested too deeply")
        if self._sees("op", "-"):
            self._take()
            return Expression(kind="neg", parts=(self.signed_exponent(depth + 1),))
        return self.power(depth)

    def postfix(self, depth: int) -> Expression:
        node = self.atom(depth)
        while self._sees("post"):
            token = self._take()
            if token.name in ("%", "!"):
                node = Expression(kind=token.name, parts=(node,))
            else:  # a superscript digit
                node = Expression(
                    kind="^", parts=(node, Expression(kind="n", value=Fraction(int(token.name))))
                )
        return node

    def atom(self, depth: int) -> Expression:
        if self.at >= len(self.tokens):
            raise ParseError("it ends too early")
        token = self._take()
        match token.kind:
            case "num":
                return self.number(token, depth)
            case "sym":
                if token.name in _FUNCTION_NAMES and self._sees("open", "(", "["):
                    raise ParseError(f"{token.name} may be a function")
                return Expression(kind="s", name=token.name)
            case "open":
                node = self.sum(depth + 1)
                self._close(token.name)
                return node
            case "cmd":
                return self.command(token.name, depth + 1)
            case "frac":  # one character, such as ½
                top, bottom = token.name.split("/")
                return Expression(kind="n", value=Fraction(int(top), int(bottom)))
        raise ParseError(f"cannot read {token.name!r}")

    def number(self, token: Token, depth: int) -> Expression:
        whole, point, digits = token.name.partition(".")
        node = Expression(kind="n", value=Fraction(token.name), places=len(digits) if point else None)
        if len(whole) > 1 and whole[0] == "0":
            self.doubt = "a number that begins with 0"
        if point or depth > MAX_DEPTH:
            return node
        if self._sees("frac"):
            return Expression(kind="mix", parts=(node, self.atom(depth)))
        if self._sees("cmd", "frac"):
            fraction = self.atom(depth + 1)
            if all(part.kind == "n" for part in fraction.parts):
                return Expression(kind="mix", parts=(node, fraction))
            return Expression(kind="*", parts=(node, fraction))
        ahead = self.tokens[self.at : self.at + 3]
        if [t.kind for t in ahead] == ["num", "op", "num"] and ahead[1].name == "/" and whole:
            top, bottom = Fraction(ahead[0].name), Fraction(ahead[2].name)
            if ahead[0].start > token.end and 0 < top < bottom and top.denominator == bottom.denominator == 1:
                self.at += 3
                return Expression(kind="mix", parts=(node, Expression(kind="n", value=top / bottom)))
        return node

    def command(self, name: str, depth: int) -> Expression:
        match name:
            case "frac":
                return Expression(kind="/", parts=(self.argument(depth), self.argument(depth)))
            case "binom":
                return Expression(kind="C", parts=(self.argument(depth), self.argument(depth)))
            case "boxed":
                return self.argument(depth)
            case "sqrt":
                index = Expression(kind="n", value=Fraction(2))
                if self._sees("open", "["):
                    index = self.atom(depth)
                return Expression(kind="sqrt", parts=(self.argument(depth), index))
        raise ParseError(f"cannot read {name!r}")

    def argument(self, depth: int) -> Expression:
        """``{...}``, or as TeX has it, the next single character."""
        if self._sees("open", "{", "("):
            return self.atom(depth)
        if self._sees("num") and self.tokens[self.at].name.isdigit():
            token = self.tokens[self.at]
            if len(token.name) == 1:
                self.at += 1
            else:
                self.tokens[self.at] = token._replace(name=token.name[1:], start=token.start + 1)
            return Expression(kind="n", value=Fraction(int(token.name[0])))
        if self._sees("sym"):
            return self.atom(depth)
        raise ParseError("a command without its argument")

    def _starts_factor(self) -> bool:
        if self.at >= len(self.tokens):
            return False
        before, token = self.tokens[self.at - 1], self.tokens[self.at]
        if token.kind in ("num", "frac"):
            # "x 5" and "(2) 5" are more likely two things side by side
            return False
        return token.kind in ("sym", "open", "cmd") and before.kind != "op"

    def _sees(self, kind: str, *names: str) -> bool:
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return token.kind == kind and (not names or token.name in names)

    def _take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def _close(self, opening: str) -> None:
        if not self._sees("close", _CLOSING[opening]):
            raise ParseError("brackets do not match")
        self._take()
