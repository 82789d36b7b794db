"""Rules by which the signs that several sources give to the steps of one trace become one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from surefoot.errors import LabelError
from surefoot.labels import AFTER_FIRST_ERROR, NO_ERROR, BinaryLabel, first_error, up_to_first_error

Signs = Mapping[str, Sequence[BinaryLabel]]
"""By the name of the source, sorted: one sign a step of one trace."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the sources say together of one step."""

    good: bool | None
    """``None`` = no consensus."""
    reason: str = ""
    """Why there is none, in words that repeat from step to step, so that they can be counted."""
    agreeing: int = 0
    """Sources that say what was decided."""
    voting: int = 0
    """Sources that say anything."""
    message: str = ""
    """Who said what."""


class Rule(Protocol):
    """How the signs of several sources become one. ``decide`` gives one decision a step of the trace."""

    @property
    def name(self) -> str: ...

    def decide(self, signs: Signs) -> list[Decision]: ...


@dataclass(frozen=True, kw_only=True)
class FirstError:
    """Keep a trace only if all sources have the same first error, "none" being equal to "none".

    Kept: steps before the first error +1, the error -1, later ones unknown. Dropped: all steps unknown. A
    source whose signs leave the first error open (an unknown step before it) agrees with nothing.
    """

    name: str = "first-error"

    def decide(self, signs: Signs) -> list[Decision]:
        errors = {source: _first_error(votes) for source, votes in signs.items()}
        count = len(next(iter(signs.values())))
        message = "first error: " + ", ".join(f"{source} {_shown(error)}" for source, error in errors.items())
        voting = sum(error is not None for error in errors.values())
        reason = _difference(signs, errors)
        error = next(iter(errors.values()))
        if reason or error is None:
            return [Decision(good=None, reason=reason, voting=voting, message=message)] * count
        return [
            Decision(good=None, reason=AFTER_FIRST_ERROR, voting=voting, message=message)
            if value is None
            else Decision(good=value > 0, agreeing=voting, voting=voting, message=message)
            for value in up_to_first_error(error, count)
        ]


@dataclass(frozen=True, kw_only=True)
class Unanimous:
    """A step has the sign that every source gives it; where one is silent or differs it is unknown."""

    name: str = "unanimous"

    def decide(self, signs: Signs) -> list[Decision]:
        return [_unanimous(votes) for votes in _votes(signs)]


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """A step has the sign with more weight behind it, if it leads by enough.

    With W₊ and W₋ the weights of the sources that call the step good and bad, and W that of all sources, the
    step is labelled if W₊ ≠ W₋ and |W₊ - W₋| / W ≥ ``margin``. A silent source is in W, so it makes agreement
    harder; ``margin`` 1 asks what ``Unanimous`` asks, and 0 any lead at all. A tie is unknown.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """By the name of the source; 1 for a source that is not named."""
    margin: float = 0.0
    name: str = "weighted"

    def __post_init__(self) -> None:
        """Raises ``LabelError`` for a weight that is not positive or a margin outside [0, 1]."""
        for source, weight in self.weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise LabelError(f"the weight of '{source}' is {weight}; give a positive number")
        if not 0 <= self.margin <= 1:
            raise LabelError(f"margin is {self.margin}; give a share of the total weight, 0 to 1")

    def decide(self, signs: Signs) -> list[Decision]:
        if unknown := sorted(self.weights.keys() - signs.keys()):
            raise LabelError(f"a weight is given for '{unknown[0]}', which is none of {', '.join(signs)}")
        # Fractions of the decimals as written: 0.1 + 0.2 against 0.3 is a tie, in whatever order it is added.
        weights = {source: Fraction(str(self.weights.get(source, 1.0))) for source in signs}
        return [self._decide(votes, weights) for votes in _votes(signs)]

    def _decide(self, votes: Mapping[str, BinaryLabel], weights: Mapping[str, Fraction]) -> Decision:
        good, bad, silent = _sides(votes)
        lead = _total(good, weights) - _total(bad, weights)
        message, voting = _message(good, bad, silent), len(good) + len(bad)
        if voting == 0:
            reason = "no source has a label for the step"
        elif lead == 0:
            reason = "tie"
        elif abs(lead) < Fraction(str(self.margin)) * _total(votes, weights):
            reason = "lead below the margin"
        else:
            agreeing = len(good if lead > 0 else bad)
            return Decision(good=lead > 0, agreeing=agreeing, voting=voting, message=message)
        return Decision(good=None, reason=reason, voting=voting, message=message)


def _first_error(votes: Sequence[BinaryLabel]) -> int | None:
    return first_error([vote.good for vote in votes])


def _shown(error: int | None) -> str:
    return "unknown" if error is None else "none" if error == NO_ERROR else str(error)


def _difference(signs: Signs, errors: Mapping[str, int | None]) -> str:
    """How the first errors differ, without their numbers; empty if they are the same."""
    hidden = {
        source: next(vote.reason for vote in signs[source] if vote.good is None)
        for source, error in errors.items()
        if error is None
    }
    if hidden:
        return f"first error unknown to {', '.join(f'{source} ({why})' for source, why in hidden.items())}"
    found = {source: error for source, error in errors.items() if error not in (None, NO_ERROR)}
    if found and len(found) < len(errors):
        none = ", ".join(source for source in errors if source not in found)
        return f"an error for {', '.join(found)}, none for {none}"
    if len(set(found.values())) > 1:
        first = min(error for error in found.values() if error is not None)
        earliest = [source for source, error in found.items() if error == first]
        return f"first errors differ, earliest for {', '.join(earliest)}"
    return ""


def _votes(signs: Signs) -> list[dict[str, BinaryLabel]]:
    """By step: the sign of each source."""
    return [dict(zip(signs, votes, strict=True)) for votes in zip(*signs.values(), strict=True)]


def _sides(votes: Mapping[str, BinaryLabel]) -> tuple[list[str], list[str], list[str]]:
    """Sources that say good, bad and nothing."""
    good = [source for source, sign in votes.items() if sign.good]
    bad = [source for source, sign in votes.items() if sign.good is False]
    return good, bad, [source for source, sign in votes.items() if sign.good is None]


def _total(sources: Iterable[str], weights: Mapping[str, Fraction]) -> Fraction:
    return sum((weights[source] for source in sources), Fraction())


def _message(good: Sequence[str], bad: Sequence[str], silent: Sequence[str]) -> str:
    sides = {"good": good, "bad": bad, "no vote": silent}
    return "; ".join(f"{side}: {', '.join(names)}" for side, names in sides.items() if names)


def _unanimous(votes: Mapping[str, BinaryLabel]) -> Decision:
    good, bad, silent = _sides(votes)
    message, voting = _message(good, bad, silent), len(good) + len(bad)
    if good and bad:
        return Decision(good=None, reason="sources disagree", voting=voting, message=message)
    if silent:
        reason = f"no vote of {', '.join(f'{source} ({votes[source].reason})' for source in silent)}"
        return Decision(good=None, reason=reason, voting=voting, message=message)
    return Decision(good=bool(good), agreeing=voting, voting=voting, message=message)
