"""Reads messages, tool calls and tool schemas in every dialect of :mod:`surefoot.messages.dialects`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from surefoot.failures import FLAG_NAMES, fields_failed
from surefoot.messages import dialects as d
from surefoot.messages.dialects import PartKind

StoreAttachment = Callable[[bytes, str], str | None]
"""Stores the bytes of an attachment, whose media type is the second argument, and returns its URI, if any."""
LeaveOut = Callable[[str], None]
"""Counts a part of a message that is left out, by its name."""

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_NATIVE: Final = frozenset(
    {"role", "content", "tool_calls", "tool_call_id", "name", "reasoning", "attachments", "error"}
)
_TEXT, _FLAG = (str, type(None)), (bool, type(None))
_NATIVE_CALL: Final = frozenset({"id", "name", "arguments"})
_FLAGS: Final = frozenset({*FLAG_NAMES, "extra", "type"})
"""Fields of a result that can say whether its call failed."""
_READ: Final = d.NO_CONTENT.union(
    d.CONTENTS, d.WRAPPERS, d.CALLS, d.RESULT_IDS, d.REASONING, d.REASONING_PARTS, d.OUTPUTS, _FLAGS,
    ("attachments", "from", "refusal", "toolName", "state"),
)  # fmt: skip
"""Fields of a message that become other fields of the record, or nothing."""
_JOINED_LATE: Final = frozenset((*d.CALLS, *d.REASONING, *d.REASONING_PARTS))
"""Fields with which a message does not join the items before it."""


class _Fields(dict[str, Any]):
    """Fields that were read, so that the record need not look at their shape again."""


def message_fields(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a ``Message`` for one message in any dialect.

    A message in the record's own shape is returned as it is. Unknown fields pass through, so that the record
    rejects them by name. Raises ``ValueError`` for a part of an unknown type, and for a message that holds
    several, such as the results of two calls.
    """
    if type(row) is _Fields or _is_native(row):
        return row
    reader = _Reader(None, None)
    with _named_errors([""]):
        reader.add(row)
        messages = reader.finished()
    if len(messages) != 1:
        raise ValueError(f"{len(messages)} messages in one, such as several results")
    return messages[0]


def read_messages(
    rows: Iterable[Any], store: StoreAttachment | None = None, leave_out: LeaveOut | None = None
) -> list[dict[str, Any]]:
    """The fields of the ``Message`` records for the messages of a conversation, in any dialect.

    A message with several results becomes one for each, and consecutive items of OpenAI's Responses API
    (reasoning, text, calls) one message. A call that a message holds in two shapes is read once. ``store``
    receives the bytes of each attachment that a message embeds; without it, they stay in a ``data:`` URL.
    ``leave_out`` counts parts of unknown types, and unknown fields are dropped; without it, the part
    raises ``ValueError`` and the fields pass through. Raises ``ValueError`` for anything but messages.
    """
    reader, at = _Reader(store, leave_out), [""]
    with _named_errors(at):
        for number, row in enumerate(rows):
            at[0] = f"message {number}: "
            reader.add(row)
        at[0] = ""
        return reader.finished()


