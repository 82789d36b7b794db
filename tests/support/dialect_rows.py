"""One conversation in every dialect of messages, as the servers, agents and data sets write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Row = dict[str, Any]


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: Row
    result: str
    failed: bool = False


@dataclass(frozen=True)
class Turn:
    """What the user asks, what the model answers and calls, and what it says of the results."""

    user: str
    text: str
    calls: tuple[Call, ...]
    answer: str
    reasoning: str = ""


def _openai_call(call: Call) -> Row:
    arguments = json.dumps(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def openai(turn: Turn) -> list[Row]:
    flags = [{"is_error": True} if call.failed else {} for call in turn.calls]
    return [
        {"role": "user", "content": turn.user},
        {
            "role": "assistant",
            "content": turn.text,
            "reasoning_content": turn.reasoning or None,
            "tool_calls": [_openai_call(call) for call in turn.calls],
        },
        *(
            {"role": "tool", "tool_call_id": call.id, "content": call.result, **flag}
            for call, flag in zip(turn.calls, flags, strict=True)
        ),
        {"role": "assistant", "content": turn.answer},
    ]


def responses(turn: Turn) -> list[Row]:
    summary = [{"type": "reasoning_text", "text": turn.reasoning}]
    reasoning = [{"type": "reasoning", "id": "rs", "content": summary}] if turn.reasoning else []

    def said(text: str) -> Row:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    return [
        {"role": "user", "content": [{"type": "input_text", "text": turn.user}]},
        *reasoning,
        said(turn.text),
        *(
            {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": json.dumps(c.arguments)}
            for c in turn.calls
        ),
        *(
            {"type": "function_call_output", "call_id": c.id, "output": c.result}
            | ({"status": "failed"} if c.failed else {})
            for c in turn.calls
        ),
        said(turn.answer),
    ]


def _blocks(
    turn: Turn, text: Callable[[str], Row], reasoning: Callable[[str], Row], call: Callable[[Call], Row]
) -> list[Row]:
    thought = [reasoning(turn.reasoning)] if turn.reasoning else []
    return [*thought, text(turn.text), *map(call, turn.calls)]


def anthropic(turn: Turn, use: str = "tool_use") -> list[Row]:
    def text(value: str) -> Row:
        return {"type": "text", "text": value}

    blocks = _blocks(
        turn,
        text,
        lambda value: {"type": "thinking", "thinking": value, "signature": "x"},
        lambda call: {"type": use, "id": call.id, "name": call.name, "input": call.arguments},
    )
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [text(call.result)]}
        | ({"is_error": True} if call.failed else {})
        for call in turn.calls
    ]
    return [
        {"role": "user", "content": turn.user},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": results},
        {"role": "assistant", "content": [text(turn.answer)]},
    ]


def anthropic_server(turn: Turn) -> list[Row]:
    """Tools that the provider runs: calls and results in one message."""
    asked, called, results, answered = anthropic(turn, "server_tool_use")
    content = [*called["content"], *results["content"], *answered["content"]]
    return [asked, {"role": "assistant", "content": content}]


def bedrock(turn: Turn) -> list[Row]:
    blocks = _blocks(
        turn,
        lambda text: {"text": text},
        lambda text: {"reasoningContent": {"reasoningText": {"text": text, "signature": "x"}}},
        lambda call: {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}},
    )
    results = [
        {
            "toolResult": {
                "toolUseId": call.id,
                "content": [{"text": call.result}],
                **({"status": "error"} if call.failed else {}),
            }
        }
        for call in turn.calls
    ]
    return [
        {"role": "user", "content": [{"text": turn.user}]},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": results},
        {"role": "assistant", "content": [{"text": turn.answer}]},
    ]


def gemini(turn: Turn) -> list[Row]:
    parts = _blocks(
        turn,
        lambda text: {"text": text},
        lambda text: {"text": text, "thought": True},
        lambda call: {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}},
    )
    results = [
        {
            "functionResponse": {
                "id": call.id,
                "name": call.name,
                "response": call.result,
                **({"isError": True} if call.failed else {}),
            }
        }
        for call in turn.calls
    ]
    return [
        {"role": "user", "parts": [{"text": turn.user}]},
        {"role": "model", "parts": parts},
        {"role": "function", "parts": results},
        {"role": "model", "parts": [{"text": turn.answer}]},
    ]


def mistral(turn: Turn) -> list[Row]:
    asked, called, *results, answered = openai(turn)
    thought = [{"type": "text", "text": turn.reasoning}]
    chunks = [{"type": "thinking", "thinking": thought}] if turn.reasoning else []
    content = [*chunks, {"type": "text", "text": turn.text}]
    return [asked, {**called, "reasoning_content": None, "content": content}, *results, answered]


def ai_sdk(turn: Turn) -> list[Row]:
    parts = _blocks(
        turn,
        lambda text: {"type": "text", "text": text},
        lambda text: {"type": "reasoning", "text": text},
        lambda c: {"type": "tool-call", "toolCallId": c.id, "toolName": c.name, "input": c.arguments},
    )
    results = [
        {
            "type": "tool-result",
            "toolCallId": call.id,
            "toolName": call.name,
            "output": {"type": "error-text" if call.failed else "text", "value": call.result},
        }
        for call in turn.calls
    ]
    return [
        {"role": "user", "content": [{"type": "text", "text": turn.user}]},
        {"role": "assistant", "content": parts},
        {"role": "tool", "content": results},
        {"role": "assistant", "content": [{"type": "text", "text": turn.answer}]},
    ]


def ai_sdk_interface(turn: Turn) -> list[Row]:
    def shown(call: Call) -> Row:
        ended = {"state": "output-error", "errorText": call.result}
        done = {"state": "output-available", "output": call.result}
        head = {"type": f"tool-{call.name}", "toolCallId": call.id, "input": call.arguments}
        return head | (ended if call.failed else done)

    def text(value: str) -> Row:
        return {"type": "text", "text": value, "state": "done"}

    parts = _blocks(turn, text, lambda value: {"type": "reasoning", "text": value}, shown)
    steps = [{"type": "step-start"}, *parts, {"type": "step-start"}, text(turn.answer)]
    return [
        {"id": "m1", "role": "user", "parts": [text(turn.user)]},
        {"id": "m2", "role": "assistant", "parts": steps},
    ]


def langchain(turn: Turn) -> list[Row]:
    def message(name: str, **fields: Any) -> Row:
        return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", name], "kwargs": fields}

    calls = [{"name": c.name, "args": c.arguments, "id": c.id, "type": "tool_call"} for c in turn.calls]
    more = {"reasoning_content": turn.reasoning} if turn.reasoning else {}
    return [
        message("HumanMessage", content=turn.user, type="human"),
        message("AIMessage", content=turn.text, type="ai", tool_calls=calls, additional_kwargs=more),
        *(
            message(
                "ToolMessage",
                content=call.result,
                type="tool",
                tool_call_id=call.id,
                **({"status": "error"} if call.failed else {}),
            )
            for call in turn.calls
        ),
        message("AIMessageChunk", content=turn.answer, type="AIMessageChunk"),
    ]


def genai(turn: Turn) -> list[Row]:
    parts = _blocks(
        turn,
        lambda text: {"type": "text", "content": text},
        lambda text: {"type": "reasoning", "content": text},
        lambda call: {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments},
    )
    results = [
        {"type": "tool_call_response", "id": call.id, "response": call.result}
        | ({"is_error": True} if call.failed else {})
        for call in turn.calls
    ]
    return [
        {"role": "user", "parts": [{"type": "text", "content": turn.user}]},
        {"role": "assistant", "parts": parts},
        {"role": "tool", "parts": results},
        {"role": "assistant", "parts": [{"type": "text", "content": turn.answer}], "finish_reason": "stop"},
    ]


def openinference(turn: Turn) -> list[Row]:
    asked, _, *results, answered = openai(turn)
    calls = [{"tool_call": _openai_call(call)} for call in turn.calls]
    contents = _blocks(
        turn,
        lambda text: {"message_content": {"type": "text", "text": text}},
        lambda text: {"message_content": {"type": "reasoning", "text": text}},
        lambda _: {},
    )
    message = {"role": "assistant", "contents": [*filter(None, contents)], "tool_calls": calls}
    return [{"message": row} for row in (asked, message, *results, answered)]


def inspect(turn: Turn) -> list[Row]:
    asked, _, *results, answered = openai(turn)
    calls = [{"id": c.id, "function": c.name, "arguments": c.arguments} for c in turn.calls]
    thought = [{"type": "reasoning", "reasoning": turn.reasoning}] if turn.reasoning else []
    content = [*thought, {"type": "text", "text": turn.text}]
    return [asked, {"role": "assistant", "content": content, "tool_calls": calls}, *results, answered]


def agentdojo(turn: Turn) -> list[Row]:
    def text(value: str) -> list[Row]:
        return [{"type": "text", "content": value}]

    calls = [
        {"function": c.name, "args": c.arguments, "id": c.id, "placeholder_args": None} for c in turn.calls
    ]
    return [
        {"role": "user", "content": text(turn.user)},
        {"role": "assistant", "content": text(turn.text), "tool_calls": calls},
        *(
            {
                "role": "tool",
                "content": None if call.failed else text(call.result),
                "tool_call_id": call.id,
                "tool_call": own,
                "error": call.result if call.failed else None,
            }
            for call, own in zip(turn.calls, calls, strict=True)
        ),
        {"role": "assistant", "content": text(turn.answer), "tool_calls": None},
    ]


def mini_swe_agent(turn: Turn) -> list[Row]:
    asked, called, *results, answered = openai(turn)
    codes = [{"extra": {"returncode": int(call.failed)}} for call in turn.calls]
    plain = [{k: v for k, v in row.items() if k != "is_error"} for row in results]
    rows = [row | code for row, code in zip(plain, codes, strict=True)]
    return [asked, {**called, "extra": {"cost": 0.1}}, *rows, answered]


def both_shapes(turn: Turn) -> list[Row]:
    """Calls as blocks and as a field, as wrappers of Anthropic's answers have them."""
    asked, called, results, answered = anthropic(turn)
    return [asked, {**called, "tool_calls": [_openai_call(c) for c in turn.calls]}, results, answered]


