"""PRMBench (Song et al., arXiv 2501.03124): solutions into which errors were put, all steps labelled.

A row has a question and its process as they were and as modified; ``error_steps`` of the modified process
count from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats._first_error import correctness_labels
from surefoot.formats._form import Samples, form_note, in_form
from surefoot.formats._rows import ReadReport, Row, WriteReport, read_rows, write_rows
from surefoot.formats._spans import SEPARATOR_KEY, join_parts, step_parts
from surefoot.labels import LabelRule, Neutral, binary_labels
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Trace, now

_NAME = "prmbench"
_FIELDS = (
    "original_question",
    "modified_question",
    "original_process",
    "modified_process",
    "modified_steps",
    "error_steps",
    "reason",
    "idx",
    "question",
    "classification",
)
_KEPT = ("original_question", "original_process", "modified_steps", "reason", "question")
_CONTROL = "correct"
_CONTROLLED = "redundency"  # as the data set spells it
_SEPARATOR = "\n"


class _Row(Row):
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


def read_prmbench(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """The modified questions and processes: −1 for each of ``error_steps`` (counted from 1), else +1.

    ``trace.id`` is classification and ``idx``; ``meta`` holds both, the reason, the original question and
    process, ``modified_steps`` and ``error_steps`` as they were. Some rows name error steps that the process
    does not have; as in the benchmark's own evaluation they label nothing. In the classes ``redundency`` and
    ``circular`` a −1 says that the step repeats or goes in a circle, which need not make it false. The reason
    is the evidence of each −1. Rows have no times: all labels are ``created`` at the time of reading.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    moment, samples = now(), Samples()
    return read_rows(path, _Row, lambda _, row: _item(row, moment, samples), report)


def read_prmbench_controls(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """The benchmark's controls: original question and process of each ``redundency`` row, all steps +1.

    ``meta["classification"]`` is ``correct``; ``write_prmbench`` does not write them, as they are part of
    other rows. Raises as ``read_prmbench`` does.
    """
    moment, samples = now(), Samples()
    for item in read_rows(path, _Row, lambda _, row: _control(row, moment, samples), report):
        if item is not None:
            yield item


def write_prmbench(
    items: Iterable[LabelledTrace], path: Path | str, *, neutral: Neutral, threshold: float | None = None
) -> WriteReport:
    """Write the modified process of each trace and its error steps. Atomic.

    What ``read_prmbench`` noted comes back. A trace from elsewhere has no original: its row has
    ``modified_question``, ``modified_process``, ``error_steps``, ``idx`` (its id) and ``classification``
    (``unknown``) only, which is what the evaluation reads.

    A trace is dropped, and counted, if it is a chat trace, has no steps, is a control, or any step has no
    sign. ``neutral`` says what a 0 becomes; value labels are good above ``threshold``, and have no sign
    where it is ``None``.
    """
    report = WriteReport()
    write_rows(path, _rows(items, neutral, threshold, report))
    return report


def _item(row: _Row, moment: datetime, samples: Samples) -> LabelledTrace:
    if any(number < 1 for number in row.error_steps):
        raise RecordError(f"field 'error_steps': steps count from 1, not {min(row.error_steps)}")
    errors = set(row.error_steps)
    meta = {
        "idx": row.idx,
        "classification": row.classification,
        "error_steps": row.error_steps,
        **{field: getattr(row, field) for field in _KEPT if field in row.model_fields_set},
        **form_note(_NAME, row, _FIELDS),
    }
    values = [-1.0 if number in errors else 1.0 for number in range(1, len(row.modified_process) + 1)]
    return _labelled(
        row.modified_question,
        row.modified_process,
        values,
        meta=meta,
        number=samples.number(row.classification, row.idx),
        moment=moment,
        reason=row.reason,
        field="modified_process",
    )


def _control(row: _Row, moment: datetime, samples: Samples) -> LabelledTrace | None:
    if row.classification != _CONTROLLED or samples.number(row.idx):
        return None
    if row.original_question is None or row.original_process is None:
        raise RecordError("field 'original_process': missing, but it is the control")
    return _labelled(
        row.original_question,
        row.original_process,
        [1.0] * len(row.original_process),
        meta={"idx": row.idx, "classification": _CONTROL},
        number=0,
        moment=moment,
        reason=None,
        field="original_process",
    )


def _labelled(
    question: str,
    process: Sequence[str],
    values: Sequence[float],
    *,
    meta: dict[str, Any],
    number: int,
    moment: datetime,
    reason: str | None,
    field: str,
) -> LabelledTrace:
    if not process:
        raise RecordError(f"field '{field}': empty")
    text, steps = join_parts(process, _SEPARATOR)
    problem = Problem(text=question, source=_NAME)
    name = f"{meta['classification']}_{meta['idx']}"
    trace = Trace(
        id=f"{name}#{number}" if number else name,
        problem_id=problem.id,
        text=text,
        steps=steps,
        meta={**meta, SEPARATOR_KEY: _SEPARATOR},
    )
    labels = correctness_labels(trace.id, values, source=_NAME, created=moment, error_message=reason)
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


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
        own = item.problem.source == _NAME
        if own and trace.meta.get("classification") == _CONTROL:
            report.dropped["traces: control, which is part of another row"] += 1
            continue
        signs = binary_labels(
            item.labels, len(item.trace.steps), LabelRule(neutral=neutral, good_above=threshold)
        )
        missing = next((sign for sign in signs if sign.good is None), None)
        if missing is not None:
            report.dropped[f"traces: a step has no sign ({missing.reason})"] += 1
            continue
        errors = [number for number, sign in enumerate(signs, start=1) if not sign.good]
        report.written += 1
        yield in_form(_NAME, _row(item, errors, trace.meta if own else {}), trace.meta)


def _row(item: LabelledTrace, errors: list[int], kept: dict[str, Any]) -> dict[str, Any]:
    steps = step_parts(item.trace)
    known = {field: kept[field] for field in _KEPT if field in kept}
    row = {
        **known,
        "modified_question": item.problem.text,
        "modified_process": steps,
        "error_steps": _with_outside(errors, kept.get("error_steps", errors), len(steps)),
        "idx": kept.get("idx", item.trace.id),
        "classification": kept.get("classification", "unknown"),
    }
    return {field: row[field] for field in _FIELDS if field in row}


def _with_outside(errors: list[int], noted: list[int], steps: int) -> list[int]:
    """``errors`` as the row noted them if no label was changed; numbers outside the process stay."""
    if {number for number in noted if number <= steps} == set(errors):
        return list(noted)
    return errors + [number for number in noted if number > steps]
