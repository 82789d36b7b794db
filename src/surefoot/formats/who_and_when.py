"""Who&When (arXiv 2505.00212): failed runs of several agents, with the agent and the step that people blame.

Every entry of a run's history is a step, so indices are the data set's own. It marks the decisive error
alone: nothing is known of the other steps, neither before nor after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats._chat_rows import MESSAGES_KEY, whole_message
from surefoot.formats._rows import FileRow, WriteReport, form_note, in_form, read_rows, write_rows
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, Message, Problem, StepLabel, Trace, now

NAME: Final = "who-and-when"
_FIELDS = (
    "question",
    "question_ID",
    "ground_truth",
    "history",
    "mistake_agent",
    "mistake_step",
    "mistake_reason",
)
_PERSON: Final = "human"


class _Turn(FileRow):
    role: str
    content: str | None = None
    name: str | None = None


class _Row(FileRow):
    question: str
    question_ID: str  # noqa: N815 - as the data set spells it
    ground_truth: str | None = None
    history: list[_Turn]
    mistake_agent: str
    mistake_step: str | int
    mistake_reason: str | None = None


def read_who_and_when(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Failed runs with one label: −1 at the step that people blame, with their reason as its evidence.

    Entries of agents become assistant messages with the agent as ``name`` (:func:`agent_name` takes off what
    the hand-crafted runs add to it); those of the person who asks, user messages. A file may be one object,
    as the data set has them. Rows have no times, so labels are ``created`` at the time of reading.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    created = now()
    return read_rows(path, _Row, lambda _, row: _item(row, created), report)


def write_who_and_when(items: Iterable[LabelledTrace], path: Path | str) -> WriteReport:
    """Write chat traces with their first step labelled −1 as the one to blame. Atomic.

    Text traces and those without such a step are dropped and counted, as are further labels.
    """
    report = WriteReport()
    write_rows(path, _written(items, report))
    return report


def agent_name(message: Message) -> str | None:
    """Who speaks: ``Orchestrator`` for ``Orchestrator (thought)``; ``None`` for whom no agent is."""
    if message.role != "assistant":
        return None
    return (message.name or "assistant").split(" (")[0]


def _item(row: _Row, created: datetime) -> LabelledTrace:
    messages = tuple(_message(turn) for turn in row.history)
    blamed = str(row.mistake_step)
    if not blamed.isdecimal() or int(blamed) >= len(messages):
        raise RecordError(f"field 'mistake_step': {blamed!r}, but there are {len(messages)} steps")
    problem = Problem(text=row.question, answer=row.ground_truth, source=NAME)
    roles = [turn.role for turn in row.history]
    rows = [turn.model_dump(exclude_unset=True) for turn in row.history]
    kept = {str(n): one for n, one in enumerate(rows) if _turn_row(messages[n], roles[n]) != one}
    trace = Trace(
        problem_id=problem.id,
        messages=messages,
        steps=tuple(whole_message(number, message) for number, message in enumerate(messages)),
        granularity="message",
        outcome=False,
        meta={
            "who_and_when": {
                "question_ID": row.question_ID,
                "mistake_agent": row.mistake_agent,
                "mistake_step": row.mistake_step,
                "roles": roles,
            },
            **({MESSAGES_KEY: kept} if kept else {}),
            **form_note(NAME, row, _FIELDS),
        },
    )
    label = StepLabel(
        trace_id=trace.id,
        step=int(blamed),
        kind="correctness",
        value=-1,
        source="human",
        evidence=Evidence(message=row.mistake_reason),
        created=created,
    )
    return LabelledTrace(problem=problem, trace=trace, labels=(label,))


def _message(turn: _Turn) -> Message:
    if turn.name is None and turn.role in (_PERSON, "user"):
        return Message(role="user", content=turn.content)
    return Message(role="assistant", content=turn.content, name=turn.name or turn.role)


def _turn_row(message: Message, role: str) -> dict[str, Any]:
    name = {} if message.name in (None, role) else {"name": message.name}
    return {"content": message.content, "role": role, **name}


def _written(items: Iterable[LabelledTrace], report: WriteReport) -> Iterator[dict[str, Any]]:
    for item in items:
        trace = item.trace
        wrong = [one for one in item.labels if one.kind == "correctness" and one.value == -1]
        first = min(wrong, key=lambda one: one.step, default=None)
        place = None if first is None else trace.steps[first.step].message
        if first is None or place is None:
            report.dropped[
                "traces: " + ("no step labelled −1" if first is None else "text, no messages")
            ] += 1
            continue
        if others := len(item.labels) - 1:
            report.dropped["labels: beside that of the step to blame"] += others
        report.written += 1
        own = trace.meta.get("who_and_when", {})
        unchanged = str(own.get("mistake_step")) == str(place)
        row = {
            "question": item.problem.text,
            "question_ID": own.get("question_ID", item.problem.id),
            "ground_truth": item.problem.answer,
            "history": _history(trace, own.get("roles")),
            "mistake_agent": own["mistake_agent"]
            if unchanged
            else agent_name(trace.messages[place]) or _PERSON,
            "mistake_step": own["mistake_step"] if unchanged else str(place),
            "mistake_reason": first.evidence.message,
        }
        yield in_form(NAME, row, trace.meta)


def _history(trace: Trace, roles: list[str] | None) -> list[dict[str, Any]]:
    kept = trace.meta.get(MESSAGES_KEY) or {}
    return [
        kept.get(str(number)) or _turn_row(message, roles[number] if roles else message.role)
        for number, message in enumerate(trace.messages)
    ]
