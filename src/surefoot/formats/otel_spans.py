"""Spans of OpenTelemetry: GenAI semantic conventions, OpenInference, OpenLLMetry's indexed attributes.

Read are OTLP in JSON (``resourceSpans``), what the SDK prints (``ReadableSpan.to_json``), and rows of
attributes. The calls of a model in one trace are put together to conversations: a call whose input continues
a conversation belongs to it. Written are ``gen_ai.evaluation.result`` events, as OTLP log records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.formats._imports import (
    IMPORT_KEY,
    REFUSED,
    ImportContext,
    ImportedTrace,
    check_assistant,
    raw_rows,
    refusal,
    task_of,
    tools,
)
from surefoot.formats._results import TraceResults
from surefoot.formats._rows import write_rows
from surefoot.io.files import shortened
from surefoot.records import Message, Problem, Trace, Usage, now

NAME = "otel"

_INDEXED = re.compile(r"^(?P<head>.+?)\.(?P<index>\d+)\.(?P<rest>.+)$")
_MOST_PARTS = 32
_FAMILIES = ("llm.input_messages", "llm.output_messages", "llm.tools", "gen_ai.prompt", "gen_ai.completion")


def read_otel_spans(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per conversation, in order of the trace ids' first spans.

    All spans of the file are held, since those of a trace may stand anywhere in it.
    """
    spans: dict[str, list[_Span]] = {}
    total = 0
    for number, row in raw_rows(path):
        try:
            for span in _spans(row):
                total += 1
                spans.setdefault(span.trace_id, []).append(span)
        except REFUSED as error:
            context.report.skipped(number, refusal(error))
    chats = {name: [span for span in own if span.has_messages] for name, own in spans.items()}
    if total and not any(chats.values()):
        context.report.skipped(
            1,
            f"none of {total} spans has messages (gen_ai.input.messages, gen_ai.output.messages or "
            "llm.input_messages); capture content in the instrumentation, such as "
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true",
        )
    rows = ((number, name) for number, name in enumerate(chats, start=1) if chats[name])
    return context.rows(rows, lambda _, name: _traces(name, chats[name], spans[name], context))


def write_otel_events(_: Path, path: Path, results: Mapping[str, TraceResults]) -> int:
    """Write one ``gen_ai.evaluation.result`` event for each label and score of a step, and for each trace.

    An event is an OTLP log record with the trace and span of the call that wrote the step. Returns the number
    of traces with events.
    """
    records = [record for found in results.values() for record in _events(found)]
    scope = {"scope": {"name": "surefoot"}, "logRecords": records}
    write_rows(path, [{"resourceLogs": [{"resource": {"attributes": []}, "scopeLogs": [scope]}]}])
    return len(results)


@dataclass(kw_only=True)
class _Span:
    trace_id: str
    span_id: str
    start: float
    attributes: Mapping[str, Any]
    error: str | None = None
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()

    @property
    def has_messages(self) -> bool:
        try:
            return bool(self.output)
        except REFUSED:
            return True  # and the conversation is refused, with the reason

    @property
    def input(self) -> list[dict[str, Any]]:
        """What the model read."""
        known = self.attributes
        system = _parsed(known.get("gen_ai.system_instructions"))
        head = [{"role": "system", "parts": system}] if isinstance(system, list) and system else []
        said = _parsed(known.get("gen_ai.input.messages")) or known.get("llm.input_messages")
        said = said or known.get("gen_ai.prompt")
        if isinstance(said, list):
            return [_message(row) for row in [*head, *said]]
        return [
            _message({**body, "role": name.split(".")[1]})
            for name, body in self.events
            if name.startswith("gen_ai.") and name.endswith(".message")
        ]

    @property
    def output(self) -> list[dict[str, Any]]:
        """What the model wrote: its first choice."""
        known = self.attributes
        said = _parsed(known.get("gen_ai.output.messages")) or known.get("llm.output_messages")
        said = said or known.get("gen_ai.completion")
        if not isinstance(said, list):
            said = [body.get("message", body) for name, body in self.events if name == "gen_ai.choice"]
        return [_message({"role": "assistant", **row}) for row in said[:1]]

    def number(self, *names: str) -> int | None:
        """The first of these attributes, as a number."""
        values = (self.attributes.get(name) for name in names)
        return next((int(value) for value in values if value is not None), None)


