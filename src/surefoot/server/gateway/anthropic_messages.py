"""``/v1/messages``: Anthropic's Messages API in front of the conversations of this gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from surefoot.messages import messages_of
from surefoot.records import Usage
from surefoot.server.gateway.conversations import chat_messages, chat_request, refuse
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.plan import CONTENT_FILTER, GeneratedChoice, Generation
from surefoot.server.gateway.responses import ResponseWriter, extension, output_calls
from surefoot.server.gateway.schemas import (
    ChatRequest,
    Extension,
    RequestModel,
    ResponseModel,
    StopText,
    StrategyOptions,
)

_STOP_REASONS: Mapping[str, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    CONTENT_FILTER: "refusal",
}
_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}


class MessagesRequest(RequestModel):
    """Body of ``/v1/messages``. Cache marks are ignored."""

    model: str = Field(max_length=300)
    """As for ``/v1/chat/completions``."""
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1000)
    max_tokens: int = Field(ge=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=128)
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[StopText] | None = Field(default=None, max_length=16)
    stream: bool | None = False
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = None
    thinking: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    surefoot: StrategyOptions | None = None
    """Not Anthropic's, as ``seed``."""

    def as_chat(self) -> ChatRequest:
        """The same request for a chat. Raises :class:`ApiError` for what cannot be said there."""
        refuse("thinking", (self.thinking or {}).get("type", "disabled") != "disabled")
        refuse("top_k", self.top_k is not None)
        system = [{"role": "system", "content": self.system}] if self.system else []
        rows = [row for message in self.messages for row in messages_of(message)]
        choice = self.tool_choice or {}
        return chat_request(
            model=self.model,
            messages=chat_messages([*system, *rows]),
            max_tokens=self.max_tokens,
            stop=self.stop_sequences or None,
            stream=self.stream,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            metadata=self.metadata,
            surefoot=self.surefoot,
            tools=[_tool(number, tool) for number, tool in enumerate(self.tools or ())] or None,
            tool_choice=_choice(choice) if choice else None,
            parallel_tool_calls=False if choice.get("disable_parallel_tool_use") else None,
        )


def _tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    refuse(f"tools.{number}.type", tool.get("type", "custom") != "custom", "tools of the provider")
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {"type": "object"}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in _CHOICES:
        raise ApiError(
            400, "tool_choice.type: choose from auto, any, tool and none", param="tool_choice.type"
        )
    return _CHOICES[str(kind)]


class MessagesUsage(ResponseModel):
    """Tokens of the policy over all candidates; those of the verifier are in ``surefoot``."""

    input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> MessagesUsage:
        """From the usage of a search."""
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


class MessagesWriter(ResponseWriter):
    """``message``: content blocks, or the events of a stream of them."""

    id_prefix = "msg"
    _blocks = 0
    """Blocks of a stream that are closed."""
    _open = False
    """Whether a block of text is open after those."""

    def response(self, generation: Generation) -> MessagesAnswer:
        """As the base says."""
        (choice,) = generation.choices
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
            usage=MessagesUsage.of(generation.usage),
            surefoot=extension(generation, self._candidates),
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
        self._send("message_start", message=message)

    def send_text(self, number: int, text: str) -> None:  # noqa: ARG002
        """As the base says."""
        if not self._open:
            self._start({"type": "text", "text": ""})
            self._open = True
        self._delta({"type": "text_delta", "text": text})

    def end(self, generation: Generation) -> None:
        """As the base says."""
        (choice,) = generation.choices
        self.send_rest(0, choice)
        if choice.withheld:
            self.send_text(0, choice.withheld)
        if self._open:
            self._stop()
            self._open = False
        if choice.reasoning and not choice.withheld:
            self._start({"type": "thinking", "thinking": "", "signature": ""})
            self._delta({"type": "thinking_delta", "thinking": choice.reasoning})
            self._stop()
        for call in output_calls(choice.tool_calls):
            self._start({"type": "tool_use", "id": call.id, "name": call.function.name, "input": {}})
            self._delta({"type": "input_json_delta", "partial_json": call.function.arguments})
            self._stop()
        self._send(
            "message_delta",
            delta={"stop_reason": _stop_reason(choice), "stop_sequence": None},
            usage=MessagesUsage.of(generation.usage).model_dump(),
            surefoot=extension(generation, self._candidates).model_dump(mode="json"),
        )
        self._send("message_stop")

    def last_event(self, error: ApiError | None) -> str:
        """The error in Anthropic's form."""
        return _event("error", error=error.anthropic_body["error"]) if error else ""

    def _start(self, block: Mapping[str, Any]) -> None:
        self._send("content_block_start", index=self._blocks, content_block=block)

    def _delta(self, delta: Mapping[str, Any]) -> None:
        self._send("content_block_delta", index=self._blocks, delta=delta)

    def _stop(self) -> None:
        self._send("content_block_stop", index=self._blocks)
        self._blocks += 1

    def _send(self, kind: str, **fields: Any) -> None:
        self.emit(_event(kind, **fields))


def _event(kind: str, **fields: Any) -> str:
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n"


def _stop_reason(choice: GeneratedChoice) -> str:
    reason = CONTENT_FILTER if choice.withheld else choice.finish_reason
    return _STOP_REASONS.get(reason, "end_turn")


def _tool_uses(choice: GeneratedChoice) -> list[dict[str, Any]]:
    """Calls as blocks. Arguments that are no JSON object, as a bad model writes them, are under ``_raw``."""
    blocks = []
    for call in output_calls(choice.tool_calls):
        try:
            given = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            given = {"_raw": call.function.arguments}
        blocks.append({"type": "tool_use", "id": call.id, "name": call.function.name, "input": given})
    return blocks
