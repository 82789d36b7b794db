"""AgentProcessBench (arXiv 2603.14465): runs with tools, each assistant message labelled −1, 0 or +1.

All four subsets (HotpotQA, GAIA, BFCL, τ²) have one form. −1 is an error, or goes on from one; 0 a step that
neither helps nor harms; +1 a step forward, an error's correction too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from surefoot.errors import RecordError
from surefoot.formats._chat_rows import (
    Rows,
    kept_rows,
    message_rows,
    messages_of,
    tool_rows,
    tools_of,
    whole_message,
)
from surefoot.formats._rows import (
    FileRow,
    Finite,
    TraceBuilder,
    WriteReport,
    form_note,
    in_form,
    read_rows,
    write_rows,
)
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, Message, Problem, StepLabel, Trace, now, trusted_copy

NAME: Final = "agent-processbench"
_FIELDS = (
    "total_index",
    "query_index",
    "sample_index",
    "question",
    "data_source",
    "ground_truth",
    "answer_text",
    "messages",
    "tool_metrics",
    "tools",
    "step_labels",
    "final_label",
)
_OUTCOMES: Final = {1: True, 0: None, -1: False}

Sign = Literal[-1, 0, 1]
Signs = dict[str, Sign | None]
"""Labels by the index of their message; null where a rater or judge gave none."""


class _Row(FileRow):
    total_index: int | None = None
    query_index: int
    sample_index: int
    question: str | None = None
    data_source: str
    ground_truth: Finite = None
    answer_text: Finite = None
    messages: Rows
    tool_metrics: Finite = None
    tools: Finite = None
    step_labels: Signs
    final_label: Sign


def read_agent_processbench(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Runs with one step for each assistant message, and people's label of it.

    ``trace.id`` is ``data_source:query_index:sample_index``, as in the benchmark's own predictions;
    ``outcome`` the final label (0 is unknown), ``problem.source`` the subset. What has no field in a record
    (``ground_truth``, ``tool_metrics``, the indices) is in ``meta["agent_processbench"]``. Rows have no
    times, so all labels are ``created`` at the time of reading.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    builder = TraceBuilder("")
    return read_rows(path, _Row, lambda _, row: _item(row, builder), report)


def write_agent_processbench(items: Iterable[LabelledTrace], path: Path | str) -> WriteReport:
    """Write chat traces whose steps are whole messages, with their correctness labels. Atomic.

    Other traces are dropped and counted, as are labels of other kinds and of steps whose labels disagree. An
    unknown label is null. Traces of another origin are numbered by problem and sample.
    """
    report = WriteReport()
    write_rows(path, _written(items, report))
    return report


def _item(row: _Row, builder: TraceBuilder) -> LabelledTrace:
    messages, tools = messages_of(row.messages), tools_of(row.tools)
    said = [number for number, message in enumerate(messages) if message.role == "assistant"]
    run = run_id(row.data_source, row.query_index, row.sample_index)
    repeats = builder.number(run)
    problem = Problem(
        id=problem_id(row.data_source, row.query_index),
        text=row.question or _asked(messages),
        answer=_reference(row.ground_truth),
        source=row.data_source,
    )
    own = {"total_index", "query_index", "sample_index", "ground_truth", "tool_metrics"}
    own |= set() if row.question else {"question"}
    own |= set() if row.answer_text is None or isinstance(row.answer_text, str) else {"answer_text"}
    trace = Trace(
        id=f"{run}#{repeats}" if repeats else run,
        problem_id=problem.id,
        messages=messages,
        tools=tools,
        steps=tuple(whole_message(number, messages[number]) for number in said),
        granularity="message",
        answer=row.answer_text if isinstance(row.answer_text, str) else None,
        outcome=_OUTCOMES[row.final_label],
        sample=row.sample_index,
        meta={
            "agent_processbench": row.model_dump(include=own),
            **kept_rows(messages, row.messages, tools, row.tools),
            **form_note(NAME, row, _FIELDS),
        },
    )
    steps = {str(number): step for step, number in enumerate(said)}
    labels = step_labels(
        row.step_labels, steps, trace.id, source="human", rater=None, created=builder.created
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def _asked(messages: Sequence[Message]) -> str:
    """What the user said first, perhaps after the agent's greeting: the task of a row without a question."""
    said = next((one.content for one in messages if one.role == "user" and one.content), None)
    if said is None:
        raise RecordError("field 'question': empty, and no user's message has text")
    return said


