"""Spans of OpenTelemetry: GenAI semantic conventions, OpenInference, OpenLLMetry's indexed attributes.

Read are OTLP in JSON (``resourceSpans``), the SDK's output (``ReadableSpan.to_json``), rows of attributes,
and the spans that Phoenix exports. The model calls of one trace are joined to conversations: a call whose
input continues a conversation belongs to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.formats.account import parsed
from surefoot.formats.imports import (
    ROW_ERRORS,
    ImportContext,
    ImportedTrace,
    check_assistant,
    require_object,
    run_on,
    task_of,
    with_reasoning_tokens,
)
from surefoot.formats.rows import raw_rows, rejection
from surefoot.io.files import shortened
from surefoot.records import Message, Problem, reported_count

_ENVELOPES: Final = {"resourceSpans", "resource_spans"}
_INDEXED: Final = re.compile(r"^.+?\.\d+\..+$")
_FAMILIES = ("llm.input_messages", "llm.output_messages", "llm.tools", "gen_ai.prompt", "gen_ai.completion")
"""Attributes whose names contain indices: ``llm.tools.0.tool.json_schema``."""
_OUTPUTS: Final = ("gen_ai.output.messages", "llm.output_messages", "gen_ai.completion")
FINISH_REASONS: Final = ("finish_reason", "stop_reason", "finishReason", "stopReason")
"""Fields of a message or an answer that say why it ended."""
_TOKENS: Final = {
    "prompt_tokens": ("gen_ai.usage.input_tokens", "llm.token_count.prompt"),
    "completion_tokens": ("gen_ai.usage.output_tokens", "llm.token_count.completion"),
}
_REASONING_TOKENS: Final = (
    "gen_ai.usage.reasoning.output_tokens",
    "llm.token_count.completion_details.reasoning",
)
_MESSAGE_FIELDS: Final = {"role", "messages", "parts", "lc", "generations", "choices", "prompts"}
"""Fields with which messages begin, in any of the exports."""
_MAX_PARTS: Final = 32
"""Parts of an attribute's name; each costs one level of nesting."""


def is_otel_spans(row: Mapping[str, Any]) -> bool:
    """Whether a row is OTLP's envelope, or a span."""
    ids = {"context", "traceId", "trace_id", "span_id"} & row.keys()
    flat = any(name.startswith("attributes.") for name in row)
    page = row.get("data")
    if isinstance(page, list) and page and isinstance(page[0], Mapping) and "data" not in page[0]:
        return is_otel_spans(page[0])
    return bool(_ENVELOPES & row.keys()) or ("attributes" in row and bool(ids)) or flat


def read_spans(
    path: Path | str, context: ImportContext, *, spans_of: Callable[[Any], Iterable[Span]], name: str
) -> Iterator[ImportedTrace]:
    """One trace per conversation, in order of the trace ids' first spans; ``spans_of`` converts a row.

    All spans of the file are held in memory, because the spans of a trace can be anywhere in it.
    """
    spans: dict[str, list[Span]] = {}
    total = 0
    for number, row in raw_rows(path):
        try:
            for span in spans_of(row):
                total += 1
                spans.setdefault(span.trace_id, []).append(span)
        except ROW_ERRORS as error:
            context.report.skipped(number, rejection(error))
    chats = {trace: [span for span in group if span.has_messages] for trace, group in spans.items()}
    if total and not any(chats.values()):
        context.report.skipped(
            1,
            f"none of {total} spans has messages, as a model call has (gen_ai.input.messages, "
            "gen_ai.output.messages, llm.input_messages); capture content in the instrumentation, such as "
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true",
        )
    names = [trace for trace, group in chats.items() if group]
    rows = ((number, [span.row for span in spans[trace]]) for number, trace in enumerate(names, start=1))

    def build(number: int, _: object) -> Iterator[ImportedTrace]:
        trace = names[number - 1]
        return _traces(trace, chats[trace], spans[trace], context, name)

    yield from context.rows(rows, build)


