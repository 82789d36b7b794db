"""Where a program's run parts from the reference's, and both side by side for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple, Self

from surefoot.records import CodeTask, ComparedCall, EventKind, ExecutedLine, Execution
from surefoot.sandbox import Ending, ProgramResult

_ALIKE = 0.5
"""Least share of equal lines with which a program is compared with the reference line by line."""
_CALLS, _BEFORE, _ROWS, _NAMES, _TEXT, _TEXTS = 4, 30, 60, 20, 400, 32_000
"""For people: calls, events before the first difference and in all, variables of a line, characters of a
text, and of all values of a call."""
_KINDS: Final[Mapping[str, EventKind]] = {"line": "line", "return": "return", "exception": "exception"}


class Event(NamedTuple):
    """What the tracer notes (:mod:`surefoot.labelling.verifiers.tracer`)."""

    kind: EventKind
    line: int
    depth: int
    state: str
    """Digest of the values before a line, or of what is returned; the type of an exception likewise."""
    changed: tuple[tuple[str, str], ...]
    said: str


class Raised(NamedTuple):
    """An exception, and the last line of the program that it passed."""

    kind: str
    text: str
    line: int | None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


class Call(NamedTuple):
    """One call of the function."""

    test: int
    given: str
    events: tuple[Event, ...]
    result: str | None
    shown: str | None
    raised: Raised | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A program and what its run said: its own statement, which nobody need believe."""

    program: str
    calls: tuple[Call, ...] = ()
    load: Raised | None = None

    @classmethod
    def of(cls, program: str, result: ProgramResult) -> Self:
        """What the tracer wrote; without calls where it wrote something else, or was ended."""
        if result.ending is not Ending.EXITED:
            return cls(program=program)
        try:
            said = json.loads(result.stdout)
            calls = tuple(map(_call, said["calls"]))
            return cls(program=program, calls=calls, load=_raised(said["load"]))
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            return cls(program=program)


def _call(said: Mapping[str, Any]) -> Call:
    return Call(
        test=int(said["test"]),
        given=str(said["given"]),
        events=tuple(
            Event(
                kind=_KINDS[kind],
                line=int(line),
                depth=int(depth),
                state=str(state),
                changed=tuple((_text(name), _text(value)) for name, value in more[:_NAMES])
                if kind == "line"
                else (),
                said="" if kind == "line" else _text(more),
            )
            for kind, line, depth, state, more in said["events"]
        ),
        result=None if said["result"] is None else str(said["result"]),
        shown=None if said["shown"] is None else _text(said["shown"]),
        raised=_raised(said["raised"]),
    )


def _raised(said: Any) -> Raised | None:
    if said is None:
        return None
    kind, text, line = said
    return Raised(_text(kind), _text(text), None if line is None else int(line))


def _text(said: Any) -> str:
    """Short text that a record takes: without halves of surrogate pairs."""
    return str(said)[:_TEXT].encode("utf-8", "replace").decode()


@dataclass(frozen=True, kw_only=True)
class Parting:
    """The line to blame; ``None``: none can be. ``compared``: the states before it were equal."""

    line: int | None
    reason: str = ""
    compared: bool = False


def first_difference(reference: Run, own: Run) -> Parting:
    """The line that ran right before the first difference, in a call whose result differs if there is one."""
    if own.load:
        return Parting(line=own.load.line, reason=str(own.load))
    lines, alike = partners(reference.program, own.program)
    pairs = list(zip(reference.calls, own.calls, strict=False))
    failed = [pair for pair in pairs if _differs(*pair)]
    if alike:
        for right, mine in [*failed, *pairs]:
            found = _parting(right.events, mine.events, lines)
            if found is not None:
                at, reason = found
                return Parting(line=mine.events[at].line, reason=reason, compared=True)
    for _, mine in failed:
        if mine.raised:
            return Parting(line=mine.raised.line, reason=str(mine.raised))
    return Parting(line=None)


def _differs(right: Call, mine: Call) -> bool:
    return right.result != mine.result or bool(right.raised) != bool(mine.raised)


def _parting(
    right: Sequence[Event], mine: Sequence[Event], lines: Mapping[int, int]
) -> tuple[int, str] | None:
    """Number of the line event right before the first event that differs, and how that differs.

    ``None``: there is none, or the run comes to a line that the reference does not have, which may be right.
    """
    known = set(lines.values())
    for at, event in enumerate(mine):
        if at < len(right):
            its = right[at]
            same = (event.kind, event.depth, event.state) == (its.kind, its.depth, its.state)
            if same and lines.get(its.line) == event.line:
                continue
            if event.line not in known:
                return None
            if event.kind == "exception" != its.kind:
                return _line_of(mine, at), "it raised, the reference does not"
            moved = lines.get(its.line) != event.line or event.depth != its.depth
            reason = "the run goes on elsewhere" if moved else "the values differ from the reference's"
        else:
            reason = "the run goes on"
        # what computed this state is the last line of the same call, or of the caller
        depth = event.depth
        for earlier in range(at - 1, -1, -1):
            before = mine[earlier]
            if before.depth <= depth:
                if before.kind == "line":
                    return earlier, reason
                # of a call that was over, so this is the first event of another
                depth -= before.kind == "return"
        return at, reason
    return None