def run_id(data_source: str, query_index: int, sample_index: int) -> str:
    """The benchmark's id of a run."""
    return f"{data_source}:{query_index}:{sample_index}"


def problem_id(data_source: str, query_index: int) -> str:
    """An id of the task, which is one for all of its runs."""
    return f"{data_source}:{query_index}"


def step_labels(
    signs: Signs,
    steps: Mapping[str, int],
    trace_id: str,
    *,
    source: str,
    rater: str | None,
    created: datetime,
) -> tuple[StepLabel, ...]:
    """The labels of a run; ``steps`` maps the indices of its assistant messages to steps.

    Raises ``RecordError`` for a label of another message.
    """
    if other := [index for index in signs if index not in steps]:
        raise RecordError(f"field 'step_labels': message {other[0]} is not an assistant's")
    usual = {
        sign: StepLabel(
            trace_id=trace_id,
            step=0,
            kind="correctness",
            value=sign,
            reason="no label given" if sign is None else None,
            source=source,
            evidence=Evidence(rater=rater),
            created=created,
        )
        for sign in set(signs.values())
    }
    return tuple(trusted_copy(usual[sign], {"step": steps[index]}) for index, sign in signs.items())


def _reference(ground_truth: object) -> str | None:
    """The answer, where the row has it as texts; other subsets have databases or calls there."""
    target = ground_truth.get("target") if isinstance(ground_truth, dict) else ground_truth
    values = target if isinstance(target, list) else [target]
    texts = [value for value in values if isinstance(value, str)]
    return "; ".join(texts) if texts and len(texts) == len(values) else None


def _written(items: Iterable[LabelledTrace], report: WriteReport) -> Iterator[dict[str, Any]]:
    queries: dict[str, int] = {}
    samples: Counter[str] = Counter()
    for item in items:
        trace, problem = item.trace, item.problem
        if trace.text is not None or trace.granularity != "message":
            what = "text, no messages" if trace.text is not None else "steps are not whole messages"
            report.dropped[f"traces: {what}"] += 1
            continue
        row = {
            "question": problem.text,
            "answer_text": trace.answer,
            "total_index": report.written,
            "query_index": queries.setdefault(problem.id, len(queries)),
            "sample_index": samples[problem.id],
            "ground_truth": problem.answer,
            "tool_metrics": {},
            **trace.meta.get("agent_processbench", {}),
        }
        samples[problem.id] += 1
        report.written += 1
        row |= {
            "data_source": problem.source or "surefoot",
            "messages": message_rows(trace),
            "tools": tool_rows(trace),
            "step_labels": _signs(item, report),
            "final_label": {outcome: sign for sign, outcome in _OUTCOMES.items()}[trace.outcome],
        }
        yield in_form(NAME, {name: row[name] for name in _FIELDS}, trace.meta)


def _signs(item: LabelledTrace, report: WriteReport) -> Signs:
    """Labels by message, in the order of the labels."""
    values: dict[int, set[float | None]] = {}
    for label in item.labels:
        if label.kind != "correctness":
            report.dropped[f"labels: kind '{label.kind}'"] += 1
        elif label.step < len(item.trace.steps):
            values.setdefault(label.step, set()).add(label.value)
    signs: Signs = {}
    for step, found in values.items():
        known = found - {None}
        if len(known) > 1:
            report.dropped["steps: labels disagree"] += 1
            continue
        sign = {1.0: 1, 0.0: 0, -1.0: -1}[known.pop()] if known else None  # type: ignore[index]
        signs[str(item.trace.steps[step].message)] = sign  # type: ignore[assignment]
    return signs