@dataclass(kw_only=True)
class Span:
    """A span, with attributes named by the GenAI conventions, OpenInference or OpenLLMetry."""

    trace_id: str
    span_id: str
    start: float
    attributes: Mapping[str, Any]
    error: str | None = None
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()
    row: Any = None
    """All that the file has of it."""

    @property
    def has_messages(self) -> bool:
        try:
            return bool(self.output)
        except ROW_ERRORS:
            return True  # the conversation is then rejected, with the reason

    @property
    def input(self) -> list[dict[str, Any]]:
        """The messages that the model read."""
        system = parsed_json(self.attributes.get("gen_ai.system_instructions"))
        head = [{"role": "system", "parts": system}] if isinstance(system, list) and system else []
        messages = self._messages("gen_ai.input.messages", "llm.input_messages", "gen_ai.prompt")
        if messages is not None:
            return [_message(row, None) for row in [*head, *messages]]
        return [
            _message(body, name.split(".")[1])
            for name, body in self.events
            if name.startswith("gen_ai.") and name.endswith(".message")
        ]

    @property
    def output(self) -> list[dict[str, Any]]:
        """What the model wrote: its first choice, or the items of a response."""
        messages = self._messages(*_OUTPUTS)
        if messages is None:
            messages = [body for name, body in self.events if name == "gen_ai.choice"]
        is_items = any(isinstance(row, Mapping) and _is_item(row) for row in messages)
        return [_message(row, "assistant") for row in (messages if is_items else messages[:1])]

    def _messages(self, *names: str) -> list[Any] | None:
        values = (parsed_json(self.attributes.get(name)) for name in names)
        messages = next((value for value in values if value), None)
        return messages if isinstance(messages, list) else None

    def number(self, *names: str) -> int | None:
        """The first of these attributes, as a count."""
        values = (self.attributes.get(name) for name in names)
        return next((reported_count(value) for value in values if value is not None), None)

    def first(self, *names: str) -> Any:
        """The first of these attributes that has a value."""
        return next((self.attributes[name] for name in names if self.attributes.get(name)), None)

    @property
    def finish_reason(self) -> str | None:
        """Why the model's message ended."""
        reason = self.first("gen_ai.response.finish_reasons", "llm.finish_reason")
        if reason is None and (messages := self._messages(*_OUTPUTS)):
            reason = found_field(messages[0], FINISH_REASONS)
        reason = reason[0] if isinstance(reason, list) and reason else reason
        return None if reason is None else str(reason)

    @property
    def tools(self) -> list[Any]:
        """The schemas of the tools."""
        definitions = parsed_json(self.attributes.get("gen_ai.tool.definitions"))
        if isinstance(definitions, list):
            return definitions
        rows = self.attributes.get("llm.tools")
        schemas = [row.get("tool", row).get("json_schema") for row in rows] if isinstance(rows, list) else []
        return [parsed_json(schema) for schema in schemas if schema]


@dataclass(kw_only=True)
class _Conversation:
    messages: list[Message] = field(default_factory=list)
    spans: list[str | None] = field(default_factory=list)
    """Span that wrote each message; ``None`` for messages that the model only read."""
    calls: list[Span] = field(default_factory=list)

    def continues(self, prompt: Sequence[Message]) -> bool:
        """Whether ``prompt`` begins with this conversation, as far as both show it."""

        def visible(message: Message) -> tuple[str, str, tuple[str, ...]]:
            names = tuple(call.name for call in message.tool_calls)
            return message.role, (message.content or "").strip(), names

        return len(prompt) >= len(self.messages) and all(
            visible(old) == visible(new) for old, new in zip(self.messages, prompt, strict=False)
        )


def _traces(
    name: str, chats: Sequence[Span], spans: Sequence[Span], context: ImportContext, form: str
) -> Iterator[ImportedTrace]:
    conversations: list[_Conversation] = []
    for span in sorted(chats, key=lambda span: span.start):
        prompt = context.messages(span.input)
        answer = with_reasoning_tokens(context.messages(span.output), span.number(*_REASONING_TOKENS))
        chat = next((chat for chat in conversations if chat.continues(prompt)), None)
        if chat is None:
            chat = _Conversation()
            conversations.append(chat)
        new = prompt[len(chat.messages) :]
        chat.messages += [*new, *answer]
        chat.spans += [*[None] * len(new), *[span.span_id] * len(answer)]
        chat.calls.append(span)
    tool_spans = [span for span in spans if span.attributes.get("gen_ai.tool.call.result") is not None]
    for number, chat in enumerate(conversations):
        _add_last_results(chat, tool_spans, context)
        yield _trace(f"{name}-{number}" if len(conversations) > 1 else name, name, chat, form)