def _line_of(events: Sequence[Event], at: int) -> int:
    """Number of the event at which the line of event ``at`` began, or ``at``."""
    back = range(at - 1, -1, -1)
    same = (one for one in back if events[one][:3] == ("line", events[at].line, events[at].depth))
    return next(same, at)


def partners(reference: str, own: str) -> tuple[dict[int, int], bool]:
    """Line of ``own`` for lines of ``reference``, from 1, and whether enough of them have one."""
    ours, theirs = own.split("\n"), reference.split("\n")
    found: dict[int, int] = {}
    for tag, a, b, c, d in SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and b - a == d - c):
            found |= {a + number + 1: c + number + 1 for number in range(b - a)}
    visible = sum(bool(line.strip()) for line in theirs)
    return found, sum(bool(theirs[line - 1].strip()) for line in found) >= _ALIKE * visible


def beside_reference(task: CodeTask, reference: Run, own: Run) -> Execution | None:
    """The first few calls whose results differ, else of all, for people; ``None``: nothing is known."""
    if own.load:
        return Execution(raised=_text(own.load), line=own.load.line)
    lines, alike = partners(reference.program, own.program)
    pairs = list(zip(reference.calls, own.calls, strict=False))
    chosen = [pair for pair in pairs if _differs(*pair)] or pairs
    tests = task.that_are("hidden")
    calls = tuple(
        _compared_call(task.entry_point, tests[right.test].name, right, mine, lines if alike else None)
        for right, mine in chosen[:_CALLS]
        if 0 <= right.test < len(tests)
    )
    return Execution(calls=calls) if calls else None


def _compared_call(
    function: str, test: str, right: Call, mine: Call, lines: Mapping[int, int] | None
) -> ComparedCall:
    """``lines``: partner of each line of the reference; ``None``: the runs cannot be compared."""
    first, found = None, _parting(right.events, mine.events, lines) if lines is not None else None
    if found is not None:
        first = found[0]
    elif mine.raised:
        numbers = (n for n, event in enumerate(mine.events) if event.line == mine.raised.line)
        first = max((n for n in numbers if mine.events[n].kind == "line"), default=None)
    start = max(0, (first or 0) - _BEFORE)
    shown = mine.events[start : start + _ROWS]
    its = right.events[start : start + _ROWS] if lines is not None else ()
    # up to the first difference the runs are equal, event by event
    equal = 0 if found is None else min(found[0] + 1 - start, len(its))
    rows = [
        *zip(shown[:equal], its[:equal], strict=True),
        *_aligned(shown[equal:], its[equal:], lines or {}),
    ]
    left = [_TEXTS]
    return ComparedCall(
        test=_text(test),
        visibility="hidden",
        call=_text(_written(function, right.given)),
        result=mine.shown,
        raised=None if mine.raised is None else _text(mine.raised),
        reference_result=right.shown,
        reference_raised=None if right.raised is None else _text(right.raised),
        rows=tuple((_shown(one, left), _shown(other, left)) for one, other in rows),
        first=next(
            (n for n, (own, _) in enumerate(rows) if first is not None and own is mine.events[first]), None
        ),
        before=start,
        after=max(0, len(mine.events) - start - _ROWS),
    )


def _written(function: str, given: str) -> str:
    """The call as Python writes it, of ``repr((args, kwargs))``."""
    if not given.endswith(", {})"):
        return f"{function}: arguments and keywords {given}"
    arguments = given.removesuffix(", {})")[1:]
    return f"{function}{arguments.removesuffix(',)')}{')' * arguments.endswith(',)')}"


_Pair = tuple[Event | None, Event | None]


def _aligned(mine: Sequence[Event], right: Sequence[Event], lines: Mapping[int, int]) -> list[_Pair]:
    """Events of equal kind, depth and line beside each other, the others alone."""
    own = [(event.kind, event.line, event.depth) for event in mine]
    its = [(event.kind, lines.get(event.line, -event.line), event.depth) for event in right]
    rows: list[_Pair] = []
    for tag, a, b, c, d in SequenceMatcher(None, own, its, autojunk=False).get_opcodes():
        if tag == "equal":
            rows += zip(mine[a:b], right[c:d], strict=True)
        else:
            rows += [(event, None) for event in mine[a:b]] + [(None, event) for event in right[c:d]]
    return rows


def _shown(event: Event | None, left: list[int]) -> ExecutedLine | None:
    if event is None:
        return None
    left[0] -= sum(len(name) + len(value) for name, value in event.changed)
    changed = event.changed if left[0] >= 0 else ()
    return ExecutedLine(event=event.kind, line=max(event.line, 0), changed=changed, said=event.said)
