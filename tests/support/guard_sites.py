"""Where a guard releases calls: in the library and in the gateway's three interfaces, streamed or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.testclient import TestClient

from surefoot.guard import Guard, GuardSettings, checked_call, guarded_reply
from surefoot.labelling import ToolCallVerifier, ToolPolicy
from surefoot.policies import IN_PROCESS
from surefoot.protocols import Completion, SampleResult
from surefoot.records import Message, Tool, ToolCall, Usage
from surefoot.server import Gateway, GatewaySettings, ToolGuard, create_app
from surefoot.server.gateway.settings import ServerSettings

SITES = (
    *("library", "call by call"),
    *("chat", "chat streamed", "responses", "responses streamed", "messages", "messages streamed"),
)


@dataclass(frozen=True)
class ReleasedCall:
    """A call as two clients read it: one takes the first of two equal names, the other the last."""

    name: str
    first: Any
    last: Any


class Upstream:
    """A policy that makes the calls in ``calls``."""

    name, overlaps = "tiny", True

    def __init__(self) -> None:
        self.calls: tuple[ToolCall, ...] = ()

    def with_extra_body(self, extra_body: Any) -> Upstream:
        return self

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests: Sequence[Any]) -> list[SampleResult]:
        done = Completion(text="", finish_reason="tool_calls", tokens=1, tool_calls=self.calls)
        return [SampleResult(completions=(done,), usage=Usage(completion_tokens=1)) for _ in requests]


class Sites:
    """One guard's policy at every site. A request is one message of a model, with its calls."""

    def __init__(self, policy: ToolPolicy, tools: Sequence[Tool], **settings: Any) -> None:
        fields = {"resamples": 0, "rejections": 0, **settings}
        verifiers = (ToolCallVerifier(policy=policy),)
        self.tools, self.upstream = tuple(tools), Upstream()
        self.guard = Guard(GuardSettings(**fields), verifiers=verifiers)
        served = GatewaySettings(chat=True, guard=ToolGuard(enabled=True, **fields))
        self.gateway = Gateway(self.upstream, settings=served, verifiers=verifiers)
        self.client = TestClient(
            create_app(ServerSettings(), gateway=self.gateway), base_url="http://localhost"
        )

    def __enter__(self) -> Sites:
        self.client.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.client.__exit__(*error)
        self.guard.close()

    def send(self, site: str, messages: Sequence[Message], *calls: tuple[str, str]) -> list[ReleasedCall]:
        """What is released of the calls, given as names and texts of arguments, after ``messages``."""
        made = tuple(
            ToolCall(id=f"call_{n}", name=name, arguments=text) for n, (name, text) in enumerate(calls)
        )
        if site == "library":
            return [_released(call.name, call.arguments) for call in self._library(messages, made)]
        if site == "call by call":
            return [_released(call.name, call.arguments) for call in self._one_by_one(messages, made)]
        self.upstream.calls = made
        kind, stream = site.split()[0], site.endswith("streamed")
        path, body = getattr(self, f"_{kind}")(messages)
        answer = self.client.post(path, json={"model": "tiny", "stream": stream, **body})
        assert answer.status_code == 200, answer.text
        if not stream:
            return _WHOLE[kind](answer.text)
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return _STREAMED[kind]([json.loads(event) for event in events])

    def _library(self, messages: Sequence[Message], calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        async def ask(run: tuple[Message, ...], sample: int) -> Message:
            return Message(role="assistant", tool_calls=calls)

        reply = asyncio.run(guarded_reply(self.guard, ask, messages, self.tools))
        return reply.message.tool_calls if reply.message is not None else ()

    def _one_by_one(self, messages: Sequence[Message], calls: tuple[ToolCall, ...]) -> list[ToolCall]:
        async def all_at_once() -> list[ToolCall]:
            work = [checked_call(self.guard, messages, self.tools, call) for call in calls]
            decisions = await asyncio.gather(*work)
            released = [decision for decision in decisions if decision.action == "release"]
            return [call for decision in released for call in self.guard.redeem(decision)]

        return asyncio.run(all_at_once())

    def _chat(self, messages: Sequence[Message]) -> tuple[str, dict[str, Any]]:
        rows = []
        for message in messages:
            row: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.tool_calls:
                row["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in message.tool_calls
                ]
            if message.tool_call_id:
                row["tool_call_id"] = message.tool_call_id
            rows.append(row)
        tools = [{"type": "function", "function": fields} for fields in self._tool_fields("parameters")]
        return "/v1/chat/completions", {"messages": rows, "tools": tools}

    def _responses(self, messages: Sequence[Message]) -> tuple[str, dict[str, Any]]:
        items: list[dict[str, Any]] = []
        for message in messages:
            if message.role == "tool":
                output = {"call_id": message.tool_call_id, "output": message.content}
                items.append({"type": "function_call_output", **output})
            elif message.tool_calls:
                items += [
                    {
                        "type": "function_call",
                        "call_id": call.id,
                        "name": call.name,
                        "arguments": call.arguments,
                    }
                    for call in message.tool_calls
                ]
            else:
                items.append({"role": message.role, "content": message.content})
        tools = [{"type": "function", **fields} for fields in self._tool_fields("parameters")]
        return "/v1/responses", {"input": items, "tools": tools}

    def _messages(self, messages: Sequence[Message]) -> tuple[str, dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for message in messages:
            content: Any = message.content
            role: str = message.role
            if message.role == "tool":
                role = "user"
                content = [
                    {
                        "type": "tool_result",
                        "tool_use_id": message.tool_call_id,
                        "content": message.content,
                    }
                ]
            elif message.tool_calls:
                content = [
                    {
                        "type": "tool_use",
                        "id": call.id,
                        "name": call.name,
                        "input": json.loads(call.arguments),
                    }
                    for call in message.tool_calls
                ]
            if role == "user" and rows and rows[-1]["role"] == "user" and isinstance(content, list):
                rows[-1]["content"] += content
            else:
                rows.append({"role": role, "content": content})
        return "/v1/messages", {
            "messages": rows,
            "max_tokens": 50,
            "tools": list(self._tool_fields("input_schema")),
        }

    def _tool_fields(self, schema: str) -> list[dict[str, Any]]:
        return [{"name": tool.name, schema: json.loads(tool.parameters or "{}")} for tool in self.tools]


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def _released(name: str, text: str) -> ReleasedCall:
    return ReleasedCall(name, json.loads(text, object_pairs_hook=_first), json.loads(text))


def _whole_chat(text: str) -> list[ReleasedCall]:
    calls = json.loads(text)["choices"][0]["message"].get("tool_calls") or ()
    return [_released(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def _whole_responses(text: str) -> list[ReleasedCall]:
    items = [item for item in json.loads(text)["output"] if item["type"] == "function_call"]
    return [_released(item["name"], item["arguments"]) for item in items]


def _whole_messages(text: str) -> list[ReleasedCall]:
    pairs = zip(
        json.loads(text, object_pairs_hook=_first)["content"], json.loads(text)["content"], strict=True
    )
    return [
        ReleasedCall(last["name"], first["input"], last["input"])
        for first, last in pairs
        if last["type"] == "tool_use"
    ]


def _streamed_chat(events: list[dict[str, Any]]) -> list[ReleasedCall]:
    deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    return [_released(call["name"], call["arguments"]) for call in calls]


def _streamed_responses(events: list[dict[str, Any]]) -> list[ReleasedCall]:
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    return [_released(event["name"], event["arguments"]) for event in done]


def _streamed_messages(events: list[dict[str, Any]]) -> list[ReleasedCall]:
    names = {
        event["index"]: event["content_block"]["name"]
        for event in events
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use"
    }
    texts = dict.fromkeys(names, "")
    for event in events:
        if event["type"] == "content_block_delta" and event["index"] in names:
            texts[event["index"]] += event["delta"]["partial_json"]
    return [_released(name, texts[index]) for index, name in names.items()]


_WHOLE = {"chat": _whole_chat, "responses": _whole_responses, "messages": _whole_messages}
_STREAMED = {"chat": _streamed_chat, "responses": _streamed_responses, "messages": _streamed_messages}
