"""Exports of Langfuse (observations) and LangSmith (runs), read as spans of model calls.

Langfuse: observations as its API and its exports give them, one a row, in a list, in ``data`` of a page, or
inside traces. LangSmith: runs as its client's ``list_runs`` gives them, or the rows of a bulk export;
``child_runs`` are read, too. Only model calls have messages: generations, and runs of type ``llm``. Phoenix
exports OpenInference spans, which :mod:`surefoot.formats.otel_spans` reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from surefoot.formats.imports import require_object
from surefoot.formats.otel_spans import FINISH_REASONS, Span, found_field, parsed_json, read_spans, timestamp
from surefoot.messages import read_messages

_OBSERVATIONS: Final = {
    "AGENT", "CHAIN", "EMBEDDING", "EVALUATOR", "EVENT", "GENERATION", "GUARDRAIL", "RETRIEVER", "SPAN",
    "TOOL",
}  # fmt: skip


def is_langfuse(row: Mapping[str, Any]) -> bool:
    """Whether a row is an observation, or holds some."""
    inner = next(_parts(row, ("observations", "data")), row)
    is_observation = isinstance(inner, Mapping) and inner.get("type") in _OBSERVATIONS
    return is_observation and bool({"traceId", "trace_id"} & inner.keys())


def _parts(row: Any, names: Sequence[str]) -> Iterator[Any]:
    """The objects of the first list among these fields."""
    lists = (parsed_json(row.get(name)) for name in names)
    yield from next((value for value in lists if isinstance(value, list)), ())


def _langfuse_spans(row: Any) -> Iterator[Span]:
    row = require_object(row, "an observation or run")
    if {"observations", "data"} & row.keys():
        for part in _parts(row, ("observations", "data")):
            yield from _langfuse_spans(part)
        return
    prompt, answer = parsed_json(row.get("input")), parsed_json(row.get("output"))
    is_call = row.get("type") == "GENERATION"
    message = row.get("statusMessage") or row.get("status_message")
    usage = parsed_json(row.get("usageDetails") or row.get("usage_details") or row.get("usage")) or {}
    yield Span(
        trace_id=str(row.get("traceId") or row.get("trace_id") or ""),
        span_id=str(row.get("id") or ""),
        start=timestamp(row.get("startTime") or row.get("start_time")),
        attributes=_attributes(prompt, answer, is_call=is_call)
        | {
            "gen_ai.response.model": row.get("model"),
            "gen_ai.usage.input_tokens": usage.get("input"),
            "gen_ai.usage.output_tokens": usage.get("output"),
        },
        error=str(message or "error") if row.get("level") == "ERROR" else None,
        row=row,
    )


def _langsmith_spans(row: Any) -> Iterator[Span]:
    row = require_object(row, "an observation or run")
    prompt, answer = parsed_json(row.get("inputs")) or {}, parsed_json(row.get("outputs")) or {}
    extra = parsed_json(row.get("extra")) or {}
    parameters, metadata = extra.get("invocation_params") or {}, extra.get("metadata") or {}
    usage = answer.get("usage_metadata") or answer.get("usage") or {}
    attributes = _attributes(prompt, answer, is_call=row.get("run_type") in ("llm", "chat_model"))
    if tools := parameters.get("tools"):
        attributes["gen_ai.tool.definitions"] = tools
    yield Span(
        trace_id=str(row.get("trace_id") or ""),
        span_id=str(row.get("id") or ""),
        start=timestamp(row.get("start_time")),
        attributes=attributes
        | {
            "gen_ai.response.model": metadata.get("ls_model_name") or parameters.get("model"),
            "gen_ai.usage.input_tokens": row.get("prompt_tokens") or usage.get("input_tokens"),
            "gen_ai.usage.output_tokens": row.get("completion_tokens") or usage.get("output_tokens"),
        },
        error=str(row["error"]) if row.get("error") else None,
        row={name: value for name, value in row.items() if name != "child_runs"},
    )
    for child in _parts(row, ("child_runs",)):
        yield from _langsmith_spans(child)


def _attributes(prompt: Any, answer: Any, *, is_call: bool) -> dict[str, Any]:
    """A model call's messages and tools, or a tool's result, under the names of the GenAI conventions."""
    if is_call:
        attributes: dict[str, Any] = {
            "gen_ai.input.messages": _messages(prompt, "user"),
            "gen_ai.output.messages": _messages(answer, "assistant"),
            "gen_ai.response.finish_reasons": found_field(answer, FINISH_REASONS),
        }
        if isinstance(prompt, Mapping) and isinstance(prompt.get("tools"), list):
            attributes["gen_ai.tool.definitions"] = prompt["tools"]
        return attributes
    result = answer.get("output") if isinstance(answer, Mapping) and "output" in answer else answer
    with suppress(ValueError):  # few tools return a message
        for message in read_messages([result]):
            if message["role"] == "tool" and "tool_call_id" in message:
                return {
                    "gen_ai.tool.call.id": message["tool_call_id"],
                    "gen_ai.tool.call.result": message.get("content") or "",
                }
    return {}


def _messages(value: Any, role: str) -> list[dict[str, Any]]:
    """The messages of an input or output: a text, a message, a list, or an object around them."""
    if isinstance(value, str):
        return [{"role": role, "content": value}] if value else []
    if isinstance(value, list):
        return [message for item in value for message in _messages(item, role)]
    if not isinstance(value, Mapping):
        return []
    for name in ("messages", "generations", "choices", "prompts", "contents", "candidates", "message"):
        if value.get(name):
            inner = _messages(value[name], role)
            return inner[-1:] if role == "assistant" and name == "messages" else inner
    if isinstance(value.get("content"), Mapping):  # a candidate of Gemini
        return _messages(value["content"], role)
    if value.keys() & {"role", "lc"} or ("type" in value and "text" not in value):
        return [dict(value)]
    return [{**value, "role": role}] if value.keys() & {"content", "text"} else []


read_langfuse: Final = partial(read_spans, spans_of=_langfuse_spans, name="langfuse")
read_langsmith: Final = partial(read_spans, spans_of=_langsmith_spans, name="langsmith")
"""One trace per conversation of these observations or runs."""
