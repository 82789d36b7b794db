"""BIG-Bench-Mistake (Tyen et al., arXiv 2311.08516): the first mistake in chains of thought.

A row has ``input``, ``steps``, ``target`` (the correct answer), ``answer`` (the chain's) and
``mistake_index`` (from 0, null = no mistake).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from surefoot.formats.rows import FileRow, TraceBuilder, first_error_values, read_rows
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem

_NAME = "bigbench-mistake"


class _MistakeRow(FileRow):
    input: str
    steps: list[str]
    target: str | None
    answer: str | None
    mistake_index: int | None


def read_bigbench_mistake(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Chains with one label per step: +1 before the mistake, −1 there, unknown after it; all +1 without one.

    ``problem.answer`` is the target, ``trace.answer`` the chain's answer, ``outcome`` whether they are equal
    apart from white space. A correct answer may follow a mistake, and a wrong one an unmarked chain. The
    labels' source is the data set's name, because people marked most tasks but a rule marked most Dyck words.
    """
    builder = TraceBuilder("\n")
    return read_rows(path, _MistakeRow, lambda _, row: _labelled(row, builder), report)


def _labelled(row: _MistakeRow, builder: TraceBuilder) -> LabelledTrace:
    values = first_error_values(row.steps, row.mistake_index, "mistake_index")
    problem = Problem(text=row.input, answer=row.target, source=_NAME)
    outcome = _equal(row.answer, row.target)
    return builder.labelled(problem, row.steps, values, source=_NAME, answer=row.answer, outcome=outcome)


def _equal(answer: str | None, target: str | None) -> bool | None:
    if answer is None or target is None:
        return None
    return "".join(answer.split()) == "".join(target.split())
