"""PRM800K as step rows: one rated response per row, with the prefix that it continues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from surefoot.formats.prm800k import PathTraces, RatedStep, Rating
from surefoot.formats.rows import FileRow, read_rows
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, now

_Prefix = tuple[str, ...]


class _StepRow(FileRow):
    instruction: str = Field(min_length=1)
    responses: list[str]
    next_response: str
    answer: str | None = None
    is_human_response: bool = False
    is_solution: bool = False
    is_preferred_response: bool = False
    rating: Rating | None
    error_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Rows that rate the same response after the same prefix."""

    prefix: _Prefix
    text: str
    rows: list[tuple[int, _StepRow]]

    @property
    def path(self) -> _Prefix:
        return (*self.prefix, self.text)


_Tree = dict[_Prefix, dict[str, _Group]]
"""Groups of one problem by prefix and response."""


def read_prm800k_steps(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Rebuild traces from step rows; the whole file is read before the first trace is yielded.

    Rows with equal instruction and prefix are alternatives of one step. A main trace is a longest path of
    rows each of which continues another; it ends with the preferred row, if there is none with the first row
    rated −1, else with the first. Every other response becomes a trace of prefix and response, labelled on
    its last step only. So each row is exactly one label and no prefix is invented.

    The same response may be rated in several rows (it was sampled twice); its step then has all those labels,
    whether or not they agree. ``meta["rows"]`` holds, for each label, the row's number and the fields without
    a place in a label, including the machine-written ``error_reason`` of some exports. A row's ``answer``
    becomes ``trace.answer`` of the trace that ends with it.
    """
    problems: dict[str, _Tree] = defaultdict(dict)
    for number, row in read_rows(path, _StepRow, lambda number, row: (number, row), report):
        prefix = tuple(row.responses)
        groups = problems[row.instruction].setdefault(prefix, {})
        group = groups.setdefault(row.next_response, _Group(prefix=prefix, text=row.next_response, rows=[]))
        group.rows.append((number, row))
    created = now()
    for instruction, tree in problems.items():
        problem = Problem(text=instruction, source="prm800k")
        yield from _traces(problem, tree, PathTraces(problem, created=created))


def _traces(problem: Problem, tree: _Tree, traces: PathTraces) -> Iterator[LabelledTrace]:
    leaves = [[group for group in groups.values() if group.path not in tree] for groups in tree.values()]
    main = [
        _main_end(ends)
        for ends, groups in zip(leaves, tree.values(), strict=True)
        if len(ends) == len(groups)
    ]
    labelled: set[_Prefix] = set()
    for end in main:
        groups = _new_groups(end, tree, labelled)
        if groups:  # empty if another path continues over a step that no row rates
            yield _trace(traces, problem, end, groups, "main")
    for ends in leaves:
        for end in ends:
            if end.path not in labelled:
                yield _trace(traces, problem, end, [end], "alternative")


def _main_end(ends: list[_Group]) -> _Group:
    """The response that ends the main path, among those that nothing continues."""
    for group in ends:
        if any(row.is_preferred_response for _, row in group.rows):
            return group
    for group in ends:
        if any(row.rating == -1.0 for _, row in group.rows):
            return group
    return ends[0]


def _new_groups(end: _Group, tree: _Tree, labelled: set[_Prefix]) -> list[_Group]:
    """Groups along the path to ``end`` that no earlier main trace has labelled; adds them to ``labelled``."""
    groups: list[_Group] = []
    for length in range(1, len(end.path) + 1):
        path = end.path[:length]
        group = tree.get(path[:-1], {}).get(path[-1])
        if group is not None and path not in labelled:
            labelled.add(path)
            groups.append(group)
    return groups


def _trace(
    traces: PathTraces, problem: Problem, end: _Group, groups: list[_Group], branch: str
) -> LabelledTrace:
    rated = [
        RatedStep(step=len(group.prefix), rating=row.rating, row=_note(number, row))
        for group in groups
        for number, row in group.rows
    ]
    answers = [row.answer for _, row in end.rows if row.answer is not None]
    return traces.labelled(
        list(end.path),
        rated,
        branch=branch,
        identity=("steps", problem.id),
        answer=answers[0] if answers else None,
        finish_reason="solution" if any(row.is_solution for _, row in end.rows) else None,
        meta={},
    )


def _note(number: int, row: _StepRow) -> dict[str, Any]:
    fields = {"is_human_response", "is_preferred_response", "is_solution"}
    fields |= set() if row.answer is None else {"answer"}
    fields |= {"error_reason"} & row.model_fields_set
    return {"row": number, **row.model_dump(include=fields)}