def _trace(trace_id: str, otel_id: str, chat: _Conversation, form: str) -> ImportedTrace:
    check_assistant(chat.messages)
    last = chat.calls[-1]
    model = last.first("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
    note = {"format": form, "conversation": trace_id, "trace_id": otel_id, "spans": chat.spans}
    return run_on(
        Problem(text=task_of(chat.messages)),
        chat.messages,
        note,
        id=trace_id,
        tools=next((span.tools for span in chat.calls if span.tools), ()),
        policy=None if model is None else str(model),
        finish_reason=last.finish_reason,
        error=last.error,
        usage=[{name: span.number(*names) for name, names in _TOKENS.items()} for span in chat.calls],
        calls=len(chat.calls),
    )


def _add_last_results(chat: _Conversation, tool_spans: Sequence[Span], context: ImportContext) -> None:
    """Add the results of the last message's calls from the spans of tools; no later call has read them."""
    by_id = {span.attributes.get("gen_ai.tool.call.id"): span for span in tool_spans}
    for call in chat.messages[-1].tool_calls:
        if call.id is not None and (span := by_id.get(call.id)) is not None:
            result = span.attributes["gen_ai.tool.call.result"]
            result = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
            row = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result}
            chat.messages += context.messages([row | ({} if span.error is None else {"error": True})])
            chat.spans.append(span.span_id)


def _message(row: Any, role: str | None) -> dict[str, Any]:
    """A message in its own dialect, by default of ``role``; OpenLLMetry writes parts as JSON text."""
    row = require_object(row, "a message")
    inner = row.get("message")
    fields = dict(inner if isinstance(inner, Mapping) else row)
    parts = parsed(fields.get("content"))
    if isinstance(parts, list) and parts and all(isinstance(part, dict) and "type" in part for part in parts):
        fields["content"] = parts
    has_role = role is None or {"role", "lc"} & fields.keys() or _is_item(fields)
    return fields if has_role else {**fields, "role": role}


def _is_item(row: Mapping[str, Any]) -> bool:
    """Whether a row is an item of OpenAI's Responses API, or a part, and not a message or a choice."""
    return "type" in row and not {"role", "lc", "message", "text"} & row.keys()


def _spans(row: Any) -> Iterator[Span]:
    """The spans of one row: of OTLP's envelope, or one span."""
    row = require_object(row, "a span")
    for resource in row.get("resourceSpans") or row.get("resource_spans") or ():
        for scope in resource.get("scopeSpans") or resource.get("scope_spans") or ():
            above = {"resource": resource.get("resource"), "scope": scope.get("scope")}
            yield from (_span(span, above) for span in scope.get("spans") or ())
    if isinstance(row.get("data"), list):  # a page of Phoenix's API
        yield from (_span(span) for span in row["data"])
    elif not _ENVELOPES & row.keys():
        yield _span(row)


def _span(row: Mapping[str, Any], above: Mapping[str, Any] | None = None) -> Span:
    context, attributes = row.get("context") or row, _attributes(row)

    def identifier(name: str, otlp_name: str) -> str:
        value = context.get(name) or row.get(f"context.{name}") or row.get(otlp_name) or ""
        return str(value).removeprefix("0x")

    status = row.get("status") or {"code": row.get("status_code"), "message": row.get("status_message")}
    failed = str(status.get("status_code") or status.get("code") or "") in ("ERROR", "2", "STATUS_CODE_ERROR")
    return Span(
        trace_id=identifier("trace_id", "traceId"),
        span_id=identifier("span_id", "spanId"),
        start=timestamp(
            row.get("start_time") or row.get("startTimeUnixNano") or row.get("start_time_unix_nano")
        ),
        attributes=_nested(attributes),
        row={**row, "attributes": attributes, **(above or {})},
        error=str(status.get("description") or status.get("message") or "error") if failed else None,
        events=[(event.get("name", ""), _event_body(event)) for event in row.get("events") or ()],
    )


