"""Other APIs, converted to and from chat completions: ``/v1/responses``, OpenAI's Responses API, and
``/v1/messages``, Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from surefoot.messages import parse_arguments, read_messages
from surefoot.records import Ending
from surefoot.server.gateway.choice import Choice, usage_of
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.responses import EventWriter, Json, output_calls
from surefoot.server.gateway.schemas import ChatRequest, ConvertedRequest, StopText, StrategyOptions, refuse
from surefoot.server.gateway.settings import GatewaySettings
from surefoot.server.records import GatewayRecord, new_id

_STORED = ("previous_response_id", "conversation", "prompt")
"""Fields that refer to stored conversations; this server stores none."""


_INCOMPLETE: Mapping[Ending, str] = {"truncated": "max_output_tokens", "filtered": "content_filter"}
_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}


class ResponsesRequest(ConvertedRequest):
    """Body of ``/v1/responses``. Each request has the whole conversation: ``store`` stores nothing."""

    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    text: dict[str, Any] | None = None
    top_logprobs: int | None = None

    def as_chat(self) -> ChatRequest:
        """The same request for a chat. Raises :class:`ApiError` for unsupported fields."""
        for name in _STORED:
            refuse(name, getattr(self, name) is not None, "earlier answers are not stored, so it")
        refuse("background", bool(self.background))
        refuse("top_logprobs", bool(self.top_logprobs))
        form = (self.text or {}).get("format") or {}
        refuse("text.format", form.get("type", "text") != "text")
        rows: list[dict[str, Any]] = []
        if self.instructions:
            rows.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            rows.append({"role": "user", "content": self.input})
        else:
            try:
                rows += read_messages(self.input)
            except ValueError as error:
                raise ApiError(400, f"input: {error}", param="input") from error
        return self.chat_request(
            rows,
            "input",
            max_tokens=self.max_output_tokens,
            tools=[_responses_tool(number, tool) for number, tool in enumerate(self.tools or ())] or None,
            tool_choice=_responses_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
        )


def _responses_tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    refuse(f"tools.{number}.type", tool.get("type") != "function", "tools of the provider")
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name)}
    return {"type": "function", "function": function}


def _responses_choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return choice
    refuse("tool_choice.type", choice.get("type") != "function", "this choice")
    return {"type": "function", "function": {"name": choice.get("name")}}


class ResponsesWriter(EventWriter):
    """``response``: output items, or the events of a stream of them."""

    id_prefix = "resp"
    _sequence = 0
    """Number of sent events."""
    _open: bool = False
    """Whether the last of the items is still being sent."""

    def __init__(self, body: ChatRequest, record: GatewayRecord, settings: GatewaySettings) -> None:
        super().__init__(body, record, settings)
        self._items: list[dict[str, Any]] = []
        """The items that were sent."""
        self._text: list[str] = []
        """Pieces of the text of the open item."""

    def response(self, choices: Sequence[Choice]) -> Json:
        """See the base class."""
        (choice,) = choices
        return self._answer(choices, _items(choice, self._refusal_as_text))

    def begin(self, count: int) -> None:  # noqa: ARG002
        """Send the empty response."""
        empty = self._empty()
        self.send("response.created", response=empty)
        self.send("response.in_progress", response=empty)

    def send_reasoning(self, number: int, text: str) -> None:  # noqa: ARG002
        """See the base class."""
        self._piece("reasoning", text)

    def send_text(self, number: int, text: str) -> None:  # noqa: ARG002
        """See the base class."""
        self._piece("message", text)

    def end(self, choices: Sequence[Choice]) -> None:
        """See the base class."""
        (choice,) = choices
        self.send_remaining(0, choice)
        self._close()
        sent = {item["type"] for item in self._items}
        for item in _items(choice, self._refusal_as_text):
            if item["type"] not in sent:
                self._items.append(item)
                self._whole_item(len(self._items) - 1, item)
        answer = self._answer(choices, self._items)
        self.send(f"response.{answer['status']}", response=answer)

    def _piece(self, kind: str, text: str) -> None:
        """Send a piece of the open item, or of a new one of this type."""
        if not self._open or self._items[-1]["type"] != kind:
            self._close()
            item = _message("") if kind == "message" else _thought("")
            self._items.append(item)
            self._open = True
            (part,) = item["content"]
            empty = {**item, "content": [], **({"status": "in_progress"} if "status" in item else {})}
            self.send("response.output_item.added", output_index=len(self._items) - 1, item=empty)
            self._of_part("response.content_part.added", part=dict(part))
        self._text.append(text)
        self._of_part(f"response.{_TEXTS[kind]}.delta", delta=text, **_logprobs(kind))

    def _close(self) -> None:
        if self._open:
            item = self._items[-1]
            (part,) = item["content"]
            part["text"], self._text = "".join(self._text), []
            self._of_part(f"response.{part['type']}.done", text=part["text"], **_logprobs(item["type"]))
            self._of_part("response.content_part.done", part=part)
            self.send("response.output_item.done", output_index=len(self._items) - 1, item=item)
            self._open = False

    def last_event(self, error: ApiError | None) -> str:
        """The error as an event of this API."""
        if error is None:
            return ""
        return self.event("error", code=error.code, message=error.message, param=error.param)

    def _whole_item(self, number: int, item: dict[str, Any]) -> None:
        started = {**item, "status": "in_progress"} if "status" in item else item
        if item["type"] == "function_call":
            started["arguments"] = ""
        self.send("response.output_item.added", output_index=number, item=started)
        if item["type"] == "function_call":
            position = {"item_id": item["id"], "output_index": number}
            kind = "response.function_call_arguments"
            self.send(f"{kind}.delta", **position, delta=item["arguments"])
            self.send(f"{kind}.done", **position, name=item["name"], arguments=item["arguments"])
        self.send("response.output_item.done", output_index=number, item=item)

    def _of_part(self, kind: str, **fields: Any) -> None:
        item_id, index = self._items[-1]["id"], len(self._items) - 1
        self.send(kind, item_id=item_id, output_index=index, content_index=0, **fields)

    def event(self, kind: str, **fields: Any) -> str:
        """An event in its wire format, numbered."""
        self._sequence += 1
        return super().event(kind, sequence_number=self._sequence - 1, **fields)

    def _empty(self) -> Json:
        return {
            "id": self._head["id"],
            "object": "response",
            "created_at": self._created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": self._head["model"],
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "store": False,
            "usage": None,
        }

    def _answer(self, choices: Sequence[Choice], items: list[Json]) -> Json:
        """The answer; its usage is the policy's, over all candidates."""
        (choice,) = choices
        cut, usage = None if choice.withheld else _INCOMPLETE.get(choice.ending), usage_of(choices)
        return self._empty() | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": cut} if cut else None,
            "output": items,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
            "surefoot": self.extension(choices),
        }


