"""VisualProcessBench (VisualPRM, arXiv 2503.10291): solutions of questions with images, step by step."""

from __future__ import annotations

from typing import Any, Literal

from surefoot.errors import RecordError
from surefoot.formats.account import parsed
from surefoot.formats.rows import FileRow, TraceBuilder, reader_of
from surefoot.protocols import LabelledTrace
from surefoot.records import Answer, Attachment, Message, Problem, Step, Trace

_NAME = "visual-processbench"
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
    problem = Problem(text=row.question, answer=row.answer, source=row.data_source or _NAME)
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
