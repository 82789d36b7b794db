"""ProcessBench (Zheng et al., arXiv 2412.06559): first error of a solution, found by human experts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from surefoot.formats._first_error import first_error, first_error_item
from surefoot.formats._form import Samples, form_note, in_form
from surefoot.formats._rows import ReadReport, Row, WriteReport, read_rows, write_rows
from surefoot.formats._spans import SEPARATOR_KEY, step_parts
from surefoot.labels import Neutral
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Step, Trace, now

_NAME = "processbench"
_FIELDS = ("id", "generator", "problem", "steps", "final_answer_correct", "label")
_SEPARATOR = "\n\n"


class _Row(Row):
    id: str
    generator: str
    problem: str
    steps: list[str]
    final_answer_correct: bool
    label: int


def read_processbench(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Solutions with one label a step: +1 before the first error, −1 there, unknown after it.

    ``trace.id`` and ``meta["id"]`` are the record's id (an id that comes again gets a number after it),
    ``trace.policy`` the generator, ``outcome`` whether the final answer is right (which it may be despite an
    error). The file may be a JSON array or JSON Lines. Records have no times, so all labels are ``created``
    at the time of reading.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    moment, samples = now(), Samples()
    return read_rows(path, _Row, lambda _, row: _item(row, moment, samples), report)


def write_processbench(
    items: Iterable[LabelledTrace], path: Path | str, *, neutral: Neutral, threshold: float | None = None
) -> WriteReport:
    """Write the first error of each trace (0-based, −1 = none). Atomic; ``.json`` gives an array.

    A trace is dropped, and counted, if it is a chat trace, its outcome is unknown, or a step at or before
    its first error has no sign; signs after the error are counted, too. ``neutral`` says what a 0 becomes;
    value labels are good above ``threshold``, and have no sign where it is ``None``.
    """
    report = WriteReport()
    write_rows(path, _rows(items, neutral, threshold, report))
    return report


def _item(row: _Row, moment: datetime, samples: Samples) -> LabelledTrace:
    problem = Problem(text=row.problem, source=_NAME)

    def make_trace(text: str, steps: tuple[Step, ...]) -> Trace:
        again = samples.number(row.id)
        return Trace(
            id=f"{row.id}#{again}" if again else row.id,
            problem_id=problem.id,
            text=text,
            steps=steps,
            outcome=row.final_answer_correct,
            policy=row.generator,
            meta={"id": row.id, SEPARATOR_KEY: _SEPARATOR, **form_note(_NAME, row, _FIELDS)},
        )

    return first_error_item(
        problem,
        row.steps,
        None if row.label == -1 else row.label,
        make_trace,
        field="label",
        separator=_SEPARATOR,
        source="human",
        created=moment,
    )


def _rows(
    items: Iterable[LabelledTrace], neutral: Neutral, threshold: float | None, report: WriteReport
) -> Iterator[dict[str, Any]]:
    for item in items:
        trace = item.trace
        if trace.text is not None and trace.steps and trace.outcome is None:
            report.dropped["traces: outcome unknown"] += 1
            continue
        found = first_error(item, neutral=neutral, threshold=threshold, report=report)
        if found is None:
            continue
        report.written += 1
        row = {
            "id": trace.meta.get("id", trace.id) if item.problem.source == _NAME else trace.id,
            "generator": trace.policy if trace.policy is not None else "unknown",
            "problem": item.problem.text,
            "steps": step_parts(trace),
            "final_answer_correct": trace.outcome,
            "label": -1 if found.step is None else found.step,
        }
        yield in_form(_NAME, row, trace.meta)
