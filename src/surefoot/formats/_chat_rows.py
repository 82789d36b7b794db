"""Chat messages and tools of a public format as records, and written back as they were read.

A record keeps what says something of the process. A row that would not come back equal (a field of its own,
another spelling of a call) stays in the trace's ``meta`` as it was, beside the record made of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator

from surefoot.errors import RecordError
from surefoot.formats._rows import finite
from surefoot.messages import message_fields, tool_fields
from surefoot.records import Message, Step, Tool, ToolCall, Trace

Rows = Annotated[list[dict[str, Any]], AfterValidator(finite)]
"""JSON objects without NaN and infinities."""

MESSAGES_KEY, TOOLS_KEY = "message_rows", "tool_rows"
"""Where ``Trace.meta`` keeps rows that its messages and tools do not give back: the former by their index."""


def messages_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """One message for each row, in any shape that :mod:`surefoot.messages` knows.

    Raises ``RecordError`` for a row of no known shape, and if no row is an assistant's.
    """
    known = Message.model_fields.keys()
    try:
        fields = [message_fields(row) for row in rows]
    except ValueError as error:
        raise RecordError(f"field 'messages': {error}") from error
    messages = tuple(Message.model_validate({n: row[n] for n in row if n in known}) for row in fields)
    if not any(message.role == "assistant" for message in messages):
        raise RecordError("field 'messages': no message is an assistant's")
    return messages


def tools_of(rows: object) -> tuple[Tool, ...]:
    """Tools in OpenAI's shape or as flat schemas; none of what is no list of objects."""
    known = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return tuple(Tool.model_validate(tool_fields(row)) for row in known)


def kept_rows(
    messages: Sequence[Message],
    message_rows: Sequence[Mapping[str, Any]],
    tools: Sequence[Tool] = (),
    tool_rows: object = None,
) -> dict[str, Any]:
    """Entries for ``Trace.meta``: the rows that would not come back, none if all would."""
    pairs = enumerate(zip(messages, message_rows, strict=True))
    other = {str(number): row for number, (message, row) in pairs if _message_row(message) != row}
    kept: dict[str, Any] = {MESSAGES_KEY: other} if other else {}
    if [_tool_row(tool) for tool in tools] != tool_rows:
        kept[TOOLS_KEY] = tool_rows
    return kept


def message_rows(trace: Trace) -> list[dict[str, Any]]:
    """The messages of a trace as they were read, else in OpenAI's shape."""
    kept: Mapping[str, Any] = trace.meta.get(MESSAGES_KEY) or {}
    return [kept.get(str(number)) or _message_row(one) for number, one in enumerate(trace.messages)]


def tool_rows(trace: Trace) -> Any:
    """The tools of a trace as they were read, else in OpenAI's shape."""
    return trace.meta.get(TOOLS_KEY, [_tool_row(tool) for tool in trace.tools])


def whole_message(number: int, message: Message) -> Step:
    """The step that is all of a message."""
    return Step(start=0, end=len(message.content or ""), message=number, part="message", kind="message")


def _message_row(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        row["name"] = message.name
    if message.readable_reasoning:
        row["reasoning_content"] = message.readable_reasoning
    if message.tool_calls:
        row["tool_calls"] = [_call_row(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    return row


def _call_row(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tool_row(tool: Tool) -> dict[str, Any]:
    parameters = None if tool.parameters is None else json.loads(tool.parameters)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}
