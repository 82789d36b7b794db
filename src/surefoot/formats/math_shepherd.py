"""Math-Shepherd (Wang et al., arXiv 2312.08935): steps tagged ``ки``, and the same text with signs.

``input`` is ``"{question} Step 1: … ки\\nStep 2: … ки"``; ``label`` has ``+`` or ``-`` in place of each
``ки``.
"""

from __future__ import annotations

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, TraceBuilder, reader_of
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem

TAG = "ки"
_FIRST = "Step 1: "
_NAME = "math-shepherd"
_ANSWER = "The answer is: "


class _MathShepherdRow(FileRow):
    input: str
    label: str
    task: str | None = None


@reader_of(_MathShepherdRow, "\n")
def read_math_shepherd(row: _MathShepherdRow, builder: TraceBuilder) -> LabelledTrace:
    """Traces with one label per tagged step, of kind ``value``: 1 for ``+``, 0 for ``-``.

    A sign is the hard estimate of a Monte Carlo value: 1 means that some completion from there reached the
    answer, not that the step is valid. ``Step i:`` is part of the text, as the policy wrote it. A line that
    begins with the next step's number, without a tag before it, is a separate step, and the step before it
    stays unlabelled.
    """
    question, steps, marks = _parse(row.input, row.label)
    problem = Problem(text=question, source=_NAME)
    _, mark, answer = steps[-1].rpartition(_ANSWER)
    meta = {} if row.task is None else {"task": row.task}
    trace = builder.trace(problem, steps, answer=answer if mark else None, meta=meta)
    labels = tuple(
        builder.label(trace.id, step, float(mark == "+"), _NAME, kind="value")
        for step, mark in enumerate(marks)
        if mark
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def _parse(text: str, label: str) -> tuple[str, list[str], list[str]]:
    """Question, steps and marks of a row: ``+``, ``-``, or empty for a step without a tag.

    A line that begins with the number of the next step begins an untagged step.

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
    return question, steps, marks


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
