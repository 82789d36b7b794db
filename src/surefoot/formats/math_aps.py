"""MATH-APS as OpenR (Wang et al., arXiv 2410.09671) writes it; OmegaPRM is Luo et al., arXiv 2406.06592.

One question a row, with all states of its search tree and the Monte Carlo value of each: as a list of
``solution_prefix`` (question and solution so far), or as a tree of ``text`` and ``children``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field

from surefoot.errors import RecordError
from surefoot.formats._rows import (
    RECORD_BYTES,
    FileRow,
    TraceBuilder,
    WriteReport,
    form_note,
    in_form,
    read_expanded_rows,
    write_rows,
)
from surefoot.io.files import ReadReport
from surefoot.io.limits import FileLimits, RowSize
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Step, StepLabel, Trace

_NAME = "math-aps"
_FIELDS = ("question", "final_answer", "reasoning_steps", "question_id")
_LEAD = "\n\n"


class _StateRow(FileRow):
    solution_prefix: str
    mc_value: float | None = Field(ge=0, le=1)


class _NodeRow(FileRow):
    text: str
    mc_value: float | None = Field(ge=0, le=1)
    children: list[_NodeRow]


class _SearchTreeRow(FileRow):
    question: str
    final_answer: str | None = None
    reasoning_steps: list[_StateRow] | _NodeRow
    question_id: int | str | None = None


def read_math_aps(
    path: Path | str, *, report: ReadReport | None = None, separator: str = "\n\n"
) -> Iterator[LabelledTrace]:
    """One trace per leaf of each question's tree, with labels of kind ``value``: chance of the right answer.

    In the flat form a state follows the longest other state that it begins with, if white space comes next.
    A state that several leaves share is a step of all their traces but labelled in the first alone, so that
    each estimate is one label; a state that was estimated twice has two labels. A step keeps the white space
    before it; that before the first is ``meta["lead"]``. In the tree form ``separator`` is put before each
    step but the first, and ``lead`` is a blank line.

    ``meta["values"]`` says where each label's value stood in its row, ``meta["roots"]`` what the row says of
    the bare question, which is no step. The data has no counts of rollouts. Rows have no times: all labels
    are ``created`` at the time of reading.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    builder = TraceBuilder(separator)
    return read_expanded_rows(path, _SearchTreeRow, lambda number, row: _traces(number, row, builder), report)


def write_math_aps(items: Iterable[LabelledTrace], path: Path | str) -> WriteReport:
    """Write value labels in the flat form: one row per question, one entry per label. Atomic.

    Traces of one problem come into one row (those that ``read_math_aps`` read, into the row that they came
    from), so all are held in memory. A label without a value is a null. White space at the end of a state is
    left out unless the reader of this format found it there. The form knows states, not steps: the boundary
    of a step without a value label is counted as lost unless another trace has it.

    Dropped and counted: chat traces, labels of other kinds, and traces with a step boundary inside a word or
    a blank step, which the reader would not find again.
    """
    report = WriteReport()
    rows: dict[tuple[str, object], _Written] = {}
    for item in items:
        if item.trace.text is None:
            report.dropped["traces: chat trace"] += 1
            continue
        own = item.problem.source == _NAME
        prefixes = _prefixes(item, own)
        if prefixes is None:
            report.dropped["traces: a step boundary that is not at white space"] += 1
            continue
        key = (item.problem.id, item.trace.meta.get("row") if own else None)
        rows.setdefault(key, _Written(item.problem, item.trace.meta if own else {})).add(
            item, prefixes, report
        )
    filled = [row for row in rows.values() if row.entries]
    for row in rows.values():
        row.count_lost(report)
    report.written = len(filled)
    write_rows(path, (row.as_row() for row in filled))
    return report


def _traces(number: int, row: _SearchTreeRow, builder: TraceBuilder) -> Iterator[LabelledTrace]:
    nested = isinstance(row.reasoning_steps, _NodeRow)
    states = (
        _bounded(_nested(row.reasoning_steps, None, _LEAD, builder.separator, []))
        if isinstance(row.reasoning_steps, _NodeRow)
        else _linked(_listed(row.question, row.reasoning_steps))
    )
    paths = _leaf_paths(states)
    if not paths:
        raise RecordError("field 'reasoning_steps': no state has a solution")
    problem = Problem(text=row.question, answer=row.final_answer, source=_NAME)
    roots = [
        {"text": state.text, "value": estimate.value, **estimate.place}
        for state in states
        if state.blank
        for estimate in state.estimates
    ]
    meta = {
        "row": number,
        "roots": roots,
        **({"question_id": row.question_id} if "question_id" in row.model_fields_set else {}),
        **({} if nested else form_note(_NAME, row, _FIELDS)),
    }
    claimed: set[int] = set()
    for path in paths:
        fresh = {id(state) for state in path} - claimed
        claimed |= fresh
        yield _trace(problem, path, fresh, meta, builder)


def _listed(question: str, entries: Sequence[_StateRow]) -> Iterator[tuple[str, _Estimate]]:
    for number, entry in enumerate(entries):
        if not entry.solution_prefix.startswith(question):
            raise RecordError(
                f"field 'reasoning_steps.{number}.solution_prefix': does not begin with the question"
            )
        place = {"at": number, **({"extra": dict(entry.model_extra)} if entry.model_extra else {})}
        yield entry.solution_prefix[len(question) :], _Estimate(value=entry.mc_value, place=place)


def _nested(
    node: _NodeRow, parent: _TreeState | None, before: str, separator: str, place: list[int]
) -> Iterator[_TreeState]:
    """States of a node and all below it; the root is the question itself."""
    text = "" if parent is None else parent.text + before + node.text
    state = _TreeState(
        text=text, parent=parent, estimates=[_Estimate(value=node.mc_value, place={"node": place})]
    )
    yield state
    for number, child in enumerate(node.children):
        yield from _nested(child, state, _LEAD if parent is None else separator, separator, [*place, number])