@dataclass(frozen=True, kw_only=True)
class JudgedRun:
    """Labels of one run by people and by judges, without its messages."""

    trace_id: str
    problem_id: str
    subset: str
    steps: int
    outcome: bool | None
    labels: tuple[StepLabel, ...]
    """People's."""
    judges: Mapping[str, tuple[StepLabel, ...]]
    """By the judge's name; source ``judge``, with the name as the rater."""


class _Judge(FileRow):
    step_labels: Signs
    final_label: Sign | None = None


class _JudgedRow(FileRow):
    dataset: str
    data_source: str
    query_index: int
    sample_index: int
    human_step_labels: dict[str, Sign]
    human_final_label: Sign
    judges: dict[str, _Judge]


def read_agent_judgements(path: Path | str, *, report: ReadReport | None = None) -> Iterator[JudgedRun]:
    """People's labels of AgentProcessBench beside those of stored judges, one run a row.

    Ids are those of :func:`read_agent_processbench`. Steps are the labelled messages in order. Raises
    ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    created = now()
    return read_rows(path, _JudgedRow, lambda _, row: _judged(row, created), report)


def _judged(row: _JudgedRow, created: datetime) -> JudgedRun:
    run = run_id(row.data_source, row.query_index, row.sample_index)
    steps = {index: step for step, index in enumerate(row.human_step_labels)}
    if not steps:
        raise RecordError("field 'human_step_labels': empty")
    if not all(index.isdecimal() for index in steps) or sorted(steps, key=int) != list(steps):
        raise RecordError("field 'human_step_labels': message indices must be ascending numbers")

    def labels(signs: Signs, source: str, rater: str | None) -> tuple[StepLabel, ...]:
        return step_labels(signs, steps, run, source=source, rater=rater, created=created)

    return JudgedRun(
        trace_id=run,
        problem_id=problem_id(row.data_source, row.query_index),
        subset=row.data_source,
        steps=len(steps),
        outcome=_OUTCOMES[row.human_final_label],
        labels=labels(dict(row.human_step_labels), "human", None),
        judges={name: labels(judge.step_labels, "judge", name) for name, judge in row.judges.items()},
    )


class _PredictedRow(FileRow):
    data_source: str
    query_index: int
    sample_index: int
    annotator: str = "judge"
    step_labels: Signs
    explanations: Finite = None


def read_agent_predictions(
    path: Path | str, *, report: ReadReport | None = None
) -> Iterator[tuple[StepLabel, ...]]:
    """Labels of one run after another, as the benchmark's own script writes its judge's.

    It names every assistant message, so the n-th is step n; the judge is the rater, and its explanation of a
    step the evidence. Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    created = now()
    return read_rows(path, _PredictedRow, lambda _, row: _predicted(row, created), report)


def _predicted(row: _PredictedRow, created: datetime) -> tuple[StepLabel, ...]:
    if not all(index.isdecimal() for index in row.step_labels):
        raise RecordError("field 'step_labels': message indices must be numbers")
    run = run_id(row.data_source, row.query_index, row.sample_index)
    steps = {index: step for step, index in enumerate(sorted(row.step_labels, key=int))}
    labels = step_labels(row.step_labels, steps, run, source="judge", rater=row.annotator, created=created)
    said = row.explanations.get("steps") if isinstance(row.explanations, dict) else None
    if not isinstance(said, dict):
        return labels
    reasons = {steps[index]: text for index, text in said.items() if index in steps and isinstance(text, str)}
    return tuple(
        label
        if not reasons.get(label.step)
        else label.model_copy(update={"evidence": Evidence(rater=row.annotator, message=reasons[label.step])})
        for label in labels
    )
