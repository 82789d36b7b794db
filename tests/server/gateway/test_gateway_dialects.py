"""``/v1/responses`` and ``/v1/messages``: their makers' clients, over a socket, before a scripted server."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from dialect_clients import dialects
from gateway_server import ask
from openai_server import Reply, chat

from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy
from surefoot.server import ToolGuard, open_database

SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
FLAT = [{"type": "function", "name": "look", "description": "Look up.", "parameters": SCHEMA}]
BLOCKS = [{"name": "look", "description": "Look up.", "input_schema": SCHEMA}]
NESTED = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Look up.", "parameters": SCHEMA},
    }
]
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 50}
QUESTION = [{"role": "user", "content": "Where is W1?"}]
POLICY = ToolPolicy(
    rules=(PolicyRule(tools=("look",), require="latest('greet') != null", reason="greet first"),)
)


def calling(**arguments: Any) -> dict[str, Any]:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": json.dumps(arguments)},
    }
    return chat([None], finish="tool_calls", tool_calls=[call])


def test_a_plain_answer_in_both_forms() -> None:
    with dialects(chat(["W1 is on its way."])) as (_, responses, messages, upstream):
        response = responses.responses.create(model="tiny", input="Where is W1?", instructions="Be brief.")
        message = messages.messages.create(**ASKED, messages=QUESTION, system="Be brief.")
    assert response.output_text == "W1 is on its way."
    assert (response.status, response.usage.output_tokens) == ("completed", 5)
    assert response.surefoot["strategy"] == "plain"
    (block,) = message.content
    assert (block.type, block.text) == ("text", "W1 is on its way.")
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 5)
    assert message.surefoot["strategy"] == "plain"
    expected = [{"role": "system", "content": "Be brief."}, *QUESTION]
    assert [body["messages"] for body in upstream.bodies] == [expected, expected]
    assert upstream.bodies[1]["max_tokens"] == 50


def test_tools_there_and_back() -> None:
    """A call, its result and reasoning reach the policy as in a chat, whatever the form."""
    said = calling(order="W1")
    said["choices"][0]["message"]["reasoning_content"] = "I look."
    with dialects(said, chat(["Shipped."]), said, chat(["Shipped."])) as (_, one, other, upstream):
        first = one.responses.create(model="tiny", input=QUESTION, tools=FLAT, tool_choice="required")
        thought, call = first.output
        assert (thought.type, thought.content[0].text) == ("reasoning", "I look.")
        assert (call.type, call.call_id, call.name) == ("function_call", "c1", "look")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "shipped"}
        history = [*QUESTION, *(item.model_dump(exclude_none=True) for item in first.output), result]
        assert one.responses.create(model="tiny", input=history, tools=FLAT).output_text == "Shipped."

        message = other.messages.create(**ASKED, messages=QUESTION, tools=BLOCKS, tool_choice={"type": "any"})
        assert (message.stop_reason, [block.type for block in message.content]) == (
            "tool_use",
            ["thinking", "tool_use"],
        )
        used = message.content[1]
        assert (used.id, used.name, used.input) == ("c1", "look", {"order": "W1"})
        told = {"type": "tool_result", "tool_use_id": used.id, "content": "shipped"}
        history = [
            *QUESTION,
            {"role": "assistant", "content": [block.model_dump() for block in message.content]},
            {"role": "user", "content": [told]},
        ]
        assert other.messages.create(**ASKED, messages=history, tools=BLOCKS).content[0].text == "Shipped."
    asked = [body["messages"] for body in upstream.bodies]
    assert asked[0] == asked[2]
    assert asked[1] == asked[3]
    assert [one["role"] for one in asked[1]] == ["user", "assistant", "tool"]
    assert asked[1][1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"order": "W1"}'}
    assert (asked[1][2]["tool_call_id"], asked[1][2]["content"]) == ("c1", "shipped")
    assert all(body["tools"] == NESTED for body in upstream.bodies)
    assert [body.get("tool_choice") for body in upstream.bodies] == ["required", None] * 2


def test_streams_end_as_the_whole_answer() -> None:
    both = calling(order="W1")
    both["choices"][0]["message"]["content"] = "I look."
    with dialects(both) as (_, one, other, _upstream):
        with one.responses.stream(model="tiny", input=QUESTION, tools=FLAT) as stream:
            kinds = [event.type for event in stream]
            response = stream.get_final_response()
        with other.messages.stream(**ASKED, messages=QUESTION, tools=BLOCKS) as events:
            texts = list(events.text_stream)
            message = events.get_final_message()
    assert response.output_text == "I look."
    assert (response.output[1].name, response.output[1].arguments) == ("look", '{"order": "W1"}')
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds.count("response.output_text.delta") >= 1
    assert kinds[-1] == "response.completed"
    assert "".join(texts) == "I look."
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert (message.content[1].input, message.stop_reason) == ({"order": "W1"}, "tool_use")


def test_what_the_guard_blocks_is_a_refusal_in_both_forms() -> None:
    guard = ToolGuard(enabled=True, rejections=0)
    options: dict[str, Any] = {"more": {"guard": guard}, "verifiers": (ToolCallVerifier(policy=POLICY),)}
    with dialects(calling(order="W1"), **options) as (_, one, other, _upstream):
        response = one.responses.create(model="tiny", input=QUESTION, tools=FLAT)
        with one.responses.stream(model="tiny", input=QUESTION, tools=FLAT) as stream:
            streamed = stream.until_done().get_final_response()
        message = other.messages.create(**ASKED, messages=QUESTION, tools=BLOCKS)
        with other.messages.stream(**ASKED, messages=QUESTION, tools=BLOCKS) as events:
            last = events.get_final_message()
    for answer in (response, streamed):
        (item,) = answer.output
        assert (item.type, item.content[0].type) == ("message", "refusal")
        assert "greet first" in item.content[0].refusal
    for got in (message, last):
        assert got.stop_reason == "refusal"
        assert "greet first" in got.content[0].text
    assert message.surefoot["searches"][0]["guard"][0]["action"] == "reject"


def test_strategies_and_cut_answers() -> None:
    with dialects(chat(["so it is 4"]), chat(["so it is 4"]), chat(["so it is 5"], finish="length")) as made:
        _, one, other, _upstream = made
        voted = other.messages.create(
            model="majority:n=2", max_tokens=9, messages=QUESTION, extra_body={"seed": 5}
        )
        assert (voted.surefoot["strategy"], voted.surefoot["seed"]) == ("majority:n=2", 5)
        cut = one.responses.create(model="tiny", input="Sum?", max_output_tokens=4)
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert other.messages.create(**ASKED, messages=QUESTION).stop_reason == "max_tokens"


RESPONSES = [
    ({"previous_response_id": "resp-1"}, "previous_response_id: earlier answers are not stored"),
    ({"background": True}, "background: it cannot be had here"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type: tools of the provider cannot be had here"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input: message 0: item of type 'item_reference'"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]}]},
        "input.0.content.0: an address is not opened",
    ),
    ({"input": []}, "input: Value should have at least 1 item"),
    ({"input": [{"role": "user", "content": 3}]}, "input: message 0: a part has an unknown shape (content"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": 7, "arguments": "{}"}]}, "messages.0"),
]
MESSAGES = [
    ({"thinking": {"type": "always"}}, "thinking.type: this type cannot be had here"),
    ({"top_k": 5}, "top_k: it cannot be had here"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
    ({"tool_choice": {"type": "some"}, "tools": BLOCKS}, "tool_choice.type: choose from auto"),
    ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
    ({"messages": [{"role": "assistant", "content": "", "tool_calls": ["x"]}]}, "messages.0"),
    ({"messages": [{"content": "hi"}]}, "messages.0.role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64",
         "media_type": "image/png", "data": "aGk="}}]}]},
        "messages.0.content.0: image in the request: not a PNG",
    ),
]  # fmt: skip


def test_what_cannot_be_had_is_named() -> None:
    with dialects(chat(["ok"])) as (gateway, one, other, upstream):
        for fields, message in RESPONSES:
            body = {"model": "tiny", "input": "hi", **fields}
            status, answer = ask(f"{gateway.url}/responses", json.dumps(body))
            assert (status, message in answer["error"]["message"]) == (400, True), answer
        for fields, message in MESSAGES:
            body = {**ASKED, "messages": QUESTION, **fields}
            status, answer = ask(f"{gateway.url}/messages", json.dumps(body))
            assert (status, answer["type"]) == (400, "error"), answer
            assert answer["error"]["type"] == "invalid_request_error"
            assert message in answer["error"]["message"], answer
        with pytest.raises(openai.NotFoundError, match="model 'none' does not exist"):
            one.responses.create(model="none", input="hi")
        from anthropic import NotFoundError

        with pytest.raises(NotFoundError, match="model 'none' does not exist") as missing:
            other.messages.create(model="none", max_tokens=5, messages=QUESTION)
        assert missing.value.body["error"]["type"] == "not_found_error"
        assert upstream.bodies == []


def test_an_error_ends_a_stream_in_the_clients_form() -> None:
    with dialects(chat(["ok"])) as (_, one, other, upstream):
        upstream.answer = lambda _: Reply(payload={"error": {"message": "overloaded"}}, status=500)
        events = list(one.responses.create(model="tiny", input="hi", stream=True))
        assert [event.type for event in events[1:]] == ["response.in_progress", "error"]
        assert "status 500" in events[-1].message
        from anthropic import APIStatusError

        with (
            pytest.raises(APIStatusError) as failed,
            other.messages.stream(**ASKED, messages=QUESTION) as stream,
        ):
            stream.until_done()
    assert failed.value.body["error"]["type"] == "api_error"


def test_keys_in_either_header(tmp_path: Any) -> None:
    with open_database(tmp_path / "g.db") as db:
        key = db.keys.create("c", "client")[0]
        with dialects(chat(["ok"]), db=db, require_key=True, key=key) as (gateway, one, other, _upstream):
            assert one.responses.create(model="tiny", input="hi").output_text == "ok"
            assert other.messages.create(**ASKED, messages=QUESTION).content[0].text == "ok"
            body = json.dumps({**ASKED, "messages": QUESTION})
            status, answer = ask(f"{gateway.url}/messages", body, {"x-api-key": "sf-wrong"})
            assert (status, answer["error"]["type"]) == (401, "authentication_error")
            assert ask(f"{gateway.url}/messages", body)[0] == 401
