"""ProcessBench (Zheng et al., arXiv 2412.06559): first error of a solution, found by human experts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from surefoot.errors import RecordError
from surefoot.formats.account import parsed
from surefoot.formats.rows import (
    FileRow,
    TraceBuilder,
    WriteReport,
    first_error_values,
    reader_of,
    step_parts,
    write_rows,
)
from surefoot.labels import AFTER_FIRST_ERROR, NO_ERROR, LabelRule, Neutral, binary_labels, first_error
from surefoot.protocols import LabelledTrace
from surefoot.records import Answer, Attachment, Message, Problem, Step, Trace

_NAME = "processbench"


class _ProcessBenchRow(FileRow):
    id: str
    generator: str
    problem: str
    steps: list[str]
    final_answer_correct: bool
    label: int


@reader_of(_ProcessBenchRow, "\n\n")
def read_processbench(row: _ProcessBenchRow, builder: TraceBuilder) -> LabelledTrace:
    """Solutions with one label per step: +1 before the first error, −1 there, unknown after it.

    ``trace.id`` and ``meta["id"]`` are the record's id (a repeated id gets a number), ``trace.policy`` the
    generator, ``outcome`` whether the final answer is correct (which is possible despite an error).
    """
    values = first_error_values(row.steps, None if row.label == NO_ERROR else row.label, "label")
    problem = Problem(text=row.problem, source=_NAME)
    return builder.labelled(
        problem,
        row.steps,
        values,
        source="human",
        id=builder.numbered(row.id),
        outcome=row.final_answer_correct,
        policy=row.generator,
        meta={"id": row.id},
    )


def write_processbench(
    items: Iterable[LabelledTrace], path: Path | str, *, neutral: Neutral, threshold: float | None = None
) -> WriteReport:
    """Write the first error of each trace (0-based, −1 = none). Atomic; ``.json`` gives an array.

    A trace is dropped, and counted, if it is a chat trace, if its outcome is unknown, or if a step up to its
    first error lacks a sign; signs after the error are counted, too. ``neutral`` says what a 0 becomes; value
    labels are good above ``threshold``, and are ignored if it is ``None``.
    """
    report = WriteReport()
    rule = LabelRule(neutral=neutral, good_above=threshold)
    write_rows(path, _rows(items, rule, report))
    return report


def _rows(items: Iterable[LabelledTrace], rule: LabelRule, report: WriteReport) -> Iterator[dict[str, Any]]:
    for item in items:
        trace = item.trace
        labels = binary_labels(item.labels, len(trace.steps), rule)
        error = first_error([label.good for label in labels])
        unsigned = next((label.reason for label in labels if label.good is None), None)
        obstacles = {
            "chat trace": trace.text is None,
            "no steps": not trace.steps,
            "outcome unknown": trace.outcome is None,
            f"no sign before the first error ({unsigned})": error is None,
        }
        if reason := next((why for why, holds in obstacles.items() if holds), ""):
            report.dropped[f"traces: {reason}"] += 1
            continue
        if error is not None and error != NO_ERROR:
            later = sum(label.good is not None for label in labels[error + 1 :])
            report.dropped.update({f"signs: {AFTER_FIRST_ERROR}": later} if later else {})
        report.written += 1
        yield {
            "id": trace.meta.get("id", trace.id) if item.problem.source == _NAME else trace.id,
            "generator": trace.policy if trace.policy is not None else "unknown",
            "problem": item.problem.text,
            "steps": step_parts(trace),
            "final_answer_correct": trace.outcome,
            "label": error,
        }


_VISUAL_NAME = "visual-processbench"
_SEPARATOR = "\n\n"


class _Response(FileRow):
    steps: list[str]
    process_correctness: list[Literal[-1, 0, 1]]


class _Row(FileRow):
    image: str | list[str]
    question: str
    answer: Answer = None
    response: _Response
    policy_model: str | None = None
    data_source: str | None = None


@reader_of(dict[str, Any], _SEPARATOR)
def read_visual_processbench(raw: dict[str, Any], builder: TraceBuilder) -> LabelledTrace:
    """Chats of a question with its images and an answer, with a label of −1, 0 or +1 for each step.

    The labels are independent of each other, as in PRM800K. Steps are joined by blank lines; ``image`` is a
    path relative to the file.
    """
    row = _Row.model_validate({**raw, "response": parsed(raw.get("response"))})  # text in the set's viewer
    steps, signs = row.response.steps, row.response.process_correctness
    if len(steps) != len(signs) or not steps:
        raise RecordError(f"field 'process_correctness': {len(signs)} for {len(steps)} steps")
    problem = Problem(text=row.question, answer=row.answer, source=row.data_source or _VISUAL_NAME)
    paths = [row.image] if isinstance(row.image, str) else row.image
    pictures = tuple(Attachment(kind="image", uri=path) for path in paths)
    text = builder.trace(problem, steps)
    trace = Trace(
        problem_id=problem.id,
        policy=row.policy_model,
        messages=(
            Message(role="user", content=row.question, attachments=pictures),
            Message(role="assistant", content=text.text),
        ),
        steps=tuple(Step(start=step.start, end=step.end, message=1) for step in text.steps),
        sample=text.sample,
    )
    labels = tuple(builder.label(trace.id, step, sign, "human") for step, sign in enumerate(signs))
    return LabelledTrace(problem=problem, trace=trace, labels=labels)
