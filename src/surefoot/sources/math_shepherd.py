"""Math-Shepherd (Wang et al., arXiv 2312.08935): steps tagged ``ки``, and the same text with signs.

``input`` is ``"{question} Step 1: … ки\\nStep 2: … ки"``; ``label`` has ``+`` or ``-`` for each ``ки``.
"""

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

_TAG = "ки"
_FIRST = "Step 1: "
_ANSWER = "The answer is: "


class _Row(Row):
    input: str
    label: str
    task: str | None = None


def read_math_shepherd(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Traces with one label a tagged step, of kind ``value``: 1 for ``+``, 0 for ``-``.

    A sign is the hard estimate of a Monte Carlo value: 1 says that some of the completions from there reached
    the answer, not that the step is valid. ``Step i:`` is part of the text, as the policy wrote it. Rows have
    no times: all labels are ``created`` at the time of reading.

    Raises ``RecordError`` for a bad row (the label's text is not the input's) unless a ``report`` counts it.
    """
    moment = now()
    return read_rows(path, _Row, lambda _, row: _item(row, moment), report)


def write_math_shepherd(
    items: Iterable[LabelledTrace],
    path: Path | str,
    *,
    neutral: Neutral,
    threshold: float | None = 0.0,
    task: str = "MATH",
) -> WriteReport:
    """Write input and label text, with ``task`` where the trace notes none in ``meta["task"]``. Atomic.

    ``neutral`` says what a 0 becomes; value labels are positive above ``threshold``: the default is the hard
    estimate, 1 if any completion reached the answer. A step that has no sign is written without a tag, so
    that nothing is trained on it, and counted. Dropped and counted: chat traces, traces without any sign, and
    traces in whose text the tag itself occurs.
    """
    report = WriteReport()
    write_rows(path, _rows(items, neutral, threshold, task, report))
    return report


def _item(row: _Row, moment: datetime) -> LabelledTrace:
    pieces, signs = _aligned(row)
    start = pieces[0].rfind(_FIRST)
    question = pieces[0][: max(start, 0)].strip()
    if not question:
        raise RecordError(f"field 'input': no question before '{_FIRST.strip()}'")
    parts = [part.strip() for part in [pieces[0][start:], *pieces[1:]]]
    text, steps = join_parts(parts, "\n")
    problem = Problem(text=question, source="math-shepherd")
    _, mark, answer = parts[-1].rpartition(_ANSWER)
    trace = Trace(
        problem_id=problem.id,
        text=text,
        steps=steps,
        answer=answer if mark else None,
        meta={SEPARATOR_KEY: "\n", **({} if row.task is None else {"task": row.task})},
    )
    labels = tuple(
        StepLabel(
            trace_id=trace.id,
            step=index,
            kind="value",
            value=1.0 if sign == "+" else 0.0,
            source="math-shepherd",
            created=moment,
        )
        for index, sign in enumerate(signs)
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def _aligned(row: _Row) -> tuple[list[str], list[str]]:
    """Text of each tagged step and its sign. Signs are found by position: steps may hold ``+`` and ``-``."""
    *pieces, rest = row.input.split(_TAG)
    signs: list[str] = []
    place = 0
    for piece in pieces:
        place += len(piece)
        sign = row.label[place : place + 1]
        if row.label[place - len(piece) : place] != piece or sign not in ("+", "-"):
            raise RecordError(f"field 'label': does not follow 'input' near character {place}")
        signs.append(sign)
        place += 1
    if not pieces or rest.strip() or row.label[place:].strip():
        raise RecordError(f"field 'input': its text does not end with the tag '{_TAG}'")
    return pieces, signs


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
        if _TAG in trace.text or _TAG in item.problem.text:
            report.dropped[f"traces: the text has the tag '{_TAG}'"] += 1
            continue
        signs = step_signs(item, neutral=neutral, threshold=threshold)
        if all(sign.positive is None for sign in signs):
            report.dropped["traces: no step has a sign"] += 1
            continue
        lines, marks = [], []
        for index, (part, sign) in enumerate(zip(step_parts(trace), signs, strict=True), start=1):
            lines.append(part if part.startswith(f"Step {index}:") else f"Step {index}: {part}")
            if sign.positive is None:
                report.dropped[f"steps: {sign.reason}"] += 1
                marks.append("")
            else:
                marks.append("+" if sign.positive else "-")
        report.written += 1
        yield {
            "input": _text(item.problem.text, lines, [_TAG if mark else "" for mark in marks]),
            "label": _text(item.problem.text, lines, marks),
            "task": trace.meta.get("task", task),
        }


def _text(question: str, lines: list[str], marks: list[str]) -> str:
    tagged = [f"{line} {mark}" if mark else line for line, mark in zip(lines, marks, strict=True)]
    return f"{question} " + "\n".join(tagged)
