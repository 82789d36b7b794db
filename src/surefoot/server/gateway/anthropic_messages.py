"""``/v1/messages``: Anthropic's Messages API, converted to and from chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from surefoot.messages import messages_of
from surefoot.records import Ending, Usage
from surefoot.server.gateway.errors import ApiError, ResponseModel
from surefoot.server.gateway.generation import Choice, usage_of
from surefoot.server.gateway.responses import EventWriter, output_calls
from surefoot.server.gateway.schemas import ChatRequest, ConvertedRequest, Extension, StopText, refuse

_STOP_REASONS: Mapping[Ending, str] = {
    "finished": "end_turn",
    "unknown": "end_turn",
    "truncated": "max_tokens",
    "filtered": "refusal",
    "tool_call": "tool_use",
}
_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}


class MessagesRequest(ConvertedRequest):
    """Body of ``/v1/messages``. Cache marks are ignored."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1000)
    max_tokens: int = Field(ge=1)
    system: str | list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[StopText] | None = Field(default=None, max_length=16)
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = None
    thinking: dict[str, Any] | None = None

    def as_chat(self) -> ChatRequest:
        """The same request for a chat. Raises :class:`ApiError` for unsupported fields."""
        refuse("thinking", (self.thinking or {}).get("type", "disabled") != "disabled")
        refuse("top_k", self.top_k is not None)
        system = [{"role": "system", "content": self.system}] if self.system else []
        rows = [row for message in self.messages for row in messages_of(message)]
        choice = self.tool_choice or {}
        return self.chat_request(
            [*system, *rows],
            max_tokens=self.max_tokens,
            stop=self.stop_sequences or None,
            tools=[_tool(number, tool) for number, tool in enumerate(self.tools or ())] or None,
            tool_choice=_tool_choice(choice) if choice else None,
            parallel_tool_calls=False if choice.get("disable_parallel_tool_use") else None,
        )


def _tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    refuse(f"tools.{number}.type", tool.get("type", "custom") != "custom", "tools of the provider")
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {"type": "object"}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in _CHOICES:
        raise ApiError(
            400, "tool_choice.type: choose from auto, any, tool and none", param="tool_choice.type"
        )
    return _CHOICES[str(kind)]


class MessagesUsage(ResponseModel):
    """The policy's tokens over all candidates; ``surefoot`` has the verifier's."""

    input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> MessagesUsage:
        """From the usage of a generation."""
        return cls(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)


class MessagesAnswer(ResponseModel):
    """Answer of ``/v1/messages``."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    """Blocks ``thinking``, ``text`` and ``tool_use``."""
    stop_reason: str | None
    stop_sequence: str | None = None
    usage: MessagesUsage
    surefoot: Extension


class MessagesWriter(EventWriter):
    """``message``: content blocks, or the events of a stream of them."""

    id_prefix = "msg"
    _blocks = 0
    """Number of closed blocks of a stream."""
    _open: str | None = None
    """Type of the open block."""

    def response(self, choices: Sequence[Choice]) -> MessagesAnswer:
        """See the base class."""
        (choice,) = choices
        text = choice.withheld or choice.text
        thinking = [{"type": "thinking", "thinking": choice.reasoning, "signature": ""}]
        return MessagesAnswer(
            id=str(self._head["id"]),
            model=str(self._head["model"]),
            content=[
                *(thinking if choice.reasoning and not choice.withheld else ()),
                *([{"type": "text", "text": text}] if text else ()),
                *_tool_uses(choice),
            ],
            stop_reason=_stop_reason(choice),
            usage=MessagesUsage.of(usage_of(choices)),
            surefoot=self.extension(choices),
        )

    def begin(self, count: int) -> None:  # noqa: ARG002
        """Send the empty message."""
        message = {
            "id": self._head["id"],
            "type": "message",
            "role": "assistant",
            "model": self._head["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        self.send("message_start", message=message)

    def send_reasoning(self, number: int, text: str) -> None:  # noqa: ARG002
        """See the base class."""
        self._begin("thinking", signature="")
        self._delta({"type": "thinking_delta", "thinking": text})

    def send_text(self, number: int, text: str) -> None:  # noqa: ARG002
        """See the base class."""
        self._begin("text")
        self._delta({"type": "text_delta", "text": text})

    def end(self, choices: Sequence[Choice]) -> None:
        """See the base class."""
        (choice,) = choices
        self.send_remaining(0, choice)
        if choice.withheld:
            self.send_text(0, choice.withheld)
        self._close()
        for call in output_calls(choice.tool_calls):
            self._start({"type": "tool_use", "id": call.id, "name": call.function.name, "input": {}})
            self._delta({"type": "input_json_delta", "partial_json": call.function.arguments})
            self._stop()
        self.send(
            "message_delta",
            delta={"stop_reason": _stop_reason(choice), "stop_sequence": None},
            usage=MessagesUsage.of(usage_of(choices)).model_dump(),
            surefoot=self.extension(choices).model_dump(mode="json"),
        )
        self.send("message_stop")

    def last_event(self, error: ApiError | None) -> str:
        """The error in Anthropic's format."""
        return self.event("error", error=error.anthropic_body["error"]) if error else ""

    def _begin(self, kind: str, **fields: str) -> None:
        """Open a block of this type, unless one is open."""
        if self._open != kind:
            self._close()
            self._start({"type": kind, kind: "", **fields})
            self._open = kind

    def _close(self) -> None:
        if self._open is not None:
            self._stop()
            self._open = None

    def _start(self, block: Mapping[str, Any]) -> None:
        self.send("content_block_start", index=self._blocks, content_block=block)

    def _delta(self, delta: Mapping[str, Any]) -> None:
        self.send("content_block_delta", index=self._blocks, delta=delta)

    def _stop(self) -> None:
        self.send("content_block_stop", index=self._blocks)
        self._blocks += 1


def _stop_reason(choice: Choice) -> str:
    return _STOP_REASONS["filtered" if choice.withheld else choice.ending]


def _tool_uses(choice: Choice) -> list[dict[str, Any]]:
    """Calls as blocks. Arguments that are not a JSON object are under ``_raw``."""
    blocks = []
    for call in output_calls(choice.tool_calls):
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            arguments = {"_raw": call.function.arguments}
        blocks.append({"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments})
    return blocks
