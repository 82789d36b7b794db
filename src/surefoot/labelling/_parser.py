"""Tokens of arithmetic and algebra into trees. Nothing is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from surefoot.labelling._expression import Node

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

    tree: Node
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

    def sum(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise ParseError("nested too deeply")
        node = self.product(depth)
        while self._sees("op", "+", "-"):
            operator = self._take().name
            right = self.product(depth)
            if (node.kind == "%") != (right.kind == "%"):
                self.doubt = "a percentage added to a number"
            node = Node(kind=operator, parts=(node, right))
        return node

    def product(self, depth: int) -> Node:
        node = self.signed(depth)
        divided = False
        while True:
            if self._sees("op", "*", "/"):
                operator = self._take().name
                if divided and operator == "/":
                    self.doubt = "a division after a division"
                divided = operator == "/"
                node = Node(kind=operator, parts=(node, self.signed(depth)))
            elif self._sees("of"):
                self._take()
                if len(self.tokens) > 6:
                    self.doubt = "'of' beside other operations"
                node = Node(kind="*", parts=(node, self.signed(depth)))
            elif self._starts_factor():
                if divided:
                    self.doubt = "a division followed by a factor without a sign"
                node = Node(kind="*", parts=(node, self.power(depth)))
            else:
                return node

    def signed(self, depth: int) -> Node:
        if self._sees("op", "-", "+"):
            if depth > MAX_DEPTH:
                raise ParseError("nested too deeply")
            negative = self._take().name == "-"
            node = self.signed(depth + 1)
            if negative and node.kind == "^":
                self.doubt = "the sign of a power"
            return Node(kind="neg", parts=(node,)) if negative else node
        return self.power(depth)

    def power(self, depth: int) -> Node:
        node = self.postfix(depth)
        if self._sees("op", "^"):
            self._take()
            exponent = self.signed_exponent(depth + 1)
            node = Node(kind="^", parts=(node, exponent))
        return node

    def signed_exponent(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise ParseError("nested too deeply")
        if self._sees("op", "-"):
            self._take()
            return Node(kind="neg", parts=(self.signed_exponent(depth + 1),))
        return self.power(depth)

    def postfix(self, depth: int) -> Node:
        node = self.atom(depth)
        while self._sees("post"):
            token = self._take()
            if token.name in ("%", "!"):
                node = Node(kind=token.name, parts=(node,))
            else:  # a superscript digit
                node = Node(kind="^", parts=(node, Node(kind="n", value=Fraction(int(token.name)))))
        return node

    def atom(self, depth: int) -> Node:
        if self.at >= len(self.tokens):
            raise ParseError("it ends too early")
        token = self._take()
        match token.kind:
            case "num":
                return self.number(token, depth)
            case "sym":
                if token.name in _FUNCTION_NAMES and self._sees("open", "(", "["):
                    raise ParseError(f"{token.name} may be a function")
                return Node(kind="s", name=token.name)
            case "open":
                node = self.sum(depth + 1)
                self._close(token.name)
                return node
            case "cmd":
                return self.command(token.name, depth + 1)
            case "frac":  # one character, such as ½
                top, bottom = token.name.split("/")
                return Node(kind="n", value=Fraction(int(top), int(bottom)))
        raise ParseError(f"cannot read {token.name!r}")

    def number(self, token: Token, depth: int) -> Node:
        whole, point, digits = token.name.partition(".")
        node = Node(kind="n", value=Fraction(token.name), places=len(digits) if point else None)
        if len(whole) > 1 and whole[0] == "0":
            self.doubt = "a number that begins with 0"
        if point or depth > MAX_DEPTH:
            return node
        if self._sees("frac"):
            return Node(kind="mix", parts=(node, self.atom(depth)))
        if self._sees("cmd", "frac"):
            fraction = self.atom(depth + 1)
            if all(part.kind == "n" for part in fraction.parts):
                return Node(kind="mix", parts=(node, fraction))
            return Node(kind="*", parts=(node, fraction))
        ahead = self.tokens[self.at : self.at + 3]
        if [t.kind for t in ahead] == ["num", "op", "num"] and ahead[1].name == "/" and whole:
            top, bottom = Fraction(ahead[0].name), Fraction(ahead[2].name)
            if ahead[0].start > token.end and 0 < top < bottom and top.denominator == bottom.denominator == 1:
                self.at += 3
                return Node(kind="mix", parts=(node, Node(kind="n", value=top / bottom)))
        return node

    def command(self, name: str, depth: int) -> Node:
        match name:
            case "frac":
                return Node(kind="/", parts=(self.argument(depth), self.argument(depth)))
            case "binom":
                return Node(kind="C", parts=(self.argument(depth), self.argument(depth)))
            case "boxed":
                return self.argument(depth)
            case "sqrt":
                index = Node(kind="n", value=Fraction(2))
                if self._sees("open", "["):
                    index = self.atom(depth)
                return Node(kind="sqrt", parts=(self.argument(depth), index))
        raise ParseError(f"cannot read {name!r}")

    def argument(self, depth: int) -> Node:
        """``{...}``, or as TeX has it, the next single character."""
        if self._sees("open", "{", "("):
            return self.atom(depth)
        if self._sees("num") and self.tokens[self.at].name.isdigit():
            token = self.tokens[self.at]
            if len(token.name) == 1:
                self.at += 1
            else:
                self.tokens[self.at] = token._replace(name=token.name[1:], start=token.start + 1)
            return Node(kind="n", value=Fraction(int(token.name[0])))
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
