"""What the worker process does: mathematics by `math-verify`, whose parser and algebra may take any time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from surefoot.maths import print_number

_PARSED = 512
"""Parsed answers that the process remembers."""
_PLACES = 6
"""Decimal places to which numbers are compared, as `math-verify` compares decimals."""
_DIGITS = 30
"""Digits in which fingerprints are computed."""
_HUGE = 1e300
_NOTHING = 1e-20
"""What rounding leaves of an imaginary part that is zero."""


def load_mathematics() -> Callable[[dict[str, str]], bool | str]:
    """Task of the worker process: import math-verify; returns what answers a question.

    ``{"answer", "reference"}`` asks whether they are equal, ``{"answer"}`` for the answer's fingerprint,
    which equal answers share.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    from sympy import (
        And,
        Basic,
        Eq,
        Float,
        Interval,
        MatrixBase,
        N,
        Ne,
        Rational,
        Set,
        Symbol,
        Tuple,
        Union,
        nan,
        zoo,
    )
    from sympy.core.relational import Relational

    @lru_cache(maxsize=_PARSED)
    def read(text: str) -> list[Any]:
        # math-verify's time limits use SIGALRM, so they are off here: the parent process keeps the time.
        latex = text if "$" in text else f"${text}$"
        trees: list[Any] = parse(latex, extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
        if all(isinstance(item, str) for item in trees):
            # "2**10" is no LaTeX. This reader takes digits and arithmetic operators alone.
            trees = parse(text, extraction_config=[ExprExtractionConfig()], parsing_timeout=None) or trees
        return trees

    def number(tree: Any) -> Any:
        """The value of an expression without variables; ``None`` = it has some, or is none."""
        if not isinstance(tree, Basic) or isinstance(tree, (Relational, Set, Tuple)) or tree.free_symbols:
            return None
        value = N(tree.doit(), _DIGITS)
        return value if value.is_number and value.is_finite else None

    def chain(tree: Any) -> list[Any]:
        """The equations of "a = b = c"; none for anything else."""
        parts = list(getattr(tree, "_unsorted_args", None) or [tree])
        return parts if all(isinstance(part, Eq) for part in parts) else []

    def absurd(tree: Any) -> bool:
        """Whether it is an equation of numbers that are not equal: "0=18" is not 18."""
        sides = [(number(part.lhs), number(part.rhs)) for part in chain(tree)]
        return any(x is not None and y is not None and not near(x, y) for x, y in sides)

    def near(x: Any, y: Any) -> bool:
        return bool(abs(x - y) < 10**-_PLACES / 2)

    def solutions(tree: Any) -> Any:
        """The set that inequalities of one variable describe, or a set itself; ``None`` = anything else."""
        if isinstance(tree, Interval | Union):
            return tree
        parts = tree.args if isinstance(tree, And) else (tree,)
        inequalities = all(isinstance(part, Relational) and not isinstance(part, Eq | Ne) for part in parts)
        return tree.as_set() if inequalities and len(tree.free_symbols) == 1 else None

    def same_solutions(x: Any, y: Any) -> bool:
        """``0 <= x < 1`` is ``[0, 1)``, and ``1 > x >= 0``."""
        sets = solutions(x), solutions(y)
        variables = {symbol for tree in (x, y) for symbol in getattr(tree, "free_symbols", ())}
        return None not in sets and len(variables) == 1 and bool(sets[0] == sets[1])

    def compare(answer: str, reference: str) -> bool:
        gold, target = read(reference), read(answer)
        if any(absurd(tree) for tree in target):
            return False
        if verify(gold, target, timeout_seconds=None, raise_on_error=True):
            return True
        if any(same_solutions(x, y) for x in gold for y in target):
            return True
        # Decimals inside an expression: math-verify rounds only numbers that stand alone.
        return any(
            None not in (values := (number(x), number(y))) and near(*values)
            for x in gold
            for y in target
            if isinstance(x, Basic) and isinstance(y, Basic) and (x.has(Float) or y.has(Float))
        )

    def fingerprint(tree: Any) -> str:
        equations = chain(tree)
        if equations and (isinstance(equations[0].lhs, Symbol) or number(equations[0].lhs) is not None):
            return fingerprint(equations[-1].rhs)
        if isinstance(tree, Relational | And):
            interval = solutions(tree)
            if interval is not None:
                return fingerprint(interval)
            return f"relation of {sorted(map(str, tree.free_symbols))}"
        if isinstance(tree, (Interval, Tuple)) or (isinstance(tree, Set) and tree.is_FiniteSet):
            members = (tree.start, tree.end) if isinstance(tree, Interval) else tree.args
            prints = sorted(map(fingerprint, members))
            return prints[0] if len(set(prints)) == 1 else f"collection of {prints}"
        if isinstance(tree, MatrixBase):
            return f"matrix of {list(map(fingerprint, tree.flat()))}"
        if not isinstance(tree, Basic) or isinstance(tree, Set):
            return type(tree).__name__
        points = {symbol: Rational(_point(str(symbol))) for symbol in tree.free_symbols}
        value = N(tree.subs(points), _DIGITS)
        value = value if value.is_number else N(value.doit(), _DIGITS)
        if not value.is_number or value.is_infinite or value.has(nan, zoo):
            return str(value) if value.is_number else "expression"
        real, imaginary = value.as_real_imag()
        return _print(real) if abs(imaginary) < _NOTHING else f"{_print(real)} + {_print(imaginary)} i"

    def answer_question(question: dict[str, str]) -> bool | str:
        if "reference" in question:
            return compare(question["answer"], question["reference"])
        trees = [tree for tree in read(question["answer"]) if not isinstance(tree, str)]
        try:
            return fingerprint(trees[0]) if trees else "text"
        except (MemoryError, RecursionError):
            raise
        except Exception:  # sympy raises anything; such answers are compared with each other
            return "expression"

    # Fills the parser's tables, so that the first pair is not charged for them.
    compare("x+1", "1+x")
    return answer_question


def _print(number: Any) -> str:
    return print_number(Fraction(str(number))) if abs(number) < _HUGE else "huge"


def _point(name: str) -> Fraction:
    """The number at which a variable of this name is evaluated, between 0.5 and 2.5."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return Fraction(1, 2) + Fraction(int.from_bytes(digest, "big"), 2**31)