def _items(choice: Choice, refusal_as_text: bool) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if choice.withheld:
        if refusal_as_text:
            return [_message(choice.withheld)]
        return [_message("", [{"type": "refusal", "refusal": choice.withheld}])]
    if choice.reasoning:
        items.append(_thought(choice.reasoning))
    if choice.text or not choice.tool_calls:
        items.append(_message(choice.text))
    items += [
        {
            "id": new_id("fc-"),
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            **call["function"],
        }
        for call in output_calls(choice.tool_calls)
    ]
    return items


def _thought(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": new_id("rs-"), "type": "reasoning", "summary": [], "content": content}


def _logprobs(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "message" else {}


def _message(text: str, content: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "id": new_id("msg-"),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content or [{"type": "output_text", "text": text, "annotations": []}],
    }


_STOP_REASONS: Mapping[Ending, str] = {
    "finished": "end_turn",
    "unknown": "end_turn",
    "truncated": "max_tokens",
    "filtered": "refusal",
    "tool_call": "tool_use",
}
_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}


_THINKING = ("adaptive", "disabled", "enabled")
"""Wishes that are read and not passed on: whether and how long the policy thinks is its server's matter, and
what it thought is in the answer."""


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
        refuse("thinking.type", (self.thinking or {}).get("type", "disabled") not in _THINKING, "this type")
        refuse("top_k", self.top_k is not None)
        system = [{"role": "system", "content": self.system}] if self.system else []
        try:
            rows = read_messages(self.messages)
        except ValueError as error:
            raise ApiError(400, f"messages: {error}", param="messages") from error
        choice = self.tool_choice or {}
        return self.chat_request(
            [*system, *rows],
            "messages",
            max_tokens=self.max_tokens,
            stop=self.stop_sequences or None,
            tools=[_messages_tool(number, tool) for number, tool in enumerate(self.tools or ())] or None,
            tool_choice=_messages_choice(choice) if choice else None,
            parallel_tool_calls=False if choice.get("disable_parallel_tool_use") else None,
        )


class CountRequest(MessagesRequest):
    """Body of ``/v1/messages/count_tokens``. Whatever strategy the model names, the policy's tokens count."""

    max_tokens: int = Field(default=1, ge=1, le=1)
    stream: Literal[False] = False

    def as_chat(self) -> ChatRequest:
        """See the base class."""
        return super().as_chat().model_copy(update={"surefoot": StrategyOptions(strategy="plain")})


def _messages_tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    refuse(f"tools.{number}.type", tool.get("type", "custom") != "custom", "tools of the provider")
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {"type": "object"}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _messages_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in _CHOICES:
        raise ApiError(
            400, "tool_choice.type: choose from auto, any, tool and none", param="tool_choice.type"
        )
    return _CHOICES[str(kind)]


class MessagesWriter(EventWriter):
    """``message``: content blocks, or the events of a stream of them."""

    id_prefix = "msg"
    _blocks = 0
    """Number of closed blocks of a stream."""
    _open: str | None = None
    """Type of the open block."""

    def response(self, choices: Sequence[Choice]) -> Json:
        """See the base class."""
        (choice,) = choices
        text = choice.withheld or choice.text
        thinking = [{"type": "thinking", "thinking": choice.reasoning, "signature": ""}]
        return self._empty() | {
            "content": [
                *(thinking if choice.reasoning else ()),
                *([{"type": "text", "text": text}] if text else ()),
                *_tool_uses(choice),
            ],
            "stop_reason": _stop_reason(choice),
            "usage": _messages_usage(choices),
            "surefoot": self.extension(choices),
        }

    def _empty(self) -> Json:
        return {
            "id": self._head["id"],
            "type": "message",
            "role": "assistant",
            "model": self._head["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }

    def begin(self, count: int) -> None:  # noqa: ARG002
        """Send the empty message."""
        self.send("message_start", message=self._empty())

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
            function = call["function"]
            self._start({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}})
            self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})
            self._stop()
        self.send(
            "message_delta",
            delta={"stop_reason": _stop_reason(choice), "stop_sequence": None},
            usage=_messages_usage(choices),
            surefoot=self.extension(choices),
        )
        self.send("message_stop")

    def last_event(self, error: ApiError | None) -> str:
        """The error in Anthropic's format."""
        return self.event("error", error=error.anthropic_body["error"]) if error else ""

    def _begin(self, kind: str, **fields: str) -> None:
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


def _messages_usage(choices: Sequence[Choice]) -> Json:
    """The policy's tokens over all candidates; ``surefoot`` has the verifier's."""
    usage = usage_of(choices)
    return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}


def _stop_reason(choice: Choice) -> str:
    return _STOP_REASONS["filtered" if choice.withheld else choice.ending]


def _tool_uses(choice: Choice) -> list[dict[str, Any]]:
    """Calls as blocks. Arguments that cannot be read are under ``_raw``."""
    blocks = []
    for call in output_calls(choice.tool_calls):
        function = call["function"]
        try:
            arguments = parse_arguments(function["arguments"])
        except ValueError:
            arguments = {"_raw": function["arguments"]}
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return blocks
