"""A second reader of the lab's graphs: how many things people have, from the sentences alone."""

from __future__ import annotations

import operator
import re
from typing import NamedTuple

_NUMBER, _NAME = r"(\d+)", r"([A-Z][a-z]+)"
_WORDS = {
    "more than": (operator.add, operator.sub),
    "fewer than": (operator.sub, operator.add),
    "times as many as": (operator.mul, operator.truediv),
}


class Holding(NamedTuple):
    """What a person has, and the sentence from which it follows; empty where the text counts it."""

    value: int
    sentence: str


def read_people(text: str) -> dict[str, Holding]:
    """Everybody whose number follows: relations between two or three people, solved by substitution."""
    found: dict[str, Holding] = {}
    pairs, sums = [], []
    for sentence in re.split(r"(?<=[.?]) ", text):
        if match := re.fullmatch(rf"{_NAME} counts {_NUMBER} [a-z]+\.", sentence):
            found[match[1]] = Holding(int(match[2]), "")
        elif match := re.fullmatch(rf"{_NAME} has as many as {_NAME} and {_NAME} together\.", sentence):
            sums.append((*match.groups(), sentence))
        for words, (there, back) in _WORDS.items():
            pattern = rf"(?:For )?{_NAME} (?:has|there are) {_NUMBER} {words} (?:for )?{_NAME}\."
            if match := re.fullmatch(pattern, sentence):
                pairs.append((match[1], match[3], int(match[2]), there, back, sentence))
    for _ in range(10):
        for one, two, much, there, back, sentence in pairs:
            if two in found:
                found.setdefault(one, Holding(int(there(found[two].value, much)), sentence))
            if one in found:
                found.setdefault(two, Holding(int(back(found[one].value, much)), sentence))
        for total, one, two, sentence in sums:
            if {one, two} <= set(found):
                found.setdefault(total, Holding(found[one].value + found[two].value, sentence))
    return found


def solve_by_reading(text: str) -> int:
    """The answer to "How many … does … have?"."""
    asked = re.search(rf"How many [a-z]+ does {_NAME} have", text)
    assert asked
    return read_people(text)[asked[1]].value