def _bounded(states: Iterable[_TreeState]) -> list[_TreeState]:
    """The states, whose texts begin with all that is above them. Raises ``LimitError``."""
    size, listed = RowSize(FileLimits.from_environment()), []
    for state in states:
        size.add(len(state.text) + RECORD_BYTES)
        listed.append(state)
    return listed


def _trace(
    problem: Problem,
    path: Sequence[_TreeState],
    fresh: set[int],
    meta: dict[str, Any],
    builder: TraceBuilder,
) -> LabelledTrace:
    whole = path[-1].text
    lead = len(whole) - len(whole.lstrip())
    ends = [0, *(len(state.text) - lead for state in path)]
    labelled = [
        (index, estimate)
        for index, state in enumerate(path)
        if id(state) in fresh
        for estimate in state.estimates
    ]
    trace = Trace(
        problem_id=problem.id,
        text=whole[lead:],
        steps=tuple(Step(start=start, end=end) for start, end in pairwise(ends)),
        sample=builder.number(problem.id, whole[lead:]),
        meta={**meta, "lead": whole[:lead], "values": [estimate.place for _, estimate in labelled]},
    )
    labels = tuple(
        StepLabel(
            trace_id=trace.id,
            step=index,
            kind="value",
            value=estimate.value,
            reason="not estimated" if estimate.value is None else None,
            source=_NAME,
            created=builder.created,
        )
        for index, estimate in labelled
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def _prefixes(item: LabelledTrace, own: bool) -> list[str] | None:
    """The solution up to the end of each step, or ``None`` if the reader would not find these steps."""
    text = item.trace.text or ""
    if own:
        return [item.trace.meta.get("lead", _LEAD) + text[: step.end] for step in item.trace.steps]
    ends = [len(text[: step.end].rstrip()) for step in item.trace.steps]
    rising = all(before < end and text[before].isspace() for before, end in pairwise(ends))
    if not ends or not ends[0] or not rising or text[0].isspace():
        return None
    return [_LEAD + text[:end] for end in ends]


@dataclass
class _Written:
    """A row that is being written."""

    problem: Problem
    meta: dict[str, Any]
    entries: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    boundaries: set[str] = field(default_factory=set)

    def add(self, item: LabelledTrace, prefixes: Sequence[str], report: WriteReport) -> None:
        self.boundaries.update(prefixes)
        places = item.trace.meta.get("values") if self.meta else None
        if not isinstance(places, list) or len(places) != len(item.labels):
            places = [{}] * len(item.labels)
        for label, place in zip(item.labels, places, strict=True):
            if label.kind == "value":
                self._enter(prefixes[label.step], label.value, place)
            else:
                report.dropped[f"labels: kind '{label.kind}'"] += 1

    def _enter(self, prefix: str, value: float | None, place: dict[str, Any]) -> None:
        entry = {"solution_prefix": self.problem.text + prefix, "mc_value": value, **place.get("extra", {})}
        self.entries.append((place.get("at", float("inf")), entry))
        self.boundaries.discard(prefix)

    def count_lost(self, report: WriteReport) -> None:
        known = {entry["solution_prefix"] for _, entry in self.entries}
        lost = sum(self.problem.text + prefix not in known for prefix in self.boundaries)
        if lost:
            report.dropped["steps: without a value label"] += lost

    def as_row(self) -> dict[str, Any]:
        for root in self.meta.get("roots", []):
            self._enter(root["text"], root["value"], root)
        row = {
            "question": self.problem.text,
            "final_answer": self.problem.answer,
            "reasoning_steps": [entry for _, entry in sorted(self.entries, key=lambda pair: pair[0])],
            **({"question_id": self.meta["question_id"]} if "question_id" in self.meta else {}),
        }
        return in_form(_NAME, row, self.meta)


@dataclass(frozen=True, kw_only=True)
class _Estimate:
    """A value of a state, and where it stood in its row."""

    value: float | None
    place: dict[str, Any]


@dataclass(eq=False, kw_only=True)
class _TreeState:
    """A beginning of a solution; ``text`` is all of it, from the end of the question on."""

    text: str
    parent: _TreeState | None
    estimates: list[_Estimate] = field(default_factory=list)

    @property
    def blank(self) -> bool:
        """Is this the bare question?"""
        return not self.text.strip()


def _linked(states: Iterable[tuple[str, _Estimate]]) -> list[_TreeState]:
    """States in order of first appearance; equal ones become one with several estimates.

    A state's parent is the longest other state that it begins with, if white space comes next: the end of a
    state inside a word or number is no step boundary.
    """
    by_text: dict[str, _TreeState] = {}
    for text, estimate in states:
        by_text.setdefault(text, _TreeState(text=text, parent=None)).estimates.append(estimate)
    stack: list[str] = []  # in sorted order, all beginnings of a text stand before it
    for text in sorted(by_text):
        while stack and not text.startswith(stack[-1]):
            stack.pop()
        parents = (begin for begin in reversed(stack) if text[len(begin)].isspace() or not begin.strip())
        above = next(parents, None)
        by_text[text].parent = None if above is None else by_text[above]
        stack.append(text)
    return list(by_text.values())


def _leaf_paths(states: Sequence[_TreeState]) -> list[list[_TreeState]]:
    """For each state that none follows, the states from the first step to it, without the bare question."""
    followed = {id(state.parent) for state in states}
    paths = []
    for state in states:
        if id(state) in followed or state.blank:
            continue
        path = [state]
        while path[0].parent is not None and not path[0].parent.blank:
            path.insert(0, path[0].parent)
        paths.append(path)
    return paths
