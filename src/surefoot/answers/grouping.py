"""Answers grouped into classes of equal ones, whatever their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from surefoot.answers.checker import AnswerChecker
from surefoot.maths import FACTORS, Quantity, normalise, read_quantity, same_quantity, split_unit


def group_equal(answers: Sequence[str | None], checker: AnswerChecker) -> list[str | None]:
    """Canonical form of each answer, so that equal answers become equal strings and can be counted.

    The classes depend on the set of the answers and not on their order, and so does the member that stands
    for a class: one without a unit, then the shortest. ``None`` stays ``None``.

    - Answers are first sorted by :meth:`AnswerChecker.fingerprint`; only answers that share it are compared.
      An answer without a fingerprint is compared as text, and counts as one failure.
    - Of one value, answers whose units share a word are equal. One without a unit joins them if there is one
      class of such answers; of several ("5", "5 cm", "5 m") it is not clear which.
    - "50%" equals "0.5"; where that is not among the answers, it equals "50".
    """
    distinct = sorted(
        {answer for answer in answers if answer is not None}, key=lambda text: (len(text), text)
    )
    if checker.method == "exact":
        canonical: dict[str, str] = {}
        for answer in distinct:
            canonical[answer] = canonical.setdefault(answer.strip(), answer)
        return [None if answer is None else canonical[answer] for answer in answers]
    entries = [_read(answer) for answer in distinct]
    classes = [part for members in _values(entries, checker) for part in _split_by_unit(members)]
    _join_factors(classes)
    canonical = {}
    for members in classes:
        chosen = min(members, key=lambda entry: (entry.has_unit, len(entry.text), entry.text))
        canonical |= {entry.text: chosen.text for entry in members}
    return [None if answer is None else canonical[answer] for answer in answers]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    text: str
    body: str
    """The answer without its unit."""
    unit: frozenset[str]
    """A factor (percent, dozen) is part of the value instead."""
    quantity: Quantity | None
    """The answer, if it is a number; with its unit."""

    @property
    def has_unit(self) -> bool:
        return bool(self.unit) or self.is_factor

    @property
    def is_factor(self) -> bool:
        return self.quantity is not None and bool(self.quantity.unit & FACTORS.keys())


def _read(text: str) -> _Entry:
    body, unit = split_unit(text)
    return _Entry(text=text, body=body, unit=unit, quantity=read_quantity(text))


def _values(entries: Sequence[_Entry], checker: AnswerChecker) -> list[list[_Entry]]:
    """Classes of the mathematical method. Each answer is compared with the first of each class, in a fixed
    order, as the comparison need not be transitive."""
    texts: dict[str, list[_Entry]] = {}
    buckets: dict[str, list[list[_Entry]]] = {}
    for entry in entries:
        print_of = checker.fingerprint(entry.text)
        if print_of is None:
            texts.setdefault(normalise(entry.text), []).append(entry)
            continue
        classes = buckets.setdefault(print_of, [])
        for members in classes:
            if _same_value(entry, members[0], checker):
                members.append(entry)
                break
        else:
            classes.append([entry])
    return [*texts.values(), *(members for classes in buckets.values() for members in classes)]


def _same_value(entry: _Entry, other: _Entry, checker: AnswerChecker) -> bool:
    if entry.quantity is not None and other.quantity is not None:
        return same_quantity(entry.quantity.without_unit(), other.quantity.without_unit())
    return bool(checker.equal([(entry.body, other.body)])[0])


def _split_by_unit(members: Sequence[_Entry]) -> list[list[_Entry]]:
    """Answers of one value, apart where their units share no word."""
    classes: list[tuple[set[str], list[_Entry]]] = []
    for entry in members:
        if not entry.unit:
            continue
        joined = [group for group in classes if group[0] & entry.unit]
        classes = [group for group in classes if not group[0] & entry.unit]
        words = entry.unit.union(*(group[0] for group in joined))
        classes.append((set(words), [entry, *(member for group in joined for member in group[1])]))
    parts = [part for _, part in classes]
    bare = [entry for entry in members if not entry.unit]
    if not bare:
        return parts
    return [bare + parts[0]] if len(parts) == 1 else [bare, *parts]


def _join_factors(classes: list[list[_Entry]]) -> None:
    """Merge each class that has only percentages into the class of the same number without the sign."""
    for members in [group for group in classes if all(entry.is_factor for entry in group)]:
        numbers = {entry.quantity.number for entry in members if entry.quantity is not None}
        for target in classes if len(numbers) == 1 else ():
            if target is not members and numbers & _bare_numbers(target):
                target += members
                classes.remove(members)
                break


def _bare_numbers(members: Iterable[_Entry]) -> set[Fraction]:
    return {entry.quantity.number for entry in members if entry.quantity is not None and not entry.has_unit}
