"""AgentProcessBench (arXiv 2603.14465): agent runs with a label of −1, 0 or +1 for each assistant message.

All four subsets (HotpotQA, GAIA, BFCL, τ²) have the same form. −1 is an error or a consequence of one, 0 a
step that neither helps nor harms, +1 a step forward, including the correction of an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator

from surefoot.errors import RecordError
from surefoot.formats.imports import record_tools
from surefoot.formats.rows import FileRow, Finite, TraceBuilder, finite, reader_of
from surefoot.messages import read_messages
from surefoot.protocols import LabelledTrace
from surefoot.records import Message, Problem, Step, Trace

_OUTCOMES: Final = {1: True, 0: None, -1: False}

Sign = Literal[-1, 0, 1]


class _Row(FileRow):
    total_index: int | None = None
    query_index: int
    sample_index: int
    question: str | None = None
    data_source: str
    ground_truth: Finite = None
    answer_text: Finite = None
    messages: Annotated[list[dict[str, Any]], AfterValidator(finite)]
    tool_metrics: Finite = None
    tools: Finite = None
    step_labels: dict[str, Sign | None]
    """By the index of the message; null where the rater gave none."""
    final_label: Sign


@reader_of(_Row)
def read_agent_processbench(row: _Row, builder: TraceBuilder) -> LabelledTrace:
    """Runs with one step per assistant message and its human label.

    ``trace.id`` is ``data_source:query_index:sample_index``, as in the benchmark's own predictions;
    ``outcome`` is the final label (0 = unknown), ``problem.source`` the subset.
    ``meta["agent_processbench"]`` holds fields without a place in a record (``ground_truth``,
    ``tool_metrics``, the indices).
    """
    messages = _messages(row.messages)
    steps = {n: step for step, n in enumerate(n for n, m in enumerate(messages) if m.role == "assistant")}
    texts = (message.content for message in messages if message.role == "user" and message.content)
    if not (text := row.question or next(texts, None)):  # it may follow the agent's greeting
        raise RecordError("field 'question': empty, and no user message has text")
    problem = Problem(
        id=f"{row.data_source}:{row.query_index}",
        text=text,
        answer=_reference(row.ground_truth),
        source=row.data_source,
    )
    meta = {"total_index", "query_index", "sample_index", "ground_truth", "tool_metrics"}
    meta |= set() if row.question else {"question"}
    meta |= set() if row.answer_text is None or isinstance(row.answer_text, str) else {"answer_text"}
    trace = Trace(
        id=builder.numbered(f"{problem.id}:{row.sample_index}"),
        problem_id=problem.id,
        messages=messages,
        tools=record_tools(row.tools),
        steps=tuple(whole_message(n, messages[n]) for n in steps),
        granularity="message",
        answer=row.answer_text if isinstance(row.answer_text, str) else None,
        outcome=_OUTCOMES[row.final_label],
        sample=row.sample_index,
        meta={"agent_processbench": row.model_dump(include=meta)},
    )
    by_index = {str(n): step for n, step in steps.items()}
    if wrong := [index for index in row.step_labels if index not in by_index]:
        raise RecordError(f"field 'step_labels': message {wrong[0]} is not from the assistant")
    labels = tuple(
        builder.label(trace.id, by_index[index], sign, "human", reason="no label given")
        for index, sign in row.step_labels.items()
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def _messages(rows: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    try:
        messages = tuple(map(Message.model_validate, read_messages(rows, leave_out=lambda _: None)))
    except ValueError as error:
        raise RecordError(f"field 'messages': {error}") from error
    if len(messages) != len(rows):
        raise RecordError("field 'messages': a message has several results, so that labels would shift")
    if not any(message.role == "assistant" for message in messages):
        raise RecordError("field 'messages': no message is from the assistant")
    return messages


def whole_message(number: int, message: Message) -> Step:
    """The step that covers a whole message."""
    return Step(start=0, end=len(message.content or ""), message=number, part="message", kind="message")


def _reference(ground_truth: object) -> str | None:
    """The reference answer, if the row has it as text; some subsets have databases or calls there."""
    target = ground_truth.get("target") if isinstance(ground_truth, dict) else ground_truth
    values = target if isinstance(target, list) else [target]
    texts = [value for value in values if isinstance(value, str)]
    return "; ".join(texts) if texts and len(texts) == len(values) else None
