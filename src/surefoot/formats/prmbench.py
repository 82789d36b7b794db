"""PRMBench (Song et al., arXiv 2501.03124): solutions with inserted errors, all steps labelled.

A row has a question and its process, original and modified; ``error_steps`` of the modified process count
from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, TraceBuilder, read_rows, reader_of
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem

_NAME = "prmbench"
_META = ("original_question", "original_process", "modified_steps", "reason", "question")
_CONTROLLED = "redundency"  # as the data set spells it


class _PRMBenchRow(FileRow):
    modified_question: str
    modified_process: list[str]
    error_steps: list[int]
    idx: str
    classification: str
    original_question: str | None = None
    original_process: list[str] | None = None
    modified_steps: list[int] | None = None
    reason: str | None = None
    question: str | None = None


@reader_of(_PRMBenchRow, "\n")
def read_prmbench(row: _PRMBenchRow, builder: TraceBuilder) -> LabelledTrace:
    """The modified questions and processes: −1 for each of ``error_steps`` (counted from 1), else +1.

    ``trace.id`` is classification and ``idx``; ``meta`` holds both, the reason, the original question and
    process, ``modified_steps`` and ``error_steps``. Some rows name error steps that the process does not
    have; as in the benchmark's own evaluation, these are ignored. In the classes ``redundency`` and
    ``circular``, −1 means that the step repeats or is circular, not necessarily false. The reason is the
    evidence of each −1.
    """
    if any(number < 1 for number in row.error_steps):
        raise RecordError(f"field 'error_steps': steps count from 1, not {min(row.error_steps)}")
    if not row.modified_process:
        raise RecordError("field 'modified_process': empty")
    values = [
        -1.0 if number in row.error_steps else 1.0 for number in range(1, len(row.modified_process) + 1)
    ]
    return builder.labelled(
        Problem(text=row.modified_question, source=_NAME),
        row.modified_process,
        values,
        source=_NAME,
        error_message=row.reason,
        id=builder.numbered(f"{row.classification}_{row.idx}"),
        meta={
            "idx": row.idx,
            "classification": row.classification,
            "error_steps": row.error_steps,
            **{field: getattr(row, field) for field in _META if field in row.model_fields_set},
        },
    )


def read_prmbench_controls(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """The benchmark's controls: original question and process of each ``redundency`` row, all steps +1.

    ``meta["classification"]`` is ``correct``. Raises as ``read_prmbench`` does.
    """
    builder = TraceBuilder("\n")
    for item in read_rows(path, _PRMBenchRow, lambda _, row: _control(row, builder), report):
        if item is not None:
            yield item


def _control(row: _PRMBenchRow, builder: TraceBuilder) -> LabelledTrace | None:
    if row.classification != _CONTROLLED or builder.number(row.idx):
        return None
    if row.original_question is None or not row.original_process:
        raise RecordError("field 'original_process': missing, but it is the control")
    return builder.labelled(
        Problem(text=row.original_question, source=_NAME),
        row.original_process,
        [1.0] * len(row.original_process),
        source=_NAME,
        id=f"correct_{row.idx}",
        meta={"idx": row.idx, "classification": "correct"},
    )
