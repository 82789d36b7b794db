"""ProcessBench (Zheng et al., arXiv 2412.06559): first error of a solution, found by human experts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace, now
from surefoot.sources._rows import ReadReport, Row, read_rows, write_rows
from surefoot.sources._signs import Neutral, WriteReport, step_signs
from surefoot.sources._spans import SEPARATOR_KEY, join_parts, step_parts

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

    ``trace.id`` and ``meta["id"]`` are the record's id, ``trace.policy`` the generator, ``outcome`` whether
    the final answer is right (which it may be despite an error). The file may be a JSON array or JSON
    Lines. Records have no times, so all labels are ``created`` at the time of reading.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    moment = now()
    return read_rows(path, _Row, lambda _, row: _item(row, moment), report)


def write_processbench(
    items: Iterable[LabelledTrace], path: Path | str, *, neutral: Neutral, threshold: float | None = None
) -> WriteReport:
    """Write the first error of each trace (0-based, −1 = none). Atomic; ``.json`` gives an array.

    A trace is dropped, and counted, if it is a chat trace, its outcome is unknown, or a step at or before
    its first error has no sign. ``neutral`` says what a 0 becomes; value labels are positive above
    ``threshold``, and have no sign where it is ``None``.
    """
    report = WriteReport()
    write_rows(path, _rows(items, neutral, threshold, report))
    return report


def _item(row: _Row, moment: datetime) -> LabelledTrace:
    if not row.steps:
        raise RecordError("field 'steps': empty")
    if not -1 <= row.label < len(row.steps):
        raise RecordError(f"field 'label': {row.label}, but there are {len(row.steps)} steps")
    text, steps = join_parts(row.steps, _SEPARATOR)
    problem = Problem(text=row.problem, source="processbench")
    trace = Trace(
        id=row.id,
        problem_id=problem.id,
        text=text,
        steps=steps,
        outcome=row.final_answer_correct,
        policy=row.generator,
        meta={"id": row.id, SEPARATOR_KEY: _SEPARATOR},
    )
    labels = tuple(
        StepLabel(
            trace_id=trace.id,
            step=index,
            kind="correctness",
            value=value,
            reason="after the first error" if value is None else None,
            source="human",
            created=moment,
        )
        for index, value in enumerate(_values(row.label, len(steps)))
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def _values(first_error: int, steps: int) -> list[float | None]:
    if first_error == -1:
        return [1.0] * steps
    return [1.0] * first_error + [-1.0] + [None] * (steps - first_error - 1)


def _rows(
    items: Iterable[LabelledTrace], neutral: Neutral, threshold: float | None, report: WriteReport
) -> Iterator[dict[str, Any]]:
    for item in items:
        trace = item.trace
        if trace.text is None:
            report.dropped["traces: chat trace"] += 1
            continue
        if not trace.steps:
            report.dropped["traces: no steps"] += 1
            continue
        if trace.outcome is None:
            report.dropped["traces: outcome unknown"] += 1
            continue
        signs = step_signs(item, neutral=neutral, threshold=threshold)
        stop = next((index for index, sign in enumerate(signs) if not sign.positive), None)
        if stop is not None and signs[stop].positive is None:
            report.dropped[f"traces: no sign before the first error ({signs[stop].reason})"] += 1
            continue
        report.written += 1
        yield {
            "id": trace.id,
            "generator": trace.policy or "unknown",
            "problem": item.problem.text,
            "steps": step_parts(trace),
            "final_answer_correct": trace.outcome,
            "label": -1 if stop is None else stop,
        }
