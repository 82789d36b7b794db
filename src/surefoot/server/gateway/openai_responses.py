"""``/v1/responses``: OpenAI's Responses API in front of the conversations of this gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from surefoot.messages import messages_of_items
from surefoot.records import Usage
from surefoot.server.gateway.conversations import chat_messages, chat_request, refuse
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.plan import GeneratedChoice, Generation
from surefoot.server.gateway.request_log import new_id
from surefoot.server.gateway.responses import ResponseWriter, extension, output_calls
from surefoot.server.gateway.schemas import (
    ChatRequest,
    Extension,
    RequestModel,
    ResponseModel,
    StrategyOptions,
)

_STORED = ("previous_response_id", "conversation", "prompt")
"""Fields that name what a server would have stored; this one stores no conversations."""


class ResponsesRequest(RequestModel):
    """Body of ``/v1/responses``. Each request has the whole conversation: ``store`` stores nothing."""

    model: str = Field(max_length=300)
    """As for ``/v1/chat/completions``."""
    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=128)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = False
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    text: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    top_logprobs: int | None = None
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    surefoot: StrategyOptions | None = None
    """Not OpenAI's, as ``seed``."""

    def as_chat(self) -> ChatRequest:
        """The same request for a chat. Raises :class:`ApiError` for what cannot be said there."""
        for name in _STORED:
            refuse(name, getattr(self, name) is not None, "what was said before is not stored, so it")
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
                rows += messages_of_items(self.input)
            except (ValueError, AttributeError, TypeError) as error:
                raise ApiError(400, f"input: {error}", param="input") from error
        return chat_request(
            model=self.model,
            messages=chat_messages(rows),
            max_tokens=self.max_output_tokens,
            stream=self.stream,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            metadata=self.metadata,
            surefoot=self.surefoot,
            tools=[_tool(number, tool) for number, tool in enumerate(self.tools or ())] or None,
            tool_choice=_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
        )


def _tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    refuse(f"tools.{number}.type", tool.get("type") != "function", "tools of the provider")
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name)}
    return {"type": "function", "function": function}


def _choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return choice
    refuse("tool_choice.type", choice.get("type") != "function", "this choice")
    return {"type": "function", "function": {"name": choice.get("name")}}


class ResponsesUsage(ResponseModel):
    """Tokens of the policy over all candidates; those of the verifier are in ``surefoot``."""

    input_tokens: int
    input_tokens_details: dict[str, int] = Field(default_factory=lambda: {"cached_tokens": 0})
    output_tokens: int
    output_tokens_details: dict[str, int] = Field(default_factory=lambda: {"reasoning_tokens": 0})
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ResponsesUsage:
        """From the usage of a search."""
        total = usage.prompt_tokens + usage.completion_tokens
        return cls(
            input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens, total_tokens=total
        )


