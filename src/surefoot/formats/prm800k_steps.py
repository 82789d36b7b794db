"""PRM800K as step rows: one rated response a row, with the prefix that it continues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from surefoot.formats._paths import PathTraces, Rated
from surefoot.formats._rows import FileRow, WriteReport, form_note, in_form, read_rows, step_parts, write_rows
from surefoot.formats.prm800k import Rating
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, as_json, now

_NAME = "prm800k-steps"
_FIELDS = (
    "instruction",
    "responses",
    "next_response",
    "answer",
    "is_human_response",
    "is_solution",
    "is_preferred_response",
    "rating",
)
_REASON = "error_reason"

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


def read_prm800k_steps(
    path: Path | str, *, report: ReadReport | None = None, separator: str = "\n"
) -> Iterator[LabelledTrace]:
    """Rebuild traces from step rows; reads the whole file before the first trace comes.

    Rows with equal instruction and prefix are alternatives of one step. A main trace is a longest path of
    rows each of which continues another; it ends with the preferred row there, if none was with the first
    rated −1, else with the first. Every other response is a trace of its own, prefix and response, labelled
    on its last step alone. So each row is exactly one label and no prefix is invented.

    The same response may be rated in several rows (it was sampled twice): its step then carries all those
    labels, agreeing or not. ``meta["rows"]`` keeps, for each label, the row's number and the fields that have
    no place in a label; the machine-written ``error_reason`` of some exports is there, too. A row's
    ``answer`` becomes ``trace.answer`` of the trace that ends with it. Rows have no times: all labels are
    ``created`` at the time of reading.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    problems: dict[str, dict[_Prefix, dict[str, _Group]]] = defaultdict(dict)
    for number, row in read_rows(path, _StepRow, lambda number, row: (number, row), report):
        prefix = tuple(row.responses)
        groups = problems[row.instruction].setdefault(prefix, {})
        group = groups.setdefault(row.next_response, _Group(prefix=prefix, text=row.next_response, rows=[]))
        group.rows.append((number, row))
    moment = now()
    for instruction, tree in problems.items():
        yield from _traces(Problem(text=instruction, source="prm800k"), tree, moment, separator)


def write_prm800k_steps(items: Iterable[LabelledTrace], path: Path | str) -> WriteReport:
    """Write one row per correctness label; a label without a value becomes a null rating. Atomic.

    Labels of other kinds and chat traces have no row and are counted. Flags come from ``meta["rows"]`` where
    a PRM800K reader left them; else every step but an alternative's last is preferred. Rows that came from a
    file have their order of that file, before all others; so all are held in memory.
    """
    report = WriteReport()
    rows = sorted(_rows(items, report), key=lambda pair: pair[0])
    write_rows(path, (row for _, row in rows))
    return report


def _traces(
    problem: Problem, tree: dict[_Prefix, dict[str, _Group]], moment: datetime, separator: str
) -> Iterator[LabelledTrace]:
    ends = [[group for group in groups.values() if group.path not in tree] for groups in tree.values()]
    main = [
        _main_end(group)
        for group, groups in zip(ends, tree.values(), strict=True)
        if len(group) == len(groups)
    ]
    claimed: set[_Prefix] = set()
    traces = PathTraces(problem, separator=separator, created=moment)
    for end in main:
        labelled = _claim(end, tree, claimed)
        if labelled:  # none are left if another path goes on over a step that no row rates
            yield _trace(traces, problem, end, labelled, "main")
    for groups in ends:
        for end in groups:
            if end.path not in claimed:
                yield _trace(traces, problem, end, [end], "alternative")


def _main_end(groups: list[_Group]) -> _Group:
    """Which of the responses that nothing continues ends the main path."""
    for group in groups:
        if any(row.is_preferred_response for _, row in group.rows):
            return group
    for group in groups:
        if any(row.rating == -1.0 for _, row in group.rows):
            return group
    return groups[0]


def _claim(end: _Group, tree: dict[_Prefix, dict[str, _Group]], claimed: set[_Prefix]) -> list[_Group]:
    """Groups along the path to ``end`` that no earlier main trace has labelled; they are marked as taken."""
    groups: list[_Group] = []
    for length in range(1, len(end.path) + 1):
        path = end.path[:length]
        group = tree.get(path[:-1], {}).get(path[-1])
        if group is not None and path not in claimed:
            claimed.add(path)
            groups.append(group)
    return groups


def _trace(
    traces: PathTraces, problem: Problem, end: _Group, labelled: list[_Group], branch: str
) -> LabelledTrace:
    rated = [
        Rated(step=len(group.prefix), rating=row.rating, row=_note(number, row))
        for group in labelled
        for number, row in group.rows
    ]
    answers = [row.answer for _, row in end.rows if row.answer is not None]
    return traces.labelled(
        list(end.prefix),
        end.text,
        rated,
        branch=branch,
        identity=as_json(["steps", problem.id])[1:-1],
        answer=answers[0] if answers else None,
        finish_reason="solution" if any(row.is_solution for _, row in end.rows) else None,
        meta={},
    )


def _note(number: int, row: _StepRow) -> dict[str, Any]:
    flags = {"is_human_response", "is_preferred_response", "is_solution"}
    return {
        "row": number,
        **row.model_dump(include=flags),
        **({} if row.answer is None else {"answer": row.answer}),
        **({_REASON: row.error_reason} if _REASON in row.model_fields_set else {}),
        **form_note(_NAME, row, (*_FIELDS, _REASON) if _REASON in row.model_fields_set else _FIELDS),
    }


def _rows(items: Iterable[LabelledTrace], report: WriteReport) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each row after its number in the file that it came from; infinity where it came from none."""
    for item in items:
        if item.trace.text is None:
            report.dropped["traces: chat trace"] += 1
            continue
        parts = step_parts(item.trace)
        notes = item.trace.meta.get("rows")
        if not isinstance(notes, list) or len(notes) != len(item.labels):
            notes = [{}] * len(item.labels)
        for label, note in zip(item.labels, notes, strict=True):
            if label.kind != "correctness":
                report.dropped[f"labels: kind '{label.kind}'"] += 1
                continue
            report.written += 1
            row = {
                "instruction": item.problem.text,
                "responses": parts[: label.step],
                "next_response": parts[label.step],
                **_flags(item, label.step == len(parts) - 1, note),
                "rating": None if label.value is None else int(label.value),
                **({_REASON: note[_REASON]} if _REASON in note else {}),
            }
            yield note.get("row", float("inf")), in_form(_NAME, row, note)


def _flags(item: LabelledTrace, last: bool, note: dict[str, Any]) -> dict[str, Any]:
    """The row's other fields, as read, else as far as the trace tells them."""
    alternative = item.trace.meta.get("branch") == "alternative"
    answer = note.get("answer") if "row" in note else (item.trace.answer if last else None)
    return {
        "answer": answer,
        "is_human_response": note.get("is_human_response", False),
        "is_solution": note.get("is_solution", last and answer is not None and not alternative),
        "is_preferred_response": note.get("is_preferred_response", not (alternative and last)),
    }
