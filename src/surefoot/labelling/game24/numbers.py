"""The numbers of a game: what they can make, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import permutations

TARGET = 24

Numbers = tuple[Fraction, ...]

_FOUR = re.compile(r"(?<![0-9.])([0-9]{1,4})" + r"[,\s]+(?:and\s+)?([0-9]{1,4})" * 3 + r"(?![0-9.])")


@lru_cache(maxsize=200_000)
def reachable(numbers: Numbers, target: int = TARGET) -> bool:
    """Whether ``numbers``, each used exactly once, can make ``target``. Give them sorted."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            rest = numbers[:i] + numbers[i + 1 : j] + numbers[j + 1 :]
            if any(reachable(tuple(sorted((*rest, made))), target) for made in _made(numbers[i], numbers[j])):
                return True
    return False


def _made(a: Fraction, b: Fraction) -> set[Fraction]:
    made = {a + b, a - b, b - a, a * b}
    if b:
        made.add(a / b)
    if a:
        made.add(b / a)
    return made


def problem_numbers(text: str) -> Numbers | None:
    """The four numbers of a problem, sorted; ``None`` unless its text has exactly one such row."""
    rows = list(_FOUR.finditer(text))
    return tuple(sorted(Fraction(digits) for digits in rows[0].groups())) if len(rows) == 1 else None


def stated_numbers(shown: Sequence[str] | None) -> Numbers | None:
    """Numbers left as a trace writes them, sorted; ``None`` = it does not, or they are no numbers."""
    if shown is None or not 0 < len(shown) <= 4:
        return None
    try:
        return tuple(sorted(Fraction(number) for number in shown))
    except (ValueError, ZeroDivisionError):
        return None


def same_numbers(shown: Sequence[str], numbers: Numbers) -> bool:
    """Whether each of ``shown`` stands for one of ``numbers``, and each of these is there."""
    return len(shown) == len(numbers) and any(
        all(stands_for(one, other) for one, other in zip(shown, order, strict=True))
        for order in set(permutations(numbers))
    )


def stands_for(shown: str, exact: Fraction) -> bool:
    """Whether ``exact`` may be written as ``shown``, which is rounded if it has two decimals or more."""
    try:
        number = Fraction(shown)
    except (ValueError, ZeroDivisionError):  # "1/2/3", "1/0"
        return False
    return number == exact or (
        not is_exact(shown) and abs(number - exact) < Fraction(1, 10 ** len(shown.partition(".")[2]))
    )


def is_exact(shown: str) -> bool:
    """Whether a number as written leaves no room for rounding."""
    return len(shown.partition(".")[2]) < 2


def listed(numbers: Sequence[Fraction]) -> str:
    """The numbers as a trace would write them."""
    return " ".join(str(number) for number in numbers)
