"""When a step counts as the same as an expert's: same text, same numbers, similar words, same tool calls."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any, Protocol, TypeVar

from surefoot.errors import LabelError
from surefoot.records import ToolCall, Trace

K = TypeVar("K")

# Digits in a name (x2, a_1) are no number; a sign counts only where it cannot be a minus between operands.
_NUMBER = re.compile(r"(?<![\w.])(?:(?<![)\]}])[-−])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)")
_EXACT_ENOUGH = Context(prec=50, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])


class StepMatch(Protocol[K]):
    """One rule for "the same step". ``key`` reads what the rule compares, ``same`` compares two keys."""

    @property
    def name(self) -> str:
        """Recorded in the labels."""

    @property
    def nothing(self) -> str:
        """Why a step whose ``key`` is ``None`` has no label."""

    def key(self, trace: Trace, step: int) -> K | None:
        """What is compared of a step; ``None`` = nothing, the step is passed over on both sides.

        Raises ``LabelError`` for a trace that the rule cannot read.
        """

    def same(self, left: K, right: K) -> bool:
        """Whether two steps are the same. Symmetric."""


@dataclass(frozen=True, kw_only=True)
class ExactText:
    """The same characters, runs of white space being one space and none at the ends."""

    name: str = "exact"
    nothing: str = "the step has no text to compare"

    def key(self, trace: Trace, step: int) -> str | None:
        return " ".join(_words(trace, step)) or None

    def same(self, left: str, right: str) -> bool:
        return left == right


@dataclass(frozen=True, kw_only=True)
class SameNumbers:
    """The same numbers in the same order, whatever the words: ``48 / 2 = 24`` is ``48/2 = 24 clips``.

    A number is digits with thousands commas, decimals and a sign; a fraction is two numbers, ``50%`` is 50.
    Two numbers are the same if they differ by at most ``tolerance`` times the larger. Numbers of a list
    ("Step 2:") count too. A step without any number is passed over.
    """

    tolerance: float = 1e-6
    name: str = "numbers"
    nothing: str = "the step has no number to compare"

    def __post_init__(self) -> None:
        _check_tolerance(self.tolerance)

    def key(self, trace: Trace, step: int) -> tuple[Decimal, ...] | None:
        found = _NUMBER.findall(" ".join(_words(trace, step)))
        return tuple(Decimal(number.replace(",", "").replace("−", "-")) for number in found) or None

    def same(self, left: tuple[Decimal, ...], right: tuple[Decimal, ...]) -> bool:
        return len(left) == len(right) and all(
            _close(a, b, self.tolerance) for a, b in zip(left, right, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class SimilarText:
    """Nearly the same words: at most the share ``tolerance`` of the words of both is not common to them.

    The words that two steps of m and n words share in order are their longest common subsequence c, and
    1 − 2c / (m + n) is the share that is not common. One wrong number in a long sentence stays below most
    tolerances, so agreement by this rule says that the expert *spoke* like this.
    """

    tolerance: float = 0.2
    name: str = "tolerance"
    nothing: str = "the step has no text to compare"

    def __post_init__(self) -> None:
        _check_tolerance(self.tolerance)

    def key(self, trace: Trace, step: int) -> tuple[str, ...] | None:
        return tuple(_words(trace, step)) or None

    def same(self, left: tuple[str, ...], right: tuple[str, ...]) -> bool:
        total = len(left) + len(right)
        return total - 2 * _common(left, right) <= self.tolerance * total


@dataclass(frozen=True, kw_only=True)
class SameToolCalls:
    """The same tools with equal arguments, for runs of an agent.

    Arguments are compared as JSON: the order of keys does not matter, and numbers may differ by ``tolerance``
    times the larger. Arguments that are no JSON are compared as text. What the agent says beside a call is
    ignored, and a message without a call is passed over: a path is a sequence of tool calls. Calls
    made in one message are compared in their order; they belong to the message's last step.
    """

    tolerance: float = 1e-9
    name: str = "tool-call"
    nothing: str = "the step calls no tool"

    def __post_init__(self) -> None:
        _check_tolerance(self.tolerance)

    def key(self, trace: Trace, step: int) -> tuple[tuple[str, Any], ...] | None:
        if trace.text is not None:
            raise LabelError(
                f"trace {trace.id} is a text; match 'tool-call' reads chat traces: "
                "choose exact, numbers or tolerance"
            )
        return tuple((call.name, _parsed(call.arguments)) for call in calls_of(trace, step)) or None

    def same(self, left: tuple[tuple[str, Any], ...], right: tuple[tuple[str, Any], ...]) -> bool:
        return _equal(list(left), list(right), self.tolerance)


def calls_of(trace: Trace, step: int) -> tuple[ToolCall, ...]:
    """Tool calls that a step makes: those of its message, if it is the message's last step."""
    message = trace.steps[step].message
    later = trace.steps[step + 1 : step + 2]
    if message is None or (later and later[0].message == message):
        return ()
    return trace.messages[message].tool_calls


def _words(trace: Trace, step: int) -> list[str]:
    if calls_of(trace, step):
        raise LabelError(
            f"step {step} of trace {trace.id} calls a tool, which text rules do not see; "
            "choose match 'tool-call'"
        )
    return trace.step_text(step).split()


def _common(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    """Length of the longest common subsequence, bit-parallel (Hyyrö 2004): a row is one integer."""
    places: dict[str, int] = {}
    for at, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << at
    full = (1 << len(left)) - 1
    row = full
    for word in right:
        hits = row & places.get(word, 0)
        row = (row + hits | row - hits) & full
    return len(left) - row.bit_count()


def _close(left: Decimal, right: Decimal, tolerance: float) -> bool:
    if left == right:
        return True
    gap = _EXACT_ENOUGH.abs(_EXACT_ENOUGH.subtract(left, right))
    size = max(left.copy_abs(), right.copy_abs())
    return gap <= _EXACT_ENOUGH.multiply(size, Decimal(str(tolerance)))


def _parsed(arguments: str) -> Any:
    """Arguments as data, every number a ``Decimal``; the text itself where it is no JSON."""
    try:
        return json.loads(
            arguments.strip() or "{}", parse_int=Decimal, parse_float=Decimal, parse_constant=str
        )
    except (ValueError, ArithmeticError, RecursionError):
        return arguments


def _equal(left: Any, right: Any, tolerance: float) -> bool:
    """Equality of parsed JSON without recursion: the depth is up to a model."""
    pending = [(left, right)]
    while pending:
        a, b = pending.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, dict):
            if a.keys() != b.keys():
                return False
            pending += [(a[key], b[key]) for key in a]
        elif isinstance(a, list | tuple):
            if len(a) != len(b):
                return False
            pending += zip(a, b, strict=True)
        elif not (_close(a, b, tolerance) if isinstance(a, Decimal) else a == b):
            return False
    return True


def _check_tolerance(tolerance: float) -> None:
    if not (math.isfinite(tolerance) and 0 <= tolerance < 1):
        raise LabelError(f"tolerance is {tolerance}; give a share of at least 0 and below 1")