class ResponsesAnswer(ResponseModel):
    """Answer of ``/v1/responses``."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    error: None = None
    incomplete_details: dict[str, str] | None = None
    model: str
    output: list[dict[str, Any]]
    """Items ``reasoning``, ``message`` and ``function_call``."""
    parallel_tool_calls: bool = True
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = Field(default_factory=list)
    store: Literal[False] = False
    usage: ResponsesUsage | None = None
    surefoot: Extension | None = Field(default=None, exclude_if=lambda value: value is None)


class ResponsesWriter(ResponseWriter):
    """``response``: output items, or the events of a stream of them."""

    id_prefix = "resp"
    _sequence = 0
    """Events that were sent."""
    _message: dict[str, Any] | None = None
    """The message that is being sent, with the text so far."""

    def response(self, generation: Generation) -> ResponsesAnswer:
        """As the base says."""
        (choice,) = generation.choices
        return self._answer(generation, _items(choice, self._refusal_as_text))

    def begin(self, count: int) -> None:  # noqa: ARG002
        """Send the empty response."""
        empty = self._empty().model_dump(mode="json")
        self._send("response.created", response=empty)
        self._send("response.in_progress", response=empty)

    def send_text(self, number: int, text: str) -> None:  # noqa: ARG002
        """As the base says."""
        if self._message is None:
            self._message = _message("")
            empty = {**self._message, "status": "in_progress", "content": []}
            part = {"type": "output_text", "text": "", "annotations": []}
            self._send("response.output_item.added", output_index=0, item=empty)
            self._of_part("response.content_part.added", self._message, part=part)
        self._message["content"][0]["text"] += text
        self._of_part("response.output_text.delta", self._message, delta=text, logprobs=[])

    def end(self, generation: Generation) -> None:
        """As the base says."""
        (choice,) = generation.choices
        self.send_rest(0, choice)
        items = _items(choice, self._refusal_as_text)
        if self._message is not None:
            (part,) = self._message["content"]
            self._of_part("response.output_text.done", self._message, text=part["text"], logprobs=[])
            self._of_part("response.content_part.done", self._message, part=part)
            self._send("response.output_item.done", output_index=0, item=self._message)
            # text that was sent is the first item; reasoning is known only at the end
            items = [self._message, *(item for item in items if item["type"] != "message")]
        for number, item in enumerate(items):
            if item is not self._message:
                self._whole_item(number, item)
        answer = self._answer(generation, items)
        self._send(f"response.{answer.status}", response=answer.model_dump(mode="json"))

    def last_event(self, error: ApiError | None) -> str:
        """The error in the form of a stream of this API."""
        if error is None:
            return ""
        detail = {name: error.body["error"][name] for name in ("code", "message", "param")}
        return self._event("error", **detail)

    def _whole_item(self, number: int, item: dict[str, Any]) -> None:
        begun = {**item, "status": "in_progress"} if "status" in item else item
        if item["type"] == "function_call":
            begun["arguments"] = ""
        self._send("response.output_item.added", output_index=number, item=begun)
        if item["type"] == "function_call":
            place = {"item_id": item["id"], "output_index": number}
            kind = "response.function_call_arguments"
            self._send(f"{kind}.delta", **place, delta=item["arguments"])
            self._send(f"{kind}.done", **place, name=item["name"], arguments=item["arguments"])
        self._send("response.output_item.done", output_index=number, item=item)

    def _of_part(self, kind: str, message: Mapping[str, Any], **fields: Any) -> None:
        self._send(kind, item_id=message["id"], output_index=0, content_index=0, **fields)

    def _send(self, kind: str, **fields: Any) -> None:
        self.emit(self._event(kind, **fields))

    def _event(self, kind: str, **fields: Any) -> str:
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"

    def _empty(self) -> ResponsesAnswer:
        return ResponsesAnswer(
            id=str(self._head["id"]),
            created_at=self._created,
            model=str(self._head["model"]),
            status="in_progress",
            output=[],
        )

    def _answer(self, generation: Generation, items: list[dict[str, Any]]) -> ResponsesAnswer:
        (choice,) = generation.choices
        cut = choice.finish_reason == "length" and not choice.withheld
        return self._empty().model_copy(
            update={
                "status": "incomplete" if cut else "completed",
                "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
                "output": items,
                "usage": ResponsesUsage.of(generation.usage),
                "surefoot": extension(generation, self._candidates),
            }
        )


def _items(choice: GeneratedChoice, refusal_as_text: bool) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if choice.withheld:
        if refusal_as_text:
            return [_message(choice.withheld)]
        return [_message("", [{"type": "refusal", "refusal": choice.withheld}])]
    if choice.reasoning:
        thought = [{"type": "reasoning_text", "text": choice.reasoning}]
        items.append({"id": new_id("rs"), "type": "reasoning", "summary": [], "content": thought})
    if choice.text or not choice.tool_calls:
        items.append(_message(choice.text))
    items += [
        {
            "id": new_id("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.function.name,
            "arguments": call.function.arguments,
        }
        for call in output_calls(choice.tool_calls)
    ]
    return items


def _message(text: str, content: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content or [{"type": "output_text", "text": text, "annotations": []}],
    }
