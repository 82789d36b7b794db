"""Claims in words about whole numbers: congruences, primes, divisibility."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import isqrt
from typing import NamedTuple

MAX_NUMBER = 10**9
"""Claims about larger numbers are not checked."""
_NUMBER = r"\$?(-?[0-9][0-9,]{0,12})\$?"
_END = (
    r"(?![\w^*/!($]|\.[0-9]|,[0-9]|\s*(?:[-+*/^=%]|\\|times|plus|minus|divided|and|percent|hundred|thousand|"
    r"million|of|squared|or|mod|dozen|more|less))"
)
_PROPERTY = re.compile(
    rf"(?<![\w.^/*+\-=}},]){_NUMBER} is (not |also )?(a prime(?: number)?|prime|composite|even|odd|"
    rf"a perfect square|divisible by {_NUMBER}|a multiple of {_NUMBER}|a (?:factor|divisor) of {_NUMBER})"
    rf"(?! (?:and|or|factor|times)){_END}",
    re.IGNORECASE,
)
_CONGRUENCE = re.compile(
    r"(?<![\w^+*/}\-)])(-?[0-9]{1,9})\s*(?:\\equiv|≡)\s*(-?[0-9]{1,9})\s*"
    r"(?:\\?\(\s*\\?mod|\\pmod|\\mod|\\bmod|\(mod)\s*\{?\s*([0-9]{1,9})"
)
_PART_OF_MORE = re.compile(
    r"(?:[-+*/^({=]|\\\w+|\b(?:of|times|plus|minus|and|by|than|to|or|that|whether|digit|sum|if|through)|[0-9])"
    r"\s*\$?\s*$"
)
"""Before a number: it may be the end of an expression, or the claim a condition."""
_OPERATOR = re.compile(r"(?:[-+*/^({=]|\\\w+)\s*$")
_MAYBE = re.compile(
    r"\?|\bif\b|suppose|assum|whether|\bnot all|n't\b|contradict|\bcommon\b|\bsome\b|\bother\b|\bbase\b|"
    r"probability|random",
    re.IGNORECASE,
)


class NumberClaim(NamedTuple):
    """A claim of a step that can be decided."""

    text: str
    holds: bool
    reason: str


def check_claims(text: str) -> Iterator[NumberClaim]:
    """The claims of one step; a false one counts only if the step does not suppose or ask."""
    for claim in (*_properties(text), *_congruences(text)):
        if claim.holds or not _MAYBE.search(text):
            yield claim


def _properties(text: str) -> Iterator[NumberClaim]:
    for match in _PROPERTY.finditer(text) if " is " in text else ():
        if _PART_OF_MORE.search(text[max(0, match.start() - 14) : match.start()]):
            continue
        number = _whole(match[1])
        other = next((_whole(group) for group in match.groups()[3:] if group), 1)
        if max(abs(number), abs(other)) > MAX_NUMBER:
            continue
        negated = (match[2] or "").casefold() == "not "
        name = match[3].casefold().removeprefix("a ").split(" ")[0]
        holds = _PROPERTIES[name](number, other) != negated
        yield NumberClaim(
            match.group(), holds, "true" if holds else f"{match[1]} is {'' if negated else 'not '}{match[3]}"
        )


def _congruences(text: str) -> Iterator[NumberClaim]:
    for match in _CONGRUENCE.finditer(text) if "≡" in text or "equiv" in text else ():
        a, b, modulus = (int(group) for group in match.groups())
        if modulus and not _OPERATOR.search(text[max(0, match.start() - 14) : match.start()]):
            holds = (a - b) % modulus == 0
            yield NumberClaim(match.group(), holds, f"{a} leaves {a % modulus} modulo {modulus}")


def _whole(digits: str) -> int:
    return int(digits.replace(",", ""))


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, isqrt(number) + 1))


_PROPERTIES: dict[str, Callable[[int, int], bool]] = {
    "prime": lambda n, _: _is_prime(n),
    "composite": lambda n, _: n > 1 and not _is_prime(n),
    "even": lambda n, _: n % 2 == 0,
    "odd": lambda n, _: n % 2 == 1,
    "perfect": lambda n, _: n >= 0 and isqrt(n) ** 2 == n,
    "divisible": lambda n, k: k != 0 and n % k == 0,
    "multiple": lambda n, k: k != 0 and n % k == 0,
    "factor": lambda n, k: n != 0 and k % n == 0,
    "divisor": lambda n, k: n != 0 and k % n == 0,
}
