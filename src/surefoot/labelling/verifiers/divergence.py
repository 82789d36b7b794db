"""Where a program's run diverges from the reference's, and both runs side by side for display."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator

from surefoot.records import CodeTask, ComparedCall, ExecutedLine, Execution
from surefoot.sandbox import Ending, ProgramResult

_ALIKE = 0.5
"""Smallest share of common lines with which two programs are compared line by line."""
_CALLS, _CONTEXT, _ROWS, _NAMES, _TEXT, _TEXTS = 4, 30, 60, 20, 400, 32_000
"""Limits for display: calls, events before the first difference, events in all, variables of a line,
characters of one text, and characters of all values of a call."""


def _short(text: Any) -> str:
    """Short text that a record accepts: without halves of surrogate pairs."""
    return str(text)[:_TEXT].encode("utf-8", "replace").decode()


Text = Annotated[str, BeforeValidator(_short)]
Changes = Annotated[tuple[tuple[Text, Text], ...], BeforeValidator(lambda pairs: pairs[:_NAMES])]


class LineEvent(NamedTuple):
    """A line that is about to run, as recorded by :mod:`surefoot.labelling.verifiers.tracer`."""

    kind: Literal["line"]
    line: int
    depth: int
    state: str
    """Digest of the local variables before the line."""
    changed: Changes


class EndEvent(NamedTuple):
    """A return or an exception."""

    kind: Literal["return", "exception"]
    line: int
    depth: int
    state: str
    """Digest of the returned value, or of the exception's type."""
    text: Text


Event = LineEvent | EndEvent


class Raised(NamedTuple):
    """An exception, and the last line of the program that it passed."""

    kind: Text
    text: Text
    line: int | None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


class Call(BaseModel):
    """One call of the function."""

    test: int
    arguments: str
    """``repr((args, kwargs))``."""
    events: tuple[Event, ...]
    result: str | None
    """Digest of the returned value."""
    display: Text | None
    raised: Raised | None

    def differs(self, other: Call) -> bool:
        """Whether the results differ."""
        return self.result != other.result or bool(self.raised) != bool(other.raised)


class ProgramRun(BaseModel):
    """What the tracer reported about a run. The program could have forged it."""

    program: str
    calls: tuple[Call, ...] = ()
    load: Raised | None = None
    """The exception that prevented the program from loading."""

    @classmethod
    def of(cls, program: str, result: ProgramResult) -> Self:
        """Parse the tracer's output; without calls if the run was ended or the output is invalid."""
        if result.ending is Ending.EXITED:
            try:
                report = json.loads(result.stdout)
                return cls(program=program, calls=report["calls"], load=report["load"])
            except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
                pass
        return cls(program=program)


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The line to blame, or ``None``."""

    line: int | None
    reason: str = ""
    compared: bool = False
    """Whether the states before it are equal to the reference's."""


def first_difference(reference: ProgramRun, run: ProgramRun) -> Divergence:
    """The line that ran right before the first difference, preferably in a call whose result differs."""
    if run.load:
        return Divergence(line=run.load.line, reason=str(run.load))
    lines, alike = matching_lines(reference.program, run.program)
    pairs = list(zip(reference.calls, run.calls, strict=False))
    failed = [(expected, call) for expected, call in pairs if call.differs(expected)]
    if alike:
        for expected, call in [*failed, *pairs]:
            divergence = _diverging_event(expected.events, call.events, lines)
            if divergence is not None:
                at, reason = divergence
                return Divergence(line=call.events[at].line, reason=reason, compared=True)
    for _, call in failed:
        if call.raised:
            return Divergence(line=call.raised.line, reason=str(call.raised))
    return Divergence(line=None)


def _diverging_event(
    reference: Sequence[Event], events: Sequence[Event], lines: Mapping[int, int]
) -> tuple[int, str] | None:
    """Number of the line event right before the first event that differs, and how that differs.

    ``None`` if no event differs, or if the run reaches a line that the reference does not have: that line may
    be correct.
    """
    matched = set(lines.values())
    for at, event in enumerate(events):
        if at < len(reference):
            expected = reference[at]
            moved = lines.get(expected.line) != event.line or event.depth != expected.depth
            if not moved and (event.kind, event.state) == (expected.kind, expected.state):
                continue
            if event.line not in matched:
                return None
            if event.kind == "exception" != expected.kind:
                return _start_of_line(events, at), "it raised, the reference does not"
            reason = "the run continues elsewhere" if moved else "the values differ from the reference's"
        else:
            reason = "the run continues"
        # the last line of the same call, or of the caller, computed this state
        depth = event.depth
        for earlier in range(at - 1, -1, -1):
            previous = events[earlier]
            if previous.depth <= depth:
                if previous.kind == "line":
                    return earlier, reason
                # that call had returned, so this event is the first of another call
                depth -= previous.kind == "return"
        return at, reason
    return None


