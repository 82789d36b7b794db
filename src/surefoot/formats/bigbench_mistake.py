"""BIG-Bench-Mistake (Tyen et al., arXiv 2311.08516): the first mistake in chains of thought.

A row has ``input``, ``steps``, ``target`` (the right answer), ``answer`` (the chain's) and
``mistake_index`` (0-based, null = no mistake).
"""

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

_NAME = "bigbench-mistake"
_FIELDS = ("input", "steps", "target", "answer", "mistake_index")
_SEPARATOR = "\n"


class _Row(Row):
    input: str
    steps: list[str]
    target: str | None
    answer: str | None
    mistake_index: int | None


def read_bigbench_mistake(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Chains with one label a step: +1 before the mistake, −1 there, unknown after it; all +1 without one.

    ``problem.answer`` is the target, ``trace.answer`` the chain's answer, ``outcome`` whether the two are
    equal, white space aside. A right answer may follow a mistake, and a wrong one an unmarked chain. The
    labels' source is the data set's name, as raters marked most tasks but a rule most Dyck words. Rows have
    no times: all labels are ``created`` at the time of reading.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    moment, samples = now(), Samples()
    return read_rows(path, _Row, lambda _, row: _item(row, moment, samples), report)


def write_bigbench_mistake(
    items: Iterable[LabelledTrace], path: Path | str, *, neutral: Neutral, threshold: float | None = None
) -> WriteReport:
    """Write the first mistake of each trace (0-based, null = none). Atomic.

    An answer that is not known is null. A trace is dropped, and counted, if it is a chat trace, has no steps,
    or a step at or before its first error has no sign; signs after the error are counted, too. ``neutral``
    says what a 0 becomes; value labels are good above ``threshold``, and have no sign where it is
    ``None``.
    """
    report = WriteReport()
    write_rows(path, _rows(items, neutral, threshold, report))
    return report


def _item(row: _Row, moment: datetime, samples: Samples) -> LabelledTrace:
    problem = Problem(text=row.input, answer=row.target, source=_NAME)

    def make_trace(text: str, steps: tuple[Step, ...]) -> Trace:
        return Trace(
            problem_id=problem.id,
            text=text,
            steps=steps,
            answer=row.answer,
            outcome=_equal(row.answer, row.target),
            sample=samples.number(problem.id, text),
            meta={SEPARATOR_KEY: _SEPARATOR, **form_note(_NAME, row, _FIELDS)},
        )

    return first_error_item(
        problem,
        row.steps,
        row.mistake_index,
        make_trace,
        field="mistake_index",
        separator=_SEPARATOR,
        source=_NAME,
        created=moment,
    )


def _equal(answer: str | None, target: str | None) -> bool | None:
    if answer is None or target is None:
        return None
    return "".join(answer.split()) == "".join(target.split())


def _rows(
    items: Iterable[LabelledTrace], neutral: Neutral, threshold: float | None, report: WriteReport
) -> Iterator[dict[str, Any]]:
    for item in items:
        found = first_error(item, neutral=neutral, threshold=threshold, report=report)
        if found is None:
            continue
        report.written += 1
        row = {
            "input": item.problem.text,
            "steps": step_parts(item.trace),
            "target": item.problem.answer,
            "answer": item.trace.answer,
            "mistake_index": found.step,
        }
        yield in_form(_NAME, row, item.trace.meta)