def _event_body(event: Mapping[str, Any]) -> dict[str, Any]:
    body = _nested(_attributes(event))
    return {name.removeprefix("gen_ai.event."): parsed_json(value) for name, value in body.items()}


def _attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by name, from the SDK's object, OTLP's list, or columns ``attributes.NAME``."""
    attributes = row.get("attributes")
    if isinstance(attributes, Mapping):
        return dict(attributes)
    if isinstance(attributes, list):
        return {pair["key"]: _otlp_value(pair.get("value")) for pair in attributes}
    head = "attributes."
    return {name.removeprefix(head): value for name, value in row.items() if name.startswith(head)}


def _otlp_value(value: Any) -> Any:
    """A value in OTLP's JSON form."""
    if not isinstance(value, Mapping) or not value:
        return None
    [(kind, inner), *_] = value.items()
    if kind == "arrayValue":
        return [_otlp_value(item) for item in inner.get("values") or ()]
    if kind == "kvlistValue":
        return {pair["key"]: _otlp_value(pair.get("value")) for pair in inner.get("values") or ()}
    return int(inner) if kind == "intValue" else inner


def _nested(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes; the indexed families become lists of objects."""
    nested: dict[str, Any] = {}
    for name, value in attributes.items():
        family = next((family for family in _FAMILIES if name.startswith(f"{family}.")), None)
        if family is None or not _INDEXED.match(name):
            nested[name] = value
        else:
            *path, last = name[len(family) + 1 :].split(".")
            if len(path) >= _MAX_PARTS:
                reason = f"has {len(path) + 1:,} parts; at most {_MAX_PARTS} are read"
                raise RecordError(f"attribute '{shortened(name[len(family) + 1 :])}' {reason}")
            tree = nested.setdefault(family, {})
            for key in path:
                child = tree.setdefault(key, {})
                tree = child if isinstance(child, dict) else {}
            tree[last] = value
    return {name: _lists(value) if name in _FAMILIES else value for name, value in nested.items()}


def _lists(tree: Any) -> Any:
    """Convert objects whose keys are all numbers to lists."""
    if not isinstance(tree, dict):
        return [_lists(item) for item in tree] if isinstance(tree, list) else tree
    if tree and all(key.isdecimal() for key in tree):
        return [_lists(tree[key]) for key in sorted(tree, key=int)]
    return {key: _lists(value) for key, value in tree.items()}


def parsed_json(value: Any) -> Any:
    """A value; JSON text of a list or object is parsed. Raises ``RecordError`` for messages that were cut."""
    value = parsed(value)
    if isinstance(value, str) and value[:1] in ("[", "{") and _is_cut(value):
        raise RecordError(
            f"messages of {len(value):,} characters are not complete JSON: they were cut, as at a "
            "limit of attributes (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT); export them whole"
        )
    return value


def _is_cut(text: str) -> bool:
    """Whether a text that is not JSON begins as JSON of messages; a model's own text may be any JSON."""
    try:
        value = from_json(text, allow_partial=True)
    except ValueError:
        return False
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and bool(first.keys() & _MESSAGE_FIELDS)


def found_field(value: Any, names: Sequence[str]) -> str | None:
    """The first text under one of these names, at any depth."""
    if isinstance(value, Mapping):
        texts = (value[name] for name in names if isinstance(value.get(name), str))
        return next(texts, None) or found_field(list(value.values()), names)
    inner = (found_field(item, names) for item in value) if isinstance(value, list) else ()
    return next(filter(None, inner), None)


def timestamp(value: Any) -> float:
    """Seconds, from nanoseconds, ISO 8601 or a table's time, without an offset of UTC; 0 keeps the order."""
    if isinstance(value, str) and not value.isdecimal():
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return int(value or 0) / 1e9


read_otel_spans: Final = partial(read_spans, spans_of=_spans, name="otel")
"""One trace per conversation of the file's spans."""