def _start_of_line(events: Sequence[Event], at: int) -> int:
    """Number of the event at which the line of event ``at`` began, or ``at``."""
    line = ("line", events[at].line, events[at].depth)
    return next((earlier for earlier in range(at - 1, -1, -1) if events[earlier][:3] == line), at)


def matching_lines(reference: str, program: str) -> tuple[dict[int, int], bool]:
    """Line of ``program`` for each matching line of ``reference``, from 1, and whether enough of them
    match."""
    expected, lines = reference.split("\n"), program.split("\n")
    matches: dict[int, int] = {}
    for tag, a, b, c, d in SequenceMatcher(None, expected, lines, autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and b - a == d - c):
            matches |= {a + number + 1: c + number + 1 for number in range(b - a)}
    visible = sum(bool(line.strip()) for line in expected)
    return matches, sum(bool(expected[line - 1].strip()) for line in matches) >= _ALIKE * visible


def compare_executions(task: CodeTask, reference: ProgramRun, run: ProgramRun) -> Execution | None:
    """The first calls whose results differ, else the first calls, for display; ``None`` without any."""
    if run.load:
        return Execution(raised=_short(run.load), line=run.load.line)
    lines, alike = matching_lines(reference.program, run.program)
    pairs = list(zip(reference.calls, run.calls, strict=False))
    chosen = [(expected, call) for expected, call in pairs if call.differs(expected)] or pairs
    tests = task.that_are("hidden")
    calls = tuple(
        _compare_calls(task.entry_point, tests[expected.test].name, expected, call, lines if alike else None)
        for expected, call in chosen[:_CALLS]
        if 0 <= expected.test < len(tests)
    )
    return Execution(calls=calls) if calls else None


def _compare_calls(
    function: str, test: str, expected: Call, call: Call, lines: Mapping[int, int] | None
) -> ComparedCall:
    """``lines``: matching line of each line of the reference; ``None`` if the runs cannot be compared."""
    events = call.events
    divergence = _diverging_event(expected.events, events, lines) if lines is not None else None
    first = None
    if divergence is not None:
        first = divergence[0]
    elif call.raised:
        numbers = (number for number, event in enumerate(events) if event.line == call.raised.line)
        first = max((number for number in numbers if events[number].kind == "line"), default=None)
    start = max(0, (first or 0) - _CONTEXT)
    window = events[start : start + _ROWS]
    reference = expected.events[start : start + _ROWS] if lines is not None else ()
    # up to the first difference the runs are equal, event by event
    equal = 0 if divergence is None else min(divergence[0] + 1 - start, len(reference))
    rows = [
        *zip(window[:equal], reference[:equal], strict=True),
        *_align(window[equal:], reference[equal:], lines or {}),
    ]
    row_of_first = (
        number for number, (event, _) in enumerate(rows) if first is not None and event is events[first]
    )
    budget = [_TEXTS]
    return ComparedCall(
        test=_short(test),
        visibility="hidden",
        call=_short(_as_python(function, expected.arguments)),
        result=call.display,
        raised=None if call.raised is None else _short(call.raised),
        reference_result=expected.display,
        reference_raised=None if expected.raised is None else _short(expected.raised),
        rows=tuple((_display(event, budget), _display(other, budget)) for event, other in rows),
        first=next(row_of_first, None),
        before=start,
        after=max(0, len(events) - start - _ROWS),
    )


def _as_python(function: str, arguments: str) -> str:
    """The call in Python's syntax, from ``repr((args, kwargs))``."""
    if not arguments.endswith(", {})"):
        return f"{function}: arguments and keywords {arguments}"
    arguments = arguments.removesuffix(", {})")[1:]
    return f"{function}{arguments.removesuffix(',)')}{')' * arguments.endswith(',)')}"


def _align(
    events: Sequence[Event], reference: Sequence[Event], lines: Mapping[int, int]
) -> list[tuple[Event | None, Event | None]]:
    """Pair events of equal kind, depth and line; the others stay single."""
    keys = [(event.kind, event.line, event.depth) for event in events]
    reference_keys = [(event.kind, lines.get(event.line, -event.line), event.depth) for event in reference]
    rows: list[tuple[Event | None, Event | None]] = []
    for tag, a, b, c, d in SequenceMatcher(None, keys, reference_keys, autojunk=False).get_opcodes():
        if tag == "equal":
            rows += zip(events[a:b], reference[c:d], strict=True)
        else:
            rows += [(event, None) for event in events[a:b]]
            rows += [(None, event) for event in reference[c:d]]
    return rows


def _display(event: Event | None, budget: list[int]) -> ExecutedLine | None:
    if event is None:
        return None
    line = max(event.line, 0)
    if isinstance(event, EndEvent):
        return ExecutedLine(event=event.kind, line=line, said=event.text)
    budget[0] -= sum(len(name) + len(value) for name, value in event.changed)
    return ExecutedLine(event=event.kind, line=line, changed=event.changed if budget[0] >= 0 else ())
