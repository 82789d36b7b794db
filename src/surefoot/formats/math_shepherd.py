"""Math-Shepherd (Wang et al., arXiv 2312.08935): steps tagged ``ки``, and the same text with signs.

``input`` is ``"{question} Step 1: … ки\\nStep 2: … ки"``; ``label`` has ``+`` or ``-`` in place of each
``ки``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, TraceBuilder, WriteReport, read_rows, step_parts, write_rows
from surefoot.io.files import ReadReport
from surefoot.labels import BinaryLabel, LabelRule, Neutral, binary_labels
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel

TAG = "ки"
_FIRST = "Step 1: "
_NAME = "math-shepherd"
_ANSWER = "The answer is: "
_MARKS = {True: "+", False: "-", None: ""}


class _MathShepherdRow(FileRow):
    input: str
    label: str
    task: str | None = None


def read_math_shepherd(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Traces with one label per tagged step, of kind ``value``: 1 for ``+``, 0 for ``-``.

    A sign is the hard estimate of a Monte Carlo value: 1 means that some completion from there reached the
    answer, not that the step is valid. ``Step i:`` is part of the text, as the policy wrote it. A line that
    begins with the next step's number, without a tag before it, is a separate step, and the step before it
    has no label.

    Raises ``RecordError`` for a bad row (the label's text differs from the input's) unless a ``report``
    counts it.
    """
    builder = TraceBuilder("\n")
    return read_rows(path, _MathShepherdRow, lambda _, row: _labelled(row, builder), report)


def write_math_shepherd(
    items: Iterable[LabelledTrace],
    path: Path | str,
    *,
    neutral: Neutral,
    threshold: float | None = 0.0,
    task: str = "MATH",
) -> WriteReport:
    """Write input and label text, with ``task`` for traces without ``meta["task"]``. Atomic.

    ``neutral`` says what a 0 becomes; value labels are good above ``threshold``: the default is the hard
    estimate, 1 if any completion reached the answer. White space around steps is the format's own.

    A row ends with a tag, so the steps after the last signed one are dropped and counted. An earlier step
    without a sign is written without a tag, so that nothing is trained on it, and read back as a step without
    a label (counted, unless it had no label at all). Dropped and counted as a whole: chat traces, traces
    without any sign, traces whose text contains the tag, and traces that the reader would cut differently (a
    step contains a line with the next step's number).
    """
    report = WriteReport()
    rule = LabelRule(neutral=neutral, good_above=threshold)
    write_rows(path, _rows(items, rule, task, report))
    return report


@dataclass(frozen=True)
class _TaggedText:
    """The parts of a row: question, steps without surrounding white space, and a mark per step."""

    question: str
    steps: tuple[str, ...]
    marks: tuple[str, ...]
    """``+``, ``-``, or empty for a step without a tag."""

    def render(self) -> tuple[str, str]:
        """``input`` and ``label``, with the usual white space."""
        pairs = list(zip(self.steps, self.marks, strict=True))
        text = "\n".join(f"{step} {TAG}" if mark else step for step, mark in pairs)
        label = "\n".join(f"{step} {mark}" if mark else step for step, mark in pairs)
        return f"{self.question} {text}", f"{self.question} {label}"


