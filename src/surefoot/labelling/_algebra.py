"""Task of the bounded process behind ``ArithmeticVerifier``: identities, decided by SymPy.

A question is two trees as nested lists, from ``surefoot.labelling._expression``. SymPy parses no text: its
objects are built from the trees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DIGITS = 50


def load_algebra() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Import SymPy; returns what compares ``left`` with ``right``.

    The answer's ``relation`` is ``identity`` (equal for all values), ``never`` (the difference is a number
    other than 0) or ``open``. ``values`` are both sides as decimals where neither has a letter.
    """
    import sympy

    operations: dict[str, Callable[..., Any]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b,
        "^": lambda a, b: a**b,
        "mix": lambda a, b: a + b,
        "neg": lambda a: -a,
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

    compare({"left": ["s", "x"], "right": ["+", ["s", "x"], ["n", "1/2"]]})  # makes it warm
    return compare
