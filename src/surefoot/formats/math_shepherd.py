"""Math-Shepherd (Wang et al., arXiv 2312.08935): steps tagged ``ки``, and the same text with signs.

``input`` is ``"{question} Step 1: … ки\\nStep 2: … ки"``; ``label`` has ``+`` or ``-`` for each ``ки``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats._form import Samples, form_note, in_form
from surefoot.formats._rows import ReadReport, Row, WriteReport, read_rows, write_rows
from surefoot.formats._shepherd_text import TAG, Tagged, parse, plain, render
from surefoot.formats._spans import SEPARATOR_KEY, join_parts, step_parts
from surefoot.labels import BinaryLabel, LabelRule, Neutral, binary_labels
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace, now

_NAME = "math-shepherd"
_FIELDS = ("input", "label", "task")
_ANSWER = "The answer is: "
_SPACES_KEY = "spaces"
_MARKS = {True: "+", False: "-", None: ""}


class _Row(Row):
    input: str
    label: str
    task: str | None = None


def read_math_shepherd(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Traces with one label a tagged step, of kind ``value``: 1 for ``+``, 0 for ``-``.

    A sign is the hard estimate of a Monte Carlo value: 1 says that some of the completions from there reached
    the answer, not that the step is valid. ``Step i:`` is part of the text, as the policy wrote it. A line
    that begins with the next step's number where no tag came before it is a step of its own, and the one
    before it has no label. Rows have no times: all labels are ``created`` at the time of reading.

    Raises ``RecordError`` for a bad row (the label's text is not the input's) unless a ``report`` counts it.
    """
    moment, samples = now(), Samples()
    return read_rows(path, _Row, lambda _, row: _item(row, moment, samples), report)


def write_math_shepherd(
    items: Iterable[LabelledTrace],
    path: Path | str,
    *,
    neutral: Neutral,
    threshold: float | None = 0.0,
    task: str = "MATH",
) -> WriteReport:
    """Write input and label text, with ``task`` where the trace notes none in ``meta["task"]``. Atomic.

    ``neutral`` says what a 0 becomes; value labels are good above ``threshold``: the default is the hard
    estimate, 1 if any completion reached the answer. White space around steps is the format's own.

    A row ends with a tag. So the steps after the last one with a sign are dropped and counted; a step without
    a sign before it is written without a tag, so that nothing is trained on it, and read again as a step
    without a label (counted, unless it had no label at all). Dropped and counted as a whole: chat traces,
    traces without any sign, those whose text has the tag itself, and those which the reader would cut
    otherwise (a step that holds a line with the next step's number).
    """
    report = WriteReport()
    write_rows(path, _rows(items, neutral, threshold, task, report))
    return report


def _item(row: _Row, moment: datetime, samples: Samples) -> LabelledTrace:
    tagged = parse(row.input, row.label)
    text, steps = join_parts(tagged.steps, "\n")
    problem = Problem(text=tagged.question, source=_NAME)
    _, mark, answer = tagged.steps[-1].rpartition(_ANSWER)
    usual = render(plain(tagged.question, tagged.steps, tagged.marks)) == (row.input, row.label)
    trace = Trace(
        problem_id=problem.id,
        text=text,
        steps=steps,
        answer=answer if mark else None,
        sample=samples.number(problem.id, text),
        meta={
            SEPARATOR_KEY: "\n",
            **({} if row.task is None else {"task": row.task}),
            **({} if usual else {_SPACES_KEY: list(tagged.spaces)}),
            **form_note(_NAME, row, _FIELDS),
        },
    )
    labels = tuple(
        StepLabel(
            trace_id=trace.id,
            step=index,
            kind="value",
            value=1.0 if mark == "+" else 0.0,
            source=_NAME,
            created=moment,
        )
        for index, mark in enumerate(tagged.marks)
        if mark
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def _rows(
    items: Iterable[LabelledTrace],
    neutral: Neutral,
    threshold: float | None,
    task: str,
    report: WriteReport,
) -> Iterator[dict[str, Any]]:
    for item in items:
        trace = item.trace
        if trace.text is None:
            report.dropped["traces: chat trace"] += 1
            continue
        if TAG in trace.text or TAG in item.problem.text:
            report.dropped[f"traces: the text has the tag '{TAG}'"] += 1
            continue
        signs = binary_labels(
            item.labels, len(item.trace.steps), LabelRule(neutral=neutral, good_above=threshold)
        )
        end = max((index for index, sign in enumerate(signs, start=1) if sign.good is not None), default=0)
        if not end:
            report.dropped["traces: no step has a sign"] += 1
            continue
        tagged = _tagged(item, [_MARKS[sign.good] for sign in signs[:end]])
        text, label = render(tagged)
        if not _comes_back(tagged, text, label):
            report.dropped["traces: its steps would be cut otherwise on reading"] += 1
            continue
        _count_unsigned(signs, end, report)
        report.written += 1
        yield in_form(
            _NAME, {"input": text, "label": label, "task": trace.meta.get("task", task)}, trace.meta
        )


def _tagged(item: LabelledTrace, marks: list[str]) -> Tagged:
    """The row's parts: as they were read, if all steps are there, else with ``Step i:`` and usual spaces."""
    parts = step_parts(item.trace)
    spaces = item.trace.meta.get(_SPACES_KEY)
    if isinstance(spaces, list) and len(spaces) == 3 + 2 * len(marks) == 3 + 2 * len(parts):
        return Tagged(
            question=item.problem.text, steps=tuple(parts), marks=tuple(marks), spaces=tuple(spaces)
        )
    lines = [
        (part if part.startswith(f"Step {index}:") else f"Step {index}: {part}").strip()
        for index, part in enumerate(parts[: len(marks)], start=1)
    ]
    return plain(item.problem.text.strip(), lines, marks)


def _comes_back(tagged: Tagged, text: str, label: str) -> bool:
    try:
        again = parse(text, label)
    except RecordError:
        return False
    return (again.question, again.steps, again.marks) == (tagged.question, tagged.steps, tagged.marks)


def _count_unsigned(signs: list[BinaryLabel], end: int, report: WriteReport) -> None:
    for sign in signs[:end]:
        if sign.good is None and sign.reason != "no label":
            report.dropped[f"labels: {sign.reason}"] += 1
    if end < len(signs):
        report.dropped[f"steps: after the last one with a sign ({signs[end].reason})"] += len(signs) - end
