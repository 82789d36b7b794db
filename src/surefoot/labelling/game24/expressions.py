"""Expressions in moves and answers: which numbers they take, and what they make."""

from __future__ import annotations

import re
from fractions import Fraction

from surefoot.labelling._expression import Node, Reading, value
from surefoot.labelling._parser import ParseError, parse
from surefoot.labelling._tokens import tokenize

NUMBER = r"-?(?:[0-9]{1,9}/[0-9]{1,9}|[0-9]{1,9}(?:\.[0-9]{1,9})?)"
BINARY = re.compile(rf"({NUMBER})\s+([-+*/])\s+({NUMBER})")


def evaluate(expression: str) -> tuple[list[str], Fraction]:
    """Numbers used, as written, and the value."""
    plain = expression.replace("×", "*").replace("÷", "/").replace("−", "-")
    if binary := BINARY.fullmatch(plain):
        one, other = Fraction(binary[1]), Fraction(binary[3])
        return [binary[1], binary[3]], operate(one, binary[2], other)
    tree = expression_tree(plain)
    return [str(number) for number in leaves(tree)], value(tree, Reading())


def operate(one: Fraction, operator: str, other: Fraction) -> Fraction:
    """``one operator other``. Raises ``ZeroDivisionError``."""
    match operator:
        case "+":
            return one + other
        case "-":
            return one - other
        case "*":
            return one * other
    return one / other


def expression_tree(text: str) -> Node:
    """Read an expression of numbers and ``+ - * /`` alone. Raises ``ParseError``."""
    tree = parse(tokenize(text)).tree
    pending = [tree]
    while pending:
        node = pending.pop()
        negative_number = node.kind == "neg" and node.parts[0].kind == "n"
        if node.kind not in ("n", "+", "-", "*", "/") and not negative_number:
            raise ParseError(f"only + - * / are allowed, not {node.kind!r}")
        pending += [] if negative_number else node.parts
    return tree


def leaves(node: Node) -> list[Fraction]:
    """The numbers in an expression, in order."""
    if node.kind in ("n", "neg"):
        return [value(node, Reading())]
    return [number for part in node.parts for number in leaves(part)]
