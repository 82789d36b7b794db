"""MATH-APS as OpenR (Wang et al., arXiv 2410.09671) writes it; OmegaPRM is Luo et al., arXiv 2406.06592.

A row has one question with all states of its search tree and the Monte Carlo value of each: as a list of
``solution_prefix`` (question and solution up to the state), or as a tree of ``text`` and ``children``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field

from surefoot.errors import RecordError
from surefoot.formats.rows import RECORD_BYTES, FileRow, TraceBuilder, expand_rows
from surefoot.io.files import FileLimits, ReadReport, RowSize
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Step, Trace

_NAME = "math-aps"
_SEPARATOR = "\n\n"
"""Text before each step of the tree form."""


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


def read_math_aps(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """One trace per leaf of each question's tree, with labels of kind ``value``: chance of the right answer.

    In the flat form, a state's parent is the longest other state that it begins with, if white space follows.
    A state that several leaves share is a step of all their traces but is labelled in the first only, so that
    each estimate is one label; a state that was estimated twice has two labels. A step includes the white
    space before it. In the tree form a blank line is inserted before each step.

    ``meta["roots"]`` holds the values of the bare question, which is not a step. Counts of
    rollouts are not in the data.
    """
    builder = TraceBuilder(_SEPARATOR)
    return expand_rows(path, _SearchTreeRow, lambda number, row: _traces(number, row, builder), report)


@dataclass(eq=False, kw_only=True)
class _State:
    """A node of the search tree; ``text`` is the whole solution up to it, without the question."""

    text: str
    parent: _State | None = None
    values: list[float | None] = field(default_factory=list)

    @property
    def is_root(self) -> bool:
        return not self.text.strip()


def _traces(number: int, row: _SearchTreeRow, builder: TraceBuilder) -> Iterator[LabelledTrace]:
    states = (
        _bounded(_tree_states(row.reasoning_steps, None))
        if isinstance(row.reasoning_steps, _NodeRow)
        else _linked(_flat_states(row.question, row.reasoning_steps))
    )
    paths = _leaf_paths(states)
    if not paths:
        raise RecordError("field 'reasoning_steps': no state has a solution")
    problem = Problem(text=row.question, answer=row.final_answer, source=_NAME)
    roots = [
        {"text": state.text, "value": value} for state in states if state.is_root for value in state.values
    ]
    meta: dict[str, Any] = {"row": number, "roots": roots}
    if "question_id" in row.model_fields_set:
        meta["question_id"] = row.question_id
    labelled: set[int] = set()
    for path in paths:
        new = {id(state) for state in path} - labelled
        labelled |= new
        yield _trace(problem, path, new, meta, builder)


def _flat_states(question: str, rows: Sequence[_StateRow]) -> Iterator[tuple[str, float | None]]:
    for number, row in enumerate(rows):
        if not row.solution_prefix.startswith(question):
            field = f"reasoning_steps.{number}.solution_prefix"
            raise RecordError(f"field '{field}': does not begin with the question")
        yield row.solution_prefix[len(question) :], row.mc_value


def _tree_states(node: _NodeRow, parent: _State | None) -> Iterator[_State]:
    """States of a node and all below it; the root is the question."""
    text = "" if parent is None else parent.text + _SEPARATOR + node.text
    state = _State(text=text, parent=parent, values=[node.mc_value])
    yield state
    for child in node.children:
        yield from _tree_states(child, state)


def _bounded(states: Iterable[_State]) -> list[_State]:
    """The states, each of which repeats the text of its ancestors. Raises ``LimitError``."""
    size, bounded = RowSize(FileLimits.from_environment()), []
    for state in states:
        size.add(len(state.text) + RECORD_BYTES)
        bounded.append(state)
    return bounded


def _linked(values: Iterable[tuple[str, float | None]]) -> list[_State]:
    """States with their parents, in order of first appearance; equal ones become one with several values.

    A parent is the longest other state that the text begins with, if white space comes next: the end of a
    state inside a word or number is not a step boundary.
    """
    states: dict[str, _State] = {}
    for text, value in values:
        states.setdefault(text, _State(text=text)).values.append(value)
    stack: list[str] = []  # in sorted order, all prefixes of a text come before it
    for text in sorted(states):
        while stack and not text.startswith(stack[-1]):
            stack.pop()
        parents = (prefix for prefix in reversed(stack) if text[len(prefix)].isspace() or not prefix.strip())
        parent = next(parents, None)
        states[text].parent = None if parent is None else states[parent]
        stack.append(text)
    return list(states.values())


def _leaf_paths(states: Sequence[_State]) -> list[list[_State]]:
    """For each leaf, the states from the first step to it, without the bare question."""
    parents = {id(state.parent) for state in states}
    paths = []
    for state in states:
        if id(state) in parents or state.is_root:
            continue
        path = [state]
        while path[0].parent is not None and not path[0].parent.is_root:
            path.insert(0, path[0].parent)
        paths.append(path)
    return paths


def _trace(
    problem: Problem, path: Sequence[_State], new: set[int], meta: dict[str, Any], builder: TraceBuilder
) -> LabelledTrace:
    text = path[-1].text
    lead = len(text) - len(text.lstrip())
    ends = [0, *(len(state.text) - lead for state in path)]
    trace = Trace(
        problem_id=problem.id,
        text=text[lead:],
        steps=tuple(Step(start=start, end=end) for start, end in pairwise(ends)),
        sample=builder.number(problem.id, text[lead:]),
        meta=meta,
    )
    labels = tuple(
        builder.label(trace.id, step, value, _NAME, kind="value", reason="not estimated")
        for step, state in enumerate(path)
        if id(state) in new
        for value in state.values
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)
