"""How a problem becomes the prompt of a policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.records import Message, Problem, ToolCall


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    """``{problem}`` in ``template`` is replaced by the problem's text.

    With ``chat`` the result is a user message (after ``system``, if given) for the chat template; without
    it the text is given to the model as it stands.
    """

    template: str = "{problem}\n"
    chat: bool = False
    system: str | None = None

    def __post_init__(self) -> None:
        if "{problem}" not in self.template:
            raise ValueError("the prompt template must contain '{problem}'")
        if self.system is not None and not self.chat:
            raise ValueError("a system message needs chat=True; put it in the template otherwise")

    def render(self, problem: Problem) -> str | tuple[Message, ...]:
        """The prompt for ``problem``."""
        text = self.template.replace("{problem}", problem.text)
        if not self.chat:
            return text
        system = (Message(role="system", content=self.system),) if self.system is not None else ()
        return (*system, Message(role="user", content=text))


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the shape that chat templates read.

    A field without content is left out, since templates ask for its presence (Llama 3.1: ``'tool_calls' in
    message``); a tool call is ``{"type": "function", "function": {"name", "arguments"}}``, its arguments an
    object where their text is one.
    """
    return [_template_message(message) for message in messages]


def _template_message(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = message.model_dump(include={"role", "content", "tool_call_id"}, exclude_none=True)
    if message.tool_calls:
        row["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return row


def _template_call(call: ToolCall) -> dict[str, Any]:
    arguments: Any = call.arguments
    try:
        parsed = json.loads(call.arguments)
    except ValueError:
        parsed = None  # as the model wrote it: the template decides
    if isinstance(parsed, dict):
        arguments = parsed
    row: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
    return row if call.id is None else {"id": call.id, **row}