@contextmanager
def _named_errors(at: Sequence[str]) -> Iterator[None]:
    """Name the place of an error, which ``at`` holds by then."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{at[0]}{error}") from error
    except (AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{at[0]}a part has an unknown shape ({error})") from error


def call_fields(call: Any) -> Any:
    """The fields of a ``ToolCall`` for a call in any dialect; anything but an object is returned as it is."""
    if not isinstance(call, Mapping):
        return call
    inner = call
    while body := next((inner[name] for name in d.CALL_BODIES if isinstance(inner.get(name), Mapping)), None):
        inner = {**{name: inner[name] for name in d.CALL_IDS if name in inner}, **body}
    name = next((inner[name] for name in d.NAMES if isinstance(inner.get(name), str)), None)
    kind = str(call.get("type") or "")
    arguments = _first(inner, d.ARGUMENTS)
    if kind.startswith("tool-") and kind not in d.PART_KINDS:  # of the AI SDK's interface
        name = kind.removeprefix("tool-")
    elif (name is None and kind in d.OWN_CALLS) or (kind.endswith("_call") and kind not in d.PART_KINDS):
        name = name or kind
        not_arguments = {*d.CALL_IDS, *d.OUTPUTS, *FLAG_NAMES, "type"}
        arguments = arguments or {k: v for k, v in inner.items() if k not in not_arguments and v is not None}
    fields = {
        "id": _first(inner, d.CALL_IDS),
        "name": name,
        "arguments": "{}" if arguments is None else _as_text(arguments),
    }
    return {name: value for name, value in fields.items() if value is not None}


def tool_fields(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``Tool``, from a nested ``function`` or ``toolSpec``, or a flat schema."""
    nested = tool.get("function") or tool.get("toolSpec")
    inner: Mapping[str, Any] = nested if isinstance(nested, Mapping) else tool
    schema = _first(inner, d.SCHEMAS)
    if isinstance(schema, Mapping) and schema.keys() == {"json"}:  # Bedrock
        schema = schema["json"]
    return {
        "name": str(inner.get("name") or inner.get("type") or "tool"),
        "description": _first(inner, ("description", "doc")),
        "parameters": None if schema is None else _as_text(schema),
    }


def embedded_hash(text: str) -> str:
    """The hash of an embedded attachment, as the record has it."""
    return hashlib.sha256(embedded_bytes(text)).hexdigest()


def data_url(content: bytes, media_type: str) -> str:
    """The bytes as a ``data:`` URL."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def embedded_bytes(text: str) -> bytes:
    """The bytes of a ``data:`` URL, or of base64; of any other text its own."""
    body = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return body.encode(errors="replace")


def _is_native(row: Mapping[str, Any]) -> bool:
    """Whether a message has the record's own shape, as almost all have that are read again."""
    get = row.get
    if not row.keys() <= _NATIVE or type(get("content")) not in _TEXT or type(get("error")) not in _FLAG:
        return False
    role = get("role")
    if type(role) is not str or role not in _ROLES or isinstance(get("reasoning"), str):
        return False
    if (calls := get("tool_calls")) is None:
        return "tool_calls" not in row
    return isinstance(calls, list | tuple) and all(
        (type(call) is not dict and not isinstance(call, Mapping))
        or (call.keys() <= _NATIVE_CALL and isinstance(call.get("arguments", ""), str))
        for call in calls
    )


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first of these fields that has a value."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _text_of(value: Any) -> str | None:
    """The text of a part: itself, a field of it, or the joined texts of a list; ``None`` without any."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [text for text in map(_text_of, value) if text is not None]
        return "".join(texts) if texts else None
    text = None
    for name in d.TEXTS if isinstance(value, Mapping) else ():
        if name in value and (inner := _text_of(value[name])) is not None:
            if inner:
                return inner
            text = inner
    return text


def _part(part: Any) -> tuple[PartKind | None, Any]:
    """The kind of a part and the object that holds it; ``None`` for an unknown type."""
    if isinstance(part, str):
        return "text", part
    name = part.get("type")
    if name is None:
        return _part_without_type(part)
    kind: PartKind | None = d.PART_KINDS.get(name) if isinstance(name, str) else None
    if kind is None and isinstance(name, str):
        kind = _kind_by_ending(name, part)
    if kind == "both" and isinstance(part.get("toolInvocation"), Mapping):
        part = part["toolInvocation"]
    if kind == "call" and _is_answered(part):
        kind = "both"
    return kind, part


def _part_without_type(part: Mapping[str, Any]) -> tuple[PartKind | None, Any]:
    """The same where the name of a field is the type, as in Bedrock, Gemini and OpenInference."""
    for name, value in part.items():
        if name in d.WRAPPERS and isinstance(value, Mapping):
            return _part(value)
        if (kind := d.PART_KINDS.get(name)) is not None:
            if kind == "text" and part.get("thought") is True:
                kind = "reasoning"
            if kind == "media" or not isinstance(value, Mapping):
                return kind, part
            return kind, {"type": name, **value}
    if "json" in part:
        return "text", _as_text(part["json"])
    return ("text" if any(name in part for name in d.TEXTS) else None), part


def _kind_by_ending(name: str, part: Mapping[str, Any]) -> PartKind | None:
    """The kind of a part of a provider's own tool, of which there are many."""
    if name.startswith("tool-"):
        return "both"
    if name.endswith(("tool_use", "_call")) and _first(part, d.CALL_IDS):
        return "call"
    return "result" if name.endswith(("_result", "_output")) and _first(part, d.RESULT_IDS) else None