DIALECTS: dict[str, Callable[[Turn], list[Row]]] = {
    of.__name__: of
    for of in (
        openai, responses, anthropic, anthropic_server, bedrock, gemini, mistral, ai_sdk, ai_sdk_interface,
        langchain, genai, openinference, inspect, agentdojo, mini_swe_agent, both_shapes,
    )
}  # fmt: skip
WITHOUT_REASONING = {"agentdojo"}

TEXTS = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), min_size=1, max_size=30
).filter(str.strip)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """A turn with one to three calls."""
    names = draw(st.lists(st.sampled_from(["find", "pay", "cancel_order"]), min_size=1, max_size=3))
    calls = [
        Call(
            id=f"call_{number}",
            name=name,
            arguments=draw(st.dictionaries(TEXTS, VALUES, max_size=3)),
            result=f"it: {draw(TEXTS)}",  # as an error, "0" or "none" would be no reason
            failed=draw(st.booleans()),
        )
        for number, name in enumerate(names)
    ]
    user, text, answer = draw(TEXTS), draw(TEXTS), draw(TEXTS)
    return Turn(user=user, text=text, calls=tuple(calls), answer=answer, reasoning=draw(st.just("") | TEXTS))


def expected(turn: Turn, *, reasoning: bool = True) -> list[Sequence[Any]]:
    """Role, content, reasoning, calls and answered call with its failure, of each message."""
    calls = [(call.id, call.name, call.arguments) for call in turn.calls]
    return [
        ("user", turn.user, "", [], None, False),
        ("assistant", turn.text, turn.reasoning if reasoning else "", calls, None, False),
        *(("tool", call.result, "", [], call.id, call.failed) for call in turn.calls),
        ("assistant", turn.answer, "", [], None, False),
    ]
