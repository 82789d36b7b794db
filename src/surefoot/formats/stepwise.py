"""Stepwise supervision as in TRL (up to 1.13): ``prompt``, ``completions`` and boolean ``labels``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, TraceBuilder, WriteReport, reader_of, step_parts, write_rows
from surefoot.labels import LabelRule, Neutral, binary_labels
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem

_NAME = "stepwise"


class _StepwiseRow(FileRow):
    prompt: str
    completions: list[str]
    labels: list[bool]


@reader_of(_StepwiseRow, "\n")
def read_stepwise(row: _StepwiseRow, builder: TraceBuilder) -> LabelledTrace:
    """Traces with one correctness label per completion, +1 or −1; steps are joined by line breaks."""
    if not row.completions or len(row.completions) != len(row.labels):
        raise RecordError(f"field 'labels': {len(row.labels)} for {len(row.completions)} completions")
    problem = Problem(text=row.prompt, source=_NAME)
    values = [1.0 if good else -1.0 for good in row.labels]
    return builder.labelled(problem, row.completions, values, source=_NAME)


def write_stepwise(
    items: Iterable[LabelledTrace], path: Path | str, *, neutral: Neutral, threshold: float | None = None
) -> WriteReport:
    """Write the first unbroken run of signed steps of each trace. Atomic.

    The format needs a label for every completion. Unsigned steps before the run (the shared prefix of an
    alternative) are appended to the prompt, one per line; steps after it are dropped and counted by reason,
    as are chat traces and traces without any sign. ``neutral`` says what a 0 becomes; value labels are good
    above ``threshold``, and are ignored if it is ``None``.
    """
    report = WriteReport()
    rule = LabelRule(neutral=neutral, good_above=threshold)
    write_rows(path, _rows(items, rule, report))
    return report


def _rows(items: Iterable[LabelledTrace], rule: LabelRule, report: WriteReport) -> Iterator[dict[str, Any]]:
    for item in items:
        if item.trace.text is None:
            report.dropped["traces: chat trace"] += 1
            continue
        signs = binary_labels(item.labels, len(item.trace.steps), rule)
        start = next((index for index, sign in enumerate(signs) if sign.good is not None), None)
        if start is None:
            report.dropped["traces: no step has a sign"] += 1
            continue
        labels = [bool(sign.good) for sign in takewhile(lambda sign: sign.good is not None, signs[start:])]
        end = start + len(labels)
        if end < len(signs):
            report.dropped[f"steps: from one without a sign on ({signs[end].reason})"] += len(signs) - end
        parts = step_parts(item.trace)
        report.written += 1
        yield {
            "prompt": "\n".join([item.problem.text, *parts[:start]]),
            "completions": parts[start:end],
            "labels": labels,
        }