def _is_answered(part: Mapping[str, Any]) -> bool:
    """Whether a call holds its result."""
    return (
        _first(part, d.OUTPUTS) is not None or bool(part.get("error")) or part.get("state") in d.FAILED_STATES
    )


def _are_parts(parts: Sequence[Any]) -> bool:
    """Whether objects are parts of a message, not a tool's own values with a field of such a name."""
    return all(isinstance(part, str) or "type" in part or len(part) == 1 for part in parts)


class _Reader:
    """Collects the messages of a conversation."""

    def __init__(self, store: StoreAttachment | None, leave_out: LeaveOut | None) -> None:
        self._store, self._leave_out = store, leave_out
        self._messages: list[_Draft | dict[str, Any]] = []
        self._open: _Draft | None = None
        """The assistant's message that further items of the Responses API join."""

    def finished(self) -> list[dict[str, Any]]:
        """All messages."""
        read = (each if isinstance(each, dict) else each.fields() for each in self._messages)
        return [each if type(each) is _Fields else _Fields(each) for each in read]

    def add(self, row: Any) -> None:
        """Add a message, or an item of the Responses API."""
        if not isinstance(row, Mapping):
            raise TypeError(f"a message is an object, not {row!r:.40}")
        row, role = _unwrapped(row)
        is_item = row.get("type") == "message"
        if role is None and "type" in row and not is_item:
            self._add_item(row)
            return
        role = "assistant" if role is None and is_item else role
        previous, self._open = self._open, None
        if _is_native(row) and (previous is None or role != "assistant"):
            self._messages.append(_Fields(row))
            return
        content = _first(row, d.CONTENTS)
        if not isinstance(content, str | list | Mapping | None):
            raise TypeError(f"content is a text or parts, not {content!r:.40}")
        parts = content if isinstance(content, list) else [] if content is None else [content]
        if role == "tool":
            self._add_results(row, parts)
            return
        joins = previous is not None and role == "assistant" and not row.keys() & _JOINED_LATE
        draft = previous if joins and previous is not None else self._new(role, row)
        if row.get("role", row.get("from")) in d.CALL_ROLES and (calls := _json_calls(content)):
            draft.add_calls(calls)
        else:
            self._add_parts(draft, role, parts)
        self._open = draft if role == "assistant" and (is_item or joins) else None

    def _new(self, role: Any, row: Mapping[str, Any]) -> _Draft:
        draft = _Draft(role, row, self._store, self._leave_out)
        self._messages.append(draft)
        return draft

    def _add_item(self, row: Mapping[str, Any]) -> None:
        kind, item = _part(row)
        if kind not in ("call", "result", "both", "reasoning"):
            _leave_out(f"item of type {row['type']!r:.60}", self._leave_out)
            return
        if kind != "result":
            last = self._messages[-1] if self._messages and self._open is None else None
            if isinstance(last, dict) and last["role"] == "assistant":
                del self._messages[-1]
                self._open = self._new("assistant", last)
                self._open.add("text", last.get("content") or "")
            elif isinstance(last, _Draft) and last.role == "assistant":
                self._open = last
            self._open = self._open or self._new("assistant", {})
            self._open.add(kind, item)
        if kind in ("result", "both"):
            self._open = None
            self._messages.append(self._result(item))

    def _add_parts(self, draft: _Draft, role: Any, parts: Sequence[Any]) -> None:
        """Add parts to ``draft``, the last message; results become messages of their own.

        A user's results stand before their words, because they answer the message before. What an assistant
        says after a result of a tool that its provider ran is a further message.
        """
        results: list[_Draft | dict[str, Any]] = []
        is_empty = bool(parts)
        for part in parts:
            kind, body = _part(part)
            if kind == "both":
                draft.add(kind, body)
            if kind == "result" or (kind == "both" and _is_answered(body)):
                results.append(self._result(body))
            elif kind != "both":
                if results and role == "assistant" and kind != "mark":
                    self._messages += results
                    results, draft = [], self._new(role, {})
                draft.add(kind, body)
            is_empty = is_empty and kind in ("result", "mark")
        if role == "assistant":
            self._messages += results
        elif results:
            self._messages[-1:] = results if is_empty else [*results, draft]

    def _add_results(self, row: Mapping[str, Any], parts: Sequence[Any]) -> None:
        """The results of a tool's message: one, or several as parts."""
        kinds = [_part(part) for part in parts if isinstance(part, Mapping)]
        if all(kind != "result" for kind, _ in kinds):
            self._messages.append(self._result(row))
            return
        for kind, body in kinds:
            if kind == "result":
                self._messages.append(self._result(body))
            else:
                _leave_out(f"{kind or body.get('type')!r:.60} among a tool's results", self._leave_out)

    def _result(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A tool's message for a result."""
        is_message = row.get("role") is not None
        content = _first(row, d.CONTENTS + d.OUTPUTS if is_message else d.OUTPUTS + d.CONTENTS)
        flags = {name: row[name] for name in row.keys() & _FLAGS}
        if isinstance(content, Mapping) and content.get("type") in d.OUTPUT_TYPES and "text" not in content:
            flags |= {"type": content["type"]}
            content = _first(content, ("value", "reason", "type"))
        name = next((row[name] for name in d.NAMES if isinstance(row.get(name), str)), None)
        source = {**row, "name": name} if is_message else {"name": name}
        fields = _Draft("tool", source, self._store, self._leave_out).fields()
        fields = {k: v for k, v in fields.items() if k not in ("tool_calls", "reasoning", "content")}
        fields |= self._result_content(content)
        failed = True if row.get("state") in d.FAILED_STATES else fields_failed(flags)
        if isinstance(error := row.get("error"), str | Mapping) and error:
            text = error if isinstance(error, str) else error.get("message") or _as_text(error)
            fields["content"] = fields.get("content") or text
        call_id = _first(row, d.RESULT_IDS[:-1] if is_message else d.RESULT_IDS)
        answered = {"tool_call_id": call_id, "error": failed}
        return fields | {name: value for name, value in answered.items() if value is not None}

    def _result_content(self, content: Any) -> dict[str, Any]:
        """Text and attachments; any value but a list of parts stays JSON."""
        if content is None:
            return {}
        parts = content if isinstance(content, list) else [content]
        if parts and all(isinstance(part, Mapping | str) for part in parts) and _are_parts(parts):
            kinds = [_part(part) for part in parts]
            pictured = any(kind == "media" and "image" in str(body.get("type")) for kind, body in kinds)
            if pictured or all(kind in ("text", "media") for kind, _ in kinds):
                draft = _Draft("tool", {}, self._store, self._leave_out)
                for kind, body in kinds:
                    draft.add(*((kind, body) if kind in ("text", "media") else ("text", _as_text(body))))
                return draft.fields()
        return {"content": _as_text(content)}


def _leave_out(name: str, count: LeaveOut | None) -> None:
    """Count a part that is left out. Raises ``ValueError`` without ``count``."""
    if count is None:
        raise ValueError(f"{name}, which is not supported")
    count(name)


def _unwrapped(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """A message without the objects around it, and its role; ``None`` for an item without one."""
    role = row.get("role", row.get("from"))
    if role is None:
        for name in d.WRAPPERS:
            inner = row.get(name)
            if isinstance(inner, Mapping) and inner.keys() & {"content", "contents", "parts", "role", "lc"}:
                names = row.get("id")
                kind = row.get("type") if name != "kwargs" else inner.get("type")
                if kind is None and isinstance(names, list) and names:  # LangChain's constructors
                    kind = names[-1]
                return _unwrapped(inner if "role" in inner else {"type": kind, **inner})
        kind = row.get("type")
        role = kind if isinstance(kind, str) and _role(kind) in _ROLES and kind not in d.PART_KINDS else None
    return row, None if role is None else _role(role)


def _role(name: Any) -> Any:
    if not isinstance(name, str) or name in _ROLES:
        return name
    small = name.lower().removesuffix("chunk").removesuffix("message")
    return d.ROLES.get(small, name)


def _json_calls(content: Any) -> list[Any]:
    """The calls of a message whose text is a call in JSON, or a list of such."""
    try:
        value = json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError):
        return []
    calls = value if isinstance(value, list) else [value]
    return calls if all(isinstance(call, Mapping) and _first(call, d.NAMES) for call in calls) else []


class _Draft:
    """A message whose parts are being read; ``row`` has its other fields."""

    def __init__(
        self, role: Any, row: Mapping[str, Any], store: StoreAttachment | None, leave_out: LeaveOut | None
    ) -> None:
        self.role = role
        self._row, self._store, self._leave_out = row, store, leave_out
        self._texts: list[str] = []
        self._length = 0
        self._calls: list[dict[str, Any]] = []
        self._attachments: list[Any] = list(row.get("attachments") or ())
        self._reasoning = _ReasoningParts()
        for name in d.REASONING_PARTS:
            for part in row.get(name) or ():
                self._reasoning.add(part)

    def add(self, kind: PartKind | None, part: Any) -> None:
        """Add a part. Raises ``ValueError`` for an unknown one, unless these are counted."""
        if kind == "text":
            text = _text_of(part)
            if text is not None:
                self._texts.append(text)
                self._length += len(text)
        elif kind == "reasoning":
            self._reasoning.add(part)
        elif kind in ("call", "both"):
            self.add_calls([part])
        elif kind == "media":
            self._attach(part)
        elif kind is None:
            name = part.get("type") or ", ".join(map(str, part))
            _leave_out(f"content of type {name!r:.60}", self._leave_out)

    def add_calls(self, calls: Iterable[Any]) -> None:
        """Add calls, in any dialect."""
        self._calls += map(call_fields, calls)

    def fields(self) -> dict[str, Any]:
        """The fields of the record."""
        row = self._row
        names = ("name",) if self._leave_out is not None else [name for name in row if name not in _READ]
        fields = {name: row[name] for name in names if row.get(name) is not None} | {"role": self.role}
        content = "".join(self._texts) if self._texts else row.get("refusal")
        if isinstance(content, str):
            fields["content"] = content
        if calls := self._all_calls():
            fields["tool_calls"] = calls
        if self._attachments:
            fields["attachments"] = self._attachments
        if (reasoning := self._reasoning.of(row)) is not None:
            fields["reasoning"] = reasoning
        return fields

    def _all_calls(self) -> list[Any]:
        """The calls of the message's fields and parts; a call in two of them is read once."""
        extra = self._row.get("additional_kwargs")
        rows = (self._row, extra) if isinstance(extra, Mapping) else (self._row,)
        sources = [row[name] for row in rows for name in d.CALLS if row.get(name)]
        merged: list[Any] = []
        for calls in (*([each] if isinstance(each, Mapping) else each for each in sources), self._calls):
            new = map(call_fields, calls)
            merged += [call for call in new if not any(_same_call(call, other) for other in tuple(merged))]
        return merged

    def _attach(self, part: Mapping[str, Any]) -> None:
        kind = str(part.get("type") or next((n for n in part if d.PART_KINDS.get(n) == "media"), ""))
        inner: Any = part
        for name in (kind, *d.MEDIA_BODIES):
            if isinstance(inner.get(name), Mapping):
                inner = inner[name]
            elif isinstance(inner.get(name), str) and "url" not in inner:
                inner = {**inner, "url": inner[name]}
        address = next((inner[name] for name in d.ADDRESSES if isinstance(inner.get(name), str)), None)
        media_type = next((inner[name] for name in d.MEDIA_TYPES if isinstance(inner.get(name), str)), None)
        hints = f"{kind} {part.get('modality', '')} {media_type or ''}"
        uri, digest, head = address, None, (address or "").partition(",")[0]
        if head.startswith("data:"):
            media_type = head.removeprefix("data:").split(";")[0] or media_type
        if address is not None and (head.startswith("data:") or not inner.keys() & {*d.REFERENCES}):
            content = embedded_bytes("".join(address.split()) if "image" in hints else address)
            uri = (self._store or data_url)(content, media_type or "application/octet-stream")
            digest = hashlib.sha256(content).hexdigest()
        fields = {
            "kind": "image" if "image" in hints else "audio" if "audio" in hints else "file",
            "at": self._length,
            "name": inner.get("filename") or inner.get("name"),
            "detail": inner.get("detail"),
            "media_type": media_type,
            "sha256": digest,
            "uri": uri,
        }
        self._attachments.append({name: value for name, value in fields.items() if value is not None})


def _same_call(call: Any, other: Any) -> bool:
    """Whether two shapes are one call: by id, or by content if an id is missing."""
    if not isinstance(call, Mapping) or not isinstance(other, Mapping):
        return False
    if call.get("id") and other.get("id"):
        return bool(call["id"] == other["id"])
    return call.get("name") == other.get("name") and call.get("arguments") == other.get("arguments")


class _ReasoningParts:
    """Reasoning in parts: readable, summarised, encrypted, or without any text."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._encrypted: list[str] = []
        self._summarised = self._any = False

    def add(self, part: Any) -> None:
        """Add a part, or a text."""
        self._any = True
        if not isinstance(part, Mapping):
            part = {"text": part}
        visible, summary = _text_of(part), part.get("summary")
        if isinstance(summary, list):
            summary = "\n\n".join(text for text in map(_text_of, summary) if text)
        blob = _first(part, ("data", "encrypted_content", "redactedContent", "encrypted"))
        if visible and not part.get("redacted"):
            self._texts.append(visible)
        elif summary:
            self._texts.append(str(summary))
            self._summarised = True
        elif blob := blob or visible:
            self._encrypted.append(str(blob))

    def of(self, row: Mapping[str, Any]) -> Any:
        """The reasoning of the message ``row``, from its own field or these parts; ``None`` without any."""
        extra = row.get("additional_kwargs")
        fields = [row.get(name) for name in d.REASONING]
        fields.append(extra.get("reasoning_content") if isinstance(extra, Mapping) else None)
        field = next(filter(None, fields), None)
        if isinstance(field, list):
            field = _text_of(field)
        if field is not None and not isinstance(field, str):
            return field
        if field is not None:
            return {"text": field, "visibility": "summarised" if self._summarised else "visible"}
        if self._texts:
            visibility = "summarised" if self._summarised else "visible"
            return {"text": "\n\n".join(self._texts), "visibility": visibility}
        if self._encrypted:
            return {"text": "\n".join(self._encrypted), "visibility": "encrypted"}
        return {"visibility": "withheld"} if self._any else None
