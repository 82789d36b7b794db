"""The runs of a failing and of a passing program side by side, for display."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator

from surefoot.records import CodeTask, ComparedCall, ExecutedLine, Execution
from surefoot.sandbox import Ending, ProgramResult

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

    calls: tuple[Call, ...] = ()
    load: Raised | None = None
    """The exception that prevented the program from loading."""

    @classmethod
    def of(cls, result: ProgramResult) -> Self:
        """Parse the tracer's output; without calls if the run was ended or the output is invalid."""
        if result.ending is Ending.EXITED:
            try:
                report = json.loads(result.stdout)
                return cls(calls=report["calls"], load=report["load"])
            except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
                pass
        return cls()

    def lines(self) -> set[int]:
        """The lines that ran."""
        return {event.line for call in self.calls for event in call.events}


def _first_difference(companion: Companion, expected: Call, call: Call) -> int | None:
    """Number of the event to mark: of the wrong line before the runs first differ, or of the line before."""
    if companion.partners is None:
        return None
    for at, event in enumerate(call.events):
        partner = expected.events[at] if at < len(expected.events) else None
        if partner is None or (event.kind, event.line, event.depth, event.state) != (
            partner.kind, companion.partners.get(partner.line), partner.depth, partner.state,
        ):  # fmt: skip
            events_back = range(at, -1, -1)
            wrong = (number for number in events_back if call.events[number].line == companion.wrong)
            return next(wrong, max(at - 1, 0))
    return None


@dataclass(frozen=True, kw_only=True)
class Companion:
    """A passing program next to a failing one, with its run."""

    text: str | None
    """``None``: the task's reference solution."""
    run: ProgramRun
    partners: Mapping[int, int] | None
    """Line of the failing program for each line of this one, from 1; ``None``: too few are alike."""
    wrong: int | None = None
    """The line in which the failing program differs, if that is known."""


def compare_executions(
    task: CodeTask,
    companion: Companion,
    run: ProgramRun,
    made_by: Sequence[int],
    source_line: Callable[[int], int],
) -> Execution | None:
    """The first calls whose results differ, else the first calls, for display; ``None`` without any.

    ``made_by``: number of the test that makes each call. ``source_line``: line of the trace's program for a
    line that ran.
    """
    if run.load:
        return Execution(raised=_short(run.load), line=run.load.line)
    triples = list(zip(made_by, companion.run.calls, run.calls, strict=False))
    chosen = [triple for triple in triples if triple[2].differs(triple[1])] or triples
    tests = task.that_are("hidden")
    calls = tuple(
        _compare_calls(task.entry_point, tests[number].name, expected, call, companion, source_line)
        for number, expected, call in chosen[:_CALLS]
        if 0 <= number < len(tests)
    )
    return Execution(calls=calls, reference=companion.text) if calls else None


def _compare_calls(
    function: str,
    test: str,
    expected: Call,
    call: Call,
    companion: Companion,
    source_line: Callable[[int], int],
) -> ComparedCall:
    events, lines = call.events, companion.partners
    first = _first_difference(companion, expected, call)
    if first is None and call.raised:
        numbers = (number for number, event in enumerate(events) if event.line == call.raised.line)
        first = max((number for number in numbers if events[number].kind == "line"), default=None)
    start = max(0, (first or 0) - _CONTEXT)
    window = events[start : start + _ROWS]
    reference = expected.events[start : start + _ROWS] if lines is not None else ()
    rows = _align(window, reference, lines or {})
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
        rows=tuple(
            (_display(event, budget, source_line), _display(other, budget, int)) for event, other in rows
        ),
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


def _display(
    event: Event | None, budget: list[int], source_line: Callable[[int], int]
) -> ExecutedLine | None:
    if event is None:
        return None
    line = max(source_line(event.line), 0)
    if isinstance(event, EndEvent):
        return ExecutedLine(event=event.kind, line=line, said=event.text)
    budget[0] -= sum(len(name) + len(value) for name, value in event.changed)
    return ExecutedLine(event=event.kind, line=line, changed=event.changed if budget[0] >= 0 else ())