@dataclass(kw_only=True)
class _Conversation:
    messages: list[Message] = field(default_factory=list)
    spans: list[str | None] = field(default_factory=list)
    """Span that wrote each message; ``None`` for those that it only read."""
    calls: list[_Span] = field(default_factory=list)


def _traces(
    name: str, chats: Sequence[_Span], every: Sequence[_Span], context: ImportContext
) -> Iterator[ImportedTrace]:
    conversations: list[_Conversation] = []
    for span in sorted(chats, key=lambda one: one.start):
        before, after = context.messages(span.input), context.messages(span.output)
        after = tuple(_with_tokens(message, span) for message in after)
        found = next((one for one in conversations if _continues(one.messages, before)), None)
        if found is None:
            found = _Conversation()
            conversations.append(found)
        new = before[len(found.messages) :]
        found.messages += [*new, *after]
        found.spans += [*[None] * len(new), *[span.span_id] * len(after)]
        found.calls.append(span)
    results = [span for span in every if span.attributes.get("gen_ai.tool.call.result") is not None]
    for number, one in enumerate(conversations):
        _answer_calls(one, results, context)
        yield _made(f"{name}-{number}" if len(conversations) > 1 else name, name, one)


def _made(trace_id: str, otel_id: str, one: _Conversation) -> ImportedTrace:
    check_assistant(one.messages)
    problem = Problem(text=task_of(one.messages))
    last = one.calls[-1]
    known = next((span.attributes for span in one.calls if _tools_of(span.attributes)), {})
    read, wrote = (
        ("gen_ai.usage.input_tokens", "llm.token_count.prompt"),
        ("gen_ai.usage.output_tokens", "llm.token_count.completion"),
    )
    reasons = last.attributes.get("gen_ai.response.finish_reasons") or last.attributes.get(
        "llm.finish_reason"
    )
    trace = Trace(
        id=trace_id,
        problem_id=problem.id,
        messages=tuple(one.messages),
        tools=tools(_tools_of(known)),
        policy=_first(last.attributes, "gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
        finish_reason=str(reasons[0]) if isinstance(reasons, list) and reasons else reasons or None,
        error=last.error,
        usage=Usage(
            prompt_tokens=sum(span.number(*read) or 0 for span in one.calls),
            completion_tokens=sum(span.number(*wrote) or 0 for span in one.calls),
            calls=len(one.calls),
        ),
        meta={
            IMPORT_KEY: {
                "format": NAME,
                "conversation": trace_id,
                "trace_id": otel_id,
                "spans": one.spans,
                "responses": {
                    span.span_id: span.attributes["gen_ai.response.id"]
                    for span in one.calls
                    if "gen_ai.response.id" in span.attributes
                },
            }
        },
    )
    return ImportedTrace(problem=problem, trace=trace)


def _continues(known: Sequence[Message], before: Sequence[Message]) -> bool:
    """Whether the input of a call begins with a conversation, as far as both show it."""

    def shown(message: Message) -> tuple[str, str, tuple[str, ...]]:
        return message.role, (message.content or "").strip(), tuple(call.name for call in message.tool_calls)

    return len(before) >= len(known) and all(
        shown(old) == shown(new) for old, new in zip(known, before, strict=False)
    )


def _with_tokens(message: Message, span: _Span) -> Message:
    """The message with the number of its reasoning tokens; without any text they are withheld."""
    names = ("gen_ai.usage.reasoning.output_tokens", "llm.token_count.completion_details.reasoning")
    tokens = span.number(*names)
    if not tokens:
        return message
    own = message.reasoning.model_dump() if message.reasoning else {"text": "", "visibility": "withheld"}
    return Message.model_validate(message.model_dump() | {"reasoning": own | {"tokens": tokens}})


def _answer_calls(one: _Conversation, results: Sequence[_Span], context: ImportContext) -> None:
    """Add the results of the last message's calls, which no later call has read, from the tools' spans."""
    by_id = {span.attributes.get("gen_ai.tool.call.id"): span for span in results}
    for call in one.messages[-1].tool_calls:
        if call.id is not None and (span := by_id.get(call.id)) is not None:
            said = span.attributes["gen_ai.tool.call.result"]
            row = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": _as_text(said)}
            one.messages += context.messages([row | {"error": span.error is not None}])
            one.spans.append(span.span_id)


def _tools_of(attributes: Mapping[str, Any]) -> list[Any]:
    given = _parsed(attributes.get("gen_ai.tool.definitions"))
    if isinstance(given, list):
        return given
    listed = attributes.get("llm.tools")
    schemas = [row.get("tool", row).get("json_schema") for row in listed] if isinstance(listed, list) else []
    return [_parsed(schema) for schema in schemas if schema]


def _message(row: Mapping[str, Any]) -> dict[str, Any]:
    """A message with ``parts`` (GenAI), with ``message.`` before its fields (OpenInference), or plain."""
    inner = row.get("message", row)
    if isinstance(inner.get("parts"), list):
        answers = [part for part in inner["parts"] if part.get("type") == "tool_call_response"]
        if answers:
            said = next(
                (answers[0][name] for name in ("response", "result", "content") if name in answers[0]), None
            )
            return {"role": "tool", "tool_call_id": answers[0].get("id"), "content": _as_text(said)}
        return {"role": inner.get("role"), "name": inner.get("name"), "content": inner["parts"]}
    fields = {name: inner[name] for name in ("role", "content", "name", "tool_call_id") if name in inner}
    if isinstance(inner.get("contents"), list):
        fields["content"] = [_content(part.get("message_content", part)) for part in inner["contents"]]
    calls = [call.get("tool_call", call) for call in inner.get("tool_calls") or ()]
    fields["tool_calls"] = [{"id": call.get("id"), **(_flat_call(call))} for call in calls]
    parsed = _parsed(fields.get("content"))
    if (
        isinstance(parsed, list)
        and parsed
        and all(isinstance(part, dict) and "type" in part for part in parsed)
    ):
        fields["content"] = parsed
    return fields


def _flat_call(call: Mapping[str, Any]) -> dict[str, Any]:
    inner = call.get("function") if isinstance(call.get("function"), Mapping) else call
    return {"name": inner.get("name"), "arguments": inner.get("arguments") or "{}"}  # type: ignore[union-attr]


def _content(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of OpenInference's contents."""
    image = part.get("image")
    if isinstance(image, Mapping):
        return {"type": "image", "image": image.get("image", image)}
    return dict(part)


def _spans(row: Any) -> Iterator[_Span]:
    """The spans of one row: of OTLP's envelope, or one span."""
    if isinstance(row, ValueError):
        raise RecordError(f"not JSON ({row})")
    if not isinstance(row, Mapping):
        raise RecordError(f"a span is an object, not {row!r:.40}")
    for resource in row.get("resourceSpans") or row.get("resource_spans") or ():
        for scope in resource.get("scopeSpans") or resource.get("scope_spans") or ():
            yield from (_span(span) for span in scope.get("spans") or ())
    if not {"resourceSpans", "resource_spans"} & row.keys():
        yield _span(row)


def _span(row: Mapping[str, Any]) -> _Span:
    place = row.get("context") or row
    names = {
        name: str(place.get(name) or row.get(f"context.{name}") or "") for name in ("trace_id", "span_id")
    }
    status = row.get("status") or {}
    failed = str(status.get("status_code") or status.get("code") or "") in ("ERROR", "2", "STATUS_CODE_ERROR")
    return _Span(
        trace_id=(names["trace_id"] or str(row.get("traceId", ""))).removeprefix("0x"),
        span_id=(names["span_id"] or str(row.get("spanId", ""))).removeprefix("0x"),
        start=_time(row.get("start_time") or row.get("startTimeUnixNano") or row.get("start_time_unix_nano")),
        attributes=_nested(_attributes(row)),
        error=str(status.get("description") or status.get("message") or "error") if failed else None,
        events=[(event.get("name", ""), _event_body(event)) for event in row.get("events") or ()],
    )


def _event_body(event: Mapping[str, Any]) -> dict[str, Any]:
    body = _nested(_attributes(event))
    return {name.removeprefix("gen_ai.event."): _parsed(value) for name, value in body.items()}


def _attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by name: of the SDK's object, OTLP's list, or columns ``attributes.NAME``."""
    given = row.get("attributes")
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, list):
        return {one["key"]: _value(one.get("value")) for one in given}
    head = "attributes."
    return {name.removeprefix(head): value for name, value in row.items() if name.startswith(head)}


def _value(value: Any) -> Any:
    """A value of OTLP's JSON form."""
    if not isinstance(value, Mapping) or not value:
        return None
    [(kind, inner), *_] = value.items()
    if kind == "arrayValue":
        return [_value(one) for one in inner.get("values") or ()]
    if kind == "kvlistValue":
        return {one["key"]: _value(one.get("value")) for one in inner.get("values") or ()}
    return int(inner) if kind == "intValue" else inner


def _nested(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes, those of the indexed families (``llm.tools.0.tool.json_schema``) as lists of objects."""
    nested: dict[str, Any] = {}
    for name, value in attributes.items():
        family = next((one for one in _FAMILIES if name.startswith(f"{one}.")), None)
        if family is None or not _INDEXED.match(name):
            nested[name] = value
        else:
            _put(nested.setdefault(family, {}), _parts(name[len(family) + 1 :]), value)
    return {name: _lists(value) if name in _FAMILIES else value for name, value in nested.items()}


def _parts(name: str) -> list[str]:
    parts = name.split(".")
    if len(parts) > _MOST_PARTS:
        raise RecordError(
            f"attribute '{shortened(name)}' has {len(parts):,} parts, and no convention has so many"
        )
    return parts


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        below = tree.setdefault(key, {})
        tree = below if isinstance(below, dict) else {}
    tree[path[-1]] = value


def _lists(tree: Any) -> Any:
    """Objects whose keys are all numbers as lists."""
    if not isinstance(tree, dict):
        return [_lists(one) for one in tree] if isinstance(tree, list) else tree
    if tree and all(key.isdecimal() for key in tree):
        return [_lists(tree[key]) for key in sorted(tree, key=int)]
    return {key: _lists(value) for key, value in tree.items()}


def _parsed(value: Any) -> Any:
    """A value; JSON text of a list or object is read."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return from_json(value)
        except ValueError:
            return value
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _first(attributes: Mapping[str, Any], *names: str) -> str | None:
    return next((str(attributes[name]) for name in names if attributes.get(name)), None)


def _time(value: Any) -> float:
    """Seconds, from nanoseconds or ISO 8601; 0 where it is not said, which leaves the file's order."""
    if isinstance(value, str) and not value.isdecimal():
        return datetime.fromisoformat(value).timestamp()
    return int(value or 0) / 1e9


def _events(found: TraceResults) -> Iterator[dict[str, Any]]:
    place = found.trace.meta[IMPORT_KEY]
    spans, responses = place["spans"], place["responses"]
    for step in found.steps:
        span = spans[step["message"]]
        about = {"surefoot.step": step["step"], "surefoot.step.kind": step["kind"]}
        about |= {"gen_ai.response.id": responses[span]} if span in responses else {}
        for label in step["labels"]:
            name = f"{label['source']}.{label['kind']}"
            yield _event(place["trace_id"], span, name, label["value"], label["reason"], about)
        for scorer, score in step["scores"].items():
            yield _event(place["trace_id"], span, f"{scorer}.step", score, None, about)
    last = next((span for span in reversed(spans) if span), None)
    yield _event(place["trace_id"], last, "surefoot.trace", found.summary, found.explanation, {})


def _event(
    trace_id: str,
    span_id: str | None,
    name: str,
    value: float | None,
    why: str | None,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    attributes = {"gen_ai.evaluation.name": name, **about}
    attributes |= {} if value is None else {"gen_ai.evaluation.score.value": float(value)}
    attributes |= {} if why is None else {"gen_ai.evaluation.explanation": why}
    moment = str(int(now().timestamp()) * 10**9)
    return {
        "timeUnixNano": moment,
        "observedTimeUnixNano": moment,
        "eventName": "gen_ai.evaluation.result",
        "severityNumber": 9,
        "traceId": trace_id,
        **({} if span_id is None else {"spanId": span_id}),
        "attributes": [{"key": key, "value": _as_value(one)} for key, one in attributes.items()],
    }


def _as_value(value: Any) -> dict[str, Any]:
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}