def _labelled(row: _MathShepherdRow, builder: TraceBuilder) -> LabelledTrace:
    tagged = _parse(row.input, row.label)
    problem = Problem(text=tagged.question, source=_NAME)
    _, mark, answer = tagged.steps[-1].rpartition(_ANSWER)
    meta = {} if row.task is None else {"task": row.task}
    trace = builder.trace(problem, tagged.steps, answer=answer if mark else None, meta=meta)
    labels = tuple(
        StepLabel(
            trace_id=trace.id,
            step=index,
            kind="value",
            value=1.0 if mark == "+" else 0.0,
            source=_NAME,
            created=builder.created,
        )
        for index, mark in enumerate(tagged.marks)
        if mark
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def _rows(
    items: Iterable[LabelledTrace], rule: LabelRule, task: str, report: WriteReport
) -> Iterator[dict[str, Any]]:
    for item in items:
        trace = item.trace
        if trace.text is None:
            report.dropped["traces: chat trace"] += 1
            continue
        if TAG in trace.text or TAG in item.problem.text:
            report.dropped[f"traces: the text has the tag '{TAG}'"] += 1
            continue
        signs = binary_labels(item.labels, len(trace.steps), rule)
        end = max((index for index, sign in enumerate(signs, start=1) if sign.good is not None), default=0)
        if not end:
            report.dropped["traces: no step has a sign"] += 1
            continue
        tagged = _tagged(item, [_MARKS[sign.good] for sign in signs[:end]])
        text, label = tagged.render()
        if not _reads_back(tagged, text, label):
            report.dropped["traces: the reader would cut its steps differently"] += 1
            continue
        _count_unsigned(signs, end, report)
        report.written += 1
        yield {"input": text, "label": label, "task": trace.meta.get("task", task)}


def _tagged(item: LabelledTrace, marks: list[str]) -> _TaggedText:
    """The row's parts, each step with its ``Step i:``."""
    parts = step_parts(item.trace)[: len(marks)]
    steps = [
        (part if part.startswith(f"Step {index}:") else f"Step {index}: {part}").strip()
        for index, part in enumerate(parts, start=1)
    ]
    return _TaggedText(item.problem.text.strip(), tuple(steps), tuple(marks))


def _reads_back(tagged: _TaggedText, text: str, label: str) -> bool:
    try:
        return _parse(text, label) == tagged
    except RecordError:
        return False


def _count_unsigned(signs: list[BinaryLabel], end: int, report: WriteReport) -> None:
    for sign in signs[:end]:
        if sign.good is None and sign.reason != "no label":
            report.dropped[f"labels: {sign.reason}"] += 1
    if end < len(signs):
        report.dropped[f"steps: after the last one with a sign ({signs[end].reason})"] += len(signs) - end


def _parse(text: str, label: str) -> _TaggedText:
    """Take a row apart; a line that begins with the number of the next step begins an untagged step.

    Raises ``RecordError`` if ``label`` does not follow ``text``, or without a question.
    """
    pieces, signs = _align(text, label)
    start = pieces[0].rfind(_FIRST)
    question = pieces[0][: max(start, 0)].strip()
    if not question:
        raise RecordError(f"field 'input': no question before '{_FIRST.strip()}'")
    steps: list[str] = []
    marks: list[str] = []
    for piece, sign in zip([pieces[0][start:], *pieces[1:]], signs, strict=True):
        chunks = _chunks(piece, len(steps) + 1)
        steps += [chunk.strip() for chunk in chunks]
        marks += [*[""] * (len(chunks) - 1), sign]
    return _TaggedText(question, tuple(steps), tuple(marks))


def _chunks(piece: str, number: int) -> list[str]:
    """A tagged piece, cut before each line that begins with the number of the step after it."""
    chunks: list[str] = []
    while True:
        number += 1
        cut = piece.find(f"\nStep {number}:", 1)
        if cut < 0 or not piece[:cut].strip():
            return [*chunks, piece]
        chunks.append(piece[: cut + 1])
        piece = piece[cut + 1 :]


def _align(text: str, label: str) -> tuple[list[str], list[str]]:
    """Text of each tagged piece and its sign, located by position: steps may contain ``+`` and ``-``."""
    *pieces, end = text.split(TAG)
    signs: list[str] = []
    position = 0
    for piece in pieces:
        position += len(piece)
        sign = label[position : position + 1]
        if label[position - len(piece) : position] != piece or sign not in ("+", "-"):
            raise RecordError(f"field 'label': does not follow 'input' near character {position}")
        signs.append(sign)
        position += 1
    if not pieces or end.strip() or label[position:].strip():
        raise RecordError(f"field 'input': its text does not end with the tag '{TAG}'")
    return pieces, signs
