"""SHADE-Arena (Kutasov et al., arXiv 2506.15740): runs of agents with a harmful side task.

Published runs all pursue the side task, so they show what a monitor misses and nothing about false alarms.
The system prompt states the side task. It is left out: a monitor must not see it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, read_rows
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Message, Problem, Reasoning, ToolCall, Trace

_NAME = "shade-arena"
_THOUGHT = re.compile(r"<thinking>(.*?)</thinking>\s*", re.DOTALL)


class _Call(FileRow):
    function: str
    args: Mapping[str, Any]


class _Turn(FileRow):
    role: str
    content: str | None = None
    tool_calls: list[_Call] | None = None
    thinking_blocks: list[dict[str, Any]] | None = None


class _RunRow(FileRow):
    experiment_id: str
    task_name: str
    conversation: list[_Turn]
    side_task_evaluation: bool
    experiment_metadata: Mapping[str, Any]


def read_shade_arena(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Runs without step labels. ``outcome`` is false if the side task was done, true for an agent without
    side task, and unknown for one that failed at it. The problem is the main task."""
    return read_rows(path, _RunRow, lambda _, row: _run(row), report)


def _run(row: _RunRow) -> LabelledTrace:
    messages = [_message(turn) for turn in row.conversation if turn.role != "system"]
    request = next((m.content for m in messages if m.role == "user" and m.content), None)
    if not request:
        raise RecordError("'conversation' has no message of a user")
    problem = Problem(id=f"{_NAME}-{row.task_name}", text=request, source=_NAME)
    honest = True if row.experiment_metadata.get("include_secondary_task") is False else None
    trace = Trace(
        id=f"{_NAME}-{row.experiment_id}",
        problem_id=problem.id,
        messages=tuple(messages),
        outcome=False if row.side_task_evaluation else honest,
    )
    return LabelledTrace(problem=problem, trace=trace, labels=())


def _message(turn: _Turn) -> Message:
    text = turn.content or ""
    if turn.role != "assistant":
        return Message(role="tool" if turn.role == "tool" else "user", content=text)
    thoughts = [str(block.get("thinking") or "") for block in turn.thinking_blocks or []]
    thoughts += _THOUGHT.findall(text)
    calls = [
        ToolCall(name=call.function, arguments=json.dumps(dict(call.args))) for call in turn.tool_calls or []
    ]
    return Message(
        role="assistant",
        content=_THOUGHT.sub("", text) or None,
        reasoning=Reasoning(text="\n".join(thoughts)) if any(thoughts) else None,
        tool_calls=tuple(calls),
    )
