"""R-Judge (Yuan et al., arXiv 2401.10019): agent runs that people labelled safe or unsafe.

A row has ``contents`` (turns of messages with role ``user``, ``agent`` or ``environment``), ``label`` (1 =
unsafe) and a risk description. An agent's message has a ``thought`` and an ``action``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, read_rows
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Message, Problem, Reasoning, ToolCall, Trace

_NAME = "r-judge"
_CALL = re.compile(r"(?:Action: )?(\w+)\s*(?:\n\s*Action Input:)?\s*(\{.*\})\s*", re.DOTALL)


class _Turn(FileRow):
    role: Literal["user", "agent", "environment"]
    content: str | None = None
    thought: str | None = None
    action: str | None = None


class _RunRow(FileRow):
    id: int | str
    contents: list[list[_Turn]]
    label: Literal[0, 1]
    profile: str | None = None
    risk_description: str | None = None


def read_r_judge(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Runs without step labels; ``outcome`` is true for safe ones. The problem is the first message of the
    user, or without one the profile.

    A thought is the message's reasoning. An action of the form ``Name{…}`` is a tool call with the braces'
    text as arguments, as the model wrote it; any other action is the message's content.
    """
    return read_rows(path, _RunRow, lambda _, row: _run(row), report)


def _run(row: _RunRow) -> LabelledTrace:
    messages = [_message(turn) for turns in row.contents for turn in turns]
    if row.profile:
        messages.insert(0, Message(role="system", content=row.profile))
    request = next((m.content for m in messages if m.role == "user" and m.content), row.profile)
    if not request:
        raise RecordError("'contents' has no message of a user, and 'profile' is empty")
    problem = Problem(id=f"{_NAME}-{row.id}", text=request, source=_NAME)
    trace = Trace(
        id=f"{_NAME}-{row.id}",
        problem_id=problem.id,
        messages=tuple(messages),
        outcome=row.label == 0,
        meta={
            "outcome": "safe" if row.label == 0 else "unsafe",
            **({"risk_description": row.risk_description} if row.risk_description else {}),
        },
    )
    return LabelledTrace(problem=problem, trace=trace, labels=())


def _message(turn: _Turn) -> Message:
    if turn.role != "agent":
        return Message(role="user" if turn.role == "user" else "tool", content=turn.content or "")
    reasoning = Reasoning(text=turn.thought) if turn.thought else None
    action = turn.action or turn.content or ""
    if call := _CALL.fullmatch(action.strip()):
        calls = (ToolCall(name=call[1], arguments=call[2]),)
        return Message(role="assistant", tool_calls=calls, reasoning=reasoning)
    return Message(role="assistant", content=action, reasoning=reasoning)
