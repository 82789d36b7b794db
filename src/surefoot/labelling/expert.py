"""Step labels by agreement with an expert's step at the same point (imitation)."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any, Literal, Protocol, TypeVar

from surefoot.errors import LabelError
from surefoot.maths import DIGITS
from surefoot.protocols import ProblemTrace
from surefoot.records import Evidence, StepLabel, Trace

Disagreement = Literal["unknown", "wrong"]
"""What a step says that no expert took: nothing, or (where there is one right way only) that it is wrong."""

SOURCE = "expert"

_SHOWN = 200
"""Longest excerpt of an expert's step in a label's message, in characters."""


@dataclass(frozen=True, kw_only=True)
class ExpertLabeller:
    """A :class:`surefoot.protocols.Labeller` that follows a trace along the traces of experts.

    An expert is *on the path* at step i if all steps before it match the trace's; where one of those has a
    matching step next, step i is +1. The first step that none of them took leaves the path. By
    default it is unknown: a departure is no proof of an error, since experts do not write down every
    right way. With ``disagreement="wrong"`` it is -1, the convention of behaviour cloning, which holds where
    the task leaves one way only. Later steps are unknown: at the states they are in, no expert was seen.

    Labels are of kind ``correctness`` and as right as the experts and the match rule are. Evidence: experts
    that agree (``successes``) of those on the path (``trials``), their names, and the expert's step.
    A trace is never its own expert. Steps that ``match`` finds nothing to compare in are passed over on both
    sides.
    """

    experts: Mapping[str, Sequence[Trace]]
    """Expert traces by the id of their problem; see ``expert_traces``."""
    match: StepMatch[Any]
    disagreement: Disagreement = "unknown"

    def __post_init__(self) -> None:
        """Raises ``LabelError`` for an unknown ``disagreement`` and an expert trace that does not fit."""
        if self.disagreement not in ("unknown", "wrong"):
            raise LabelError(f"disagreement is {self.disagreement!r}; choose unknown or wrong")
        for problem_id, traces in self.experts.items():
            for trace in traces:
                if not trace.steps:
                    raise LabelError(f"expert trace {trace.id} has no steps; cut it into steps first")
                if trace.problem_id != problem_id:
                    raise LabelError(
                        f"expert trace {trace.id} is listed for problem {problem_id}, its 'problem_id' "
                        f"is {trace.problem_id}"
                    )

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step. Raises ``LabelError`` if ``match`` cannot read a trace."""
        paths = {
            problem_id: [self._path(trace) for trace in self.experts.get(problem_id, ())]
            for problem_id in {item.problem.id for item in items}
        }
        return [self._labels(item.trace, paths[item.problem.id]) for item in items]

    def _path(self, trace: Trace) -> _Path:
        keys = [(step, self.match.key(trace, step)) for step in range(len(trace.steps))]
        return _Path(trace=trace, steps=[(step, key) for step, key in keys if key is not None])

    def _labels(self, trace: Trace, paths: list[_Path]) -> list[StepLabel]:
        on_path = [path for path in paths if path.trace.id != trace.id]
        ended = "" if on_path else "no expert trace of this problem"
        labels: list[StepLabel] = []
        at = 0  # steps matched with the experts
        for step in range(len(trace.steps)):
            key = None if ended else self.match.key(trace, step)
            if key is None:
                labels.append(_label(trace, step, reason=ended or self.match.nothing))
                continue
            here = [path for path in on_path if at < len(path.steps)]
            if not here:
                ended = "after the end of the expert's path"
                labels.append(_label(trace, step, reason=ended))
                continue
            on_path = [path for path in here if self.match.same(key, path.steps[at][1])]
            if not on_path:
                ended = "after leaving the expert's path"
            labels.append(self._compared(trace, step, here, on_path, at))
            at += 1
        return labels

    def _compared(
        self, trace: Trace, step: int, here: list[_Path], agreeing: list[_Path], at: int
    ) -> StepLabel:
        """The label of a step that had ``here`` to agree with, of which ``agreeing`` do."""
        shown = (agreeing or here)[0]
        raters = sorted({path.trace.policy for path in agreeing or here if path.trace.policy})
        evidence = Evidence(
            successes=len(agreeing),
            trials=len(here),
            rater=", ".join(raters) or None,
            message=f"{'the same' if agreeing else 'not'} as (match: {self.match.name}) "
            f"step {shown.steps[at][0]} of expert trace {shown.trace.id}: "
            f"{_excerpt(shown.trace, shown.steps[at][0])}",
        )
        if agreeing:
            return _label(trace, step, value=1.0, evidence=evidence)
        if self.disagreement == "wrong":
            return _label(trace, step, value=-1.0, evidence=evidence)
        reason = "no expert took this step, which is no proof of an error"
        return _label(trace, step, reason=reason, evidence=evidence)


def expert_traces(traces: Iterable[Trace]) -> tuple[dict[str, list[Trace]], Counter[str]]:
    """Traces fit to be followed, by problem, and a count of the others by reason.

    A trace without steps shows no path, and one whose outcome is known to be wrong is no expert's.
    """
    by_problem: dict[str, list[Trace]] = {}
    left_out: Counter[str] = Counter()
    for trace in traces:
        if not trace.steps:
            left_out["no steps"] += 1
        elif trace.outcome is False:
            left_out["wrong outcome"] += 1
        else:
            by_problem.setdefault(trace.problem_id, []).append(trace)
    return by_problem, left_out


@dataclass(frozen=True, kw_only=True)
class _Path:
    """An expert's trace and those of its steps that can be compared: number of the step, key."""

    trace: Trace
    steps: list[tuple[int, Any]]


def _label(
    trace: Trace,
    step: int,
    *,
    value: float | None = None,
    reason: str | None = None,
    evidence: Evidence | None = None,
) -> StepLabel:
    return StepLabel(
        trace_id=trace.id,
        step=step,
        kind="correctness",
        value=value,
        reason=reason,
        source=SOURCE,
        evidence=evidence or Evidence(),
    )


def _excerpt(trace: Trace, step: int) -> str:
    calls = [f"{call.name}({call.arguments})" for call in trace.calls_of(step)]
    text = " ".join(calls or trace.step_text(step).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


K = TypeVar("K")

# Digits in a name (x2, a_1) are no number; a sign counts only where it cannot be a minus between operands.
_NUMBER = re.compile(r"(?<![\w.])(?:(?<![)\]}])[-−])?" + DIGITS.replace("[0-9]", r"\d"))
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
        return tuple((call.name, _parsed(call.arguments)) for call in trace.calls_of(step)) or None

    def same(self, left: tuple[tuple[str, Any], ...], right: tuple[tuple[str, Any], ...]) -> bool:
        return _equal(list(left), list(right), self.tolerance)


def _words(trace: Trace, step: int) -> list[str]:
    if trace.calls_of(step):
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
