"""Where the arguments of a call come from: the user, the instructions, the tools, or earlier results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, permutations
from typing import Any, Final, Literal

from surefoot.labelling.verifiers.claims import stems_of_name

_PART: Final = re.compile(r"[^\W_]+")
_FIELD: Final = re.compile(r'"(\w{1,64})": ?"?([\w-]{0,64}\d{3}[\w-]{0,64})', re.ASCII)
_DIGITS: Final = re.compile(r"\d+", re.ASCII)
_SPACED: Final = re.compile(r"\d[\d ().-]{5,20}\d", re.ASCII)
"""Digits in groups, as of telephone numbers, cards and accounts."""
_NUMBER: Final = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)(?:\d{1,3}(?:[,.' ]\d{3})+(?:[.,]\d{1,2})?(?!\d)|\d+(?:[.,]\d+)?)", re.ASCII
)
_MULTIPLES: Final = re.compile(r"\d ?k\b|\b(?:hundred|thousand|million|dozen|half|double|twice|percent)\b|%")
_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ].*)?", re.ASCII)
_RELATIVE: Final = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|now|(?:next|last|this|in|past|coming) \w+|\w+day|week\w*|month\w*"
    r"|days?|years?)\b"
)
_ID: Final = re.compile(r"(?:^|_)(?:ids?|uuid|number|reference|account|iban|card|sku|isbn)$")
_OWN: Final = re.compile(
    r"(?:^|_)(?:idempotency|request|correlation|session|trace|client|thread|task|run|step|page|line|house|seat)_"
)
"""Names of ids and numbers that an agent chooses."""
_AMOUNT: Final = re.compile(r"(?:^|_)(?:amount|price|total|sum|cost|fee|payment|balance|limit_amount)(?:_|$)")
_PATH: Final = re.compile(r"(?:^|_)(?:path|file|filename|directory|folder|source|src)$")
_DESTROYS: Final = {"delet", "remov", "rm", "mov", "renam", "rmdir", "unlink"}
_FACTORS: Final = (1, 2, 3, 4, 12, 1 / 2, 1 / 3, 1 / 4, 1 / 12)
_CENT: Final = 0.006
_VALUES: Final = 200
"""Values of one call that are looked up."""
_SMALL, _SHORT, _MOST = 20, 1000, 40
"""Amounts up to here may be counted, integers below here may be places in a list; numbers that arithmetic
combines."""


@dataclass
class Provenance:
    """What a run has shown so far."""

    parts: set[str] = field(default_factory=set)
    digits: set[str] = field(default_factory=set)
    numbers: dict[float, None] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    """Texts of people, in lower case."""
    multiplies: bool = False
    """A person speaks of thousands, shares and the like, so amounts cannot be followed."""
    forms: set[tuple[str, str]] = field(default_factory=set)
    """Names and forms of the identifiers in results."""
    scrambled: set[str] = field(default_factory=set)
    """Digits of identifiers and numbers, in order of size."""

    def add(self, text: str, by: Literal["person", "tool", "call"] = "call") -> None:
        """Take in the text of a message, or the arguments or the schema of a call."""
        lower = text.lower()
        self.parts.update(_PART.findall(lower))
        self.digits.update(run.lstrip("0") for run in _DIGITS.findall(text))
        self.digits.update("".join(_DIGITS.findall(group)).lstrip("0") for group in _SPACED.findall(text))
        self.numbers.update(dict.fromkeys(map(_number, _NUMBER.findall(text))))
        self.scrambled.update("".join(sorted(run)) for run in _DIGITS.findall(text) if len(run) > 3)
        if by == "person":
            self.words.append(lower)
            self.multiplies |= _MULTIPLES.search(lower) is not None
        elif by == "tool":
            self.forms.update((name.lower(), _form(value)) for name, value in _FIELD.findall(text))

    def unknown(self, tool: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        """``name value`` of each argument of a call that nothing has shown, and whether that is a fault.

        It is one if results have shown other values of this name and form, if the digits are a known one's
        in another order, if an amount is ten times or a tenth of a known one, or if a path is deleted.
        What is left may be known from elsewhere, or computed.
        """
        for name, value in islice(_leaves("", arguments), _VALUES):
            if isinstance(value, bool) or _OWN.search(name):
                continue
            if self._is_unknown(tool, name, value):
                yield f"{name} {str(value)[:80]}", self._is_fault(name, str(value))

    def _is_fault(self, name: str, value: str) -> bool:
        if _DATE.fullmatch(value):
            return False
        if _AMOUNT.search(name):
            amount = abs(float(value))
            return any(
                abs(factor * amount - number) < _CENT for number in self.numbers for factor in (10, 0.1)
            )
        if _PATH.search(name) or (name, _form(value)) in self.forms:
            return True
        return any("".join(sorted(run)) in self.scrambled for run in _DIGITS.findall(value) if len(run) > 3)

    def _is_unknown(self, tool: str, name: str, value: object) -> bool:
        if isinstance(value, str) and (date := _DATE.fullmatch(value)):
            return not self._knows_date(date)
        if _AMOUNT.search(name) and isinstance(value, int | float):
            return abs(value) > _SMALL and not self._computes(abs(float(value)))
        if isinstance(value, str) and _PATH.search(name):
            last = value.rstrip("/").rpartition("/")[2].lower()
            destroys = _DESTROYS & set(stems_of_name(tool))
            return bool(destroys) and not self.parts.issuperset(_PART.findall(last))
        if not _ID.search(name) or isinstance(value, float):
            return False
        if isinstance(value, int):
            return abs(value) >= _SHORT and not self._knows_id(str(abs(value)))
        return isinstance(value, str) and len(value) <= 64 and " " not in value and not self._knows_id(value)

    def _knows_id(self, value: str) -> bool:
        """Whether each part of an identifier that has a digit has been shown, or its digits have."""
        parts = [part for part in _PART.findall(value.lower()) if _DIGITS.search(part)]
        digits = "".join(_DIGITS.findall(value)).lstrip("0")
        if digits in self.digits or any(len(end) > 6 and digits.endswith(end) for end in self.digits):
            return True
        return all(
            part in self.parts
            or all(len(run) >= 3 and run.lstrip("0") in self.digits for run in _DIGITS.findall(part))
            for part in parts
        )

    def _knows_date(self, date: re.Match[str]) -> bool:
        """Whether its day of the month has been shown, or a person speaks of time in relation to now."""
        day = date[3].lstrip("0")
        return day in self.digits or any(
            _RELATIVE.search(words) or re.search(rf"\b{day}(?:st|nd|rd|th)\b", words) for words in self.words
        )

    def _computes(self, amount: float) -> bool:
        """Whether an amount has been shown, or is a sum, difference, product or quotient of two that have."""
        if self.multiplies or len(self.numbers) > _MOST:
            return True

        def equal(*values: float) -> bool:
            return any(abs(value - amount) < _CENT for value in values)

        return (
            any(equal(*(factor * a for factor in _FACTORS)) for a in self.numbers)
            or equal(sum(self.numbers))
            or any(
                equal(
                    a * b,
                    b and a / b,
                    *(b + sign * factor * a for factor in (1, 2, 3, 4) for sign in (1, -1)),
                )
                for a, b in permutations(self.numbers, 2)
            )
        )


def _form(text: str) -> str:
    """Letters and digits of an identifier by kind: ``CD-7718`` becomes ``aa-0000``."""
    return re.sub(r"[A-Za-z]", "a", re.sub(r"\d", "0", text))


def _number(text: str) -> float:
    """A number with separators of thousands in either style."""
    *groups, last = re.split(r"[,.' ]", text)
    if not groups:
        return float(text)
    return float("".join([*groups, last])) if len(last) == 3 else float(f"{''.join(groups)}.{last}")


def _leaves(name: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(key)).lower(), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(name, inner)
    else:
        yield name, value
