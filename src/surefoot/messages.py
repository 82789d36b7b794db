"""Chat messages, tool calls and tool schemas in the shapes that servers and agents use.

Supported shapes: OpenAI's chat completions (nested ``function``, content as a list of parts) and Responses
items, the ``reasoning_content`` and ``reasoning`` fields of vLLM, SGLang and OpenRouter, Anthropic's blocks
(``thinking``, ``tool_use``), and Inspect's content. A message that already has the shape of
:class:`surefoot.records.Message` is left unchanged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from surefoot.errors import SchemaError
from surefoot.failures import FLAG_NAMES, fields_failed

if TYPE_CHECKING:
    import jsonschema_rs

    from surefoot.records import Tool, ToolCall

StoreAttachment = Callable[[bytes, str], str]
"""Stores the bytes of an attachment, whose media type is the second argument, and returns its URI."""

MAX_DEPTH: Final = 32
"""Levels of nested arguments."""
_EXACT: Final = 2**53
"""Integers up to here are exact in every JSON reader (RFC 7493)."""
_ROLES: Final = {
    "function": "tool",
    "human": "user",
    "gpt": "assistant",
    "ai": "assistant",
    "model": "assistant",
}
_IGNORED: Final = {
    "annotations", "audio", "function_call", "id", "index", "logprobs", "model", "object",
    "reasoning_content", "reasoning_details", "refusal", "status", "type", "weight",
}  # fmt: skip
"""Message fields without information about the process, or which other fields of the record hold."""
_REASONING_PARTS: Final = {
    "reasoning", "reasoning.encrypted", "reasoning.summary", "reasoning.text", "redacted_thinking",
    "thinking",
}  # fmt: skip
_CALL_PARTS: Final = {"tool_use", "tool_call", "function_call"}

MAX_SCHEMA_NODES: Final = 10_000
"""Values in a schema after resolving references: a bound on the cost of one validation."""
_MAX_QUOTED: Final = 200
"""Characters of a validator's message that an error quotes."""


def message_fields(row: Mapping[str, Any], store: StoreAttachment | None = None) -> dict[str, Any]:
    """The fields of a ``Message`` for a message in any of the supported shapes.

    ``store`` receives the bytes of each attachment that the message embeds (a ``data:`` URL); without it,
    only their hash is kept. Unknown fields pass through, so that the record rejects them by name. Raises
    ``ValueError`` for a part of an unknown shape.
    """
    try:
        return _fields(row, store)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a part of the message has an unknown shape ({error})") from error


def _fields(row: Mapping[str, Any], store: StoreAttachment | None) -> dict[str, Any]:
    fields = {name: value for name, value in row.items() if name not in _IGNORED and value is not None}
    fields["role"] = _ROLES.get(row.get("role", ""), row.get("role"))
    parts = _ContentParts(store)
    content = row.get("content")
    if isinstance(content, list | dict):
        fields["content"] = parts.text(content if isinstance(content, list) else [content])
    elif content is None and isinstance(row.get("refusal"), str):
        fields["content"] = row["refusal"]
    calls = [*(row.get("tool_calls") or ()), *parts.calls]
    if not calls and isinstance(row.get("function_call"), Mapping):
        calls = [row["function_call"]]
    if calls:
        fields["tool_calls"] = [call_fields(call) for call in calls]
    else:
        fields.pop("tool_calls", None)
    if attachments := [*(row.get("attachments") or ()), *parts.attachments]:
        fields["attachments"] = attachments
    fields.pop("reasoning", None)
    if (reasoning := _reasoning(row, parts)) is not None:
        fields["reasoning"] = reasoning
    return _with_failure(row, fields) if fields["role"] == "tool" else fields


def _with_failure(row: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Set ``error`` of a tool message from what the row says; an error text also fills empty content."""
    failed = fields_failed({name: row[name] for name in row.keys() & FLAG_NAMES})
    reason = row.get("error")
    if failed and isinstance(reason, str | Mapping):
        text = reason if isinstance(reason, str) else reason.get("message") or _json(reason)
        fields["content"] = fields.get("content") or text
    fields = {name: value for name, value in fields.items() if name not in FLAG_NAMES}
    return fields if failed is None else {**fields, "error": failed}


def messages_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Split a message that holds several tool results, as Anthropic's user messages do, into one for each."""
    content = row.get("content")
    blocks = content if isinstance(content, list) else []
    results = [block for block in blocks if isinstance(block, Mapping) and block.get("type") == "tool_result"]
    if not results:
        return [row]
    remaining = [block for block in blocks if not any(block is result for result in results)]
    messages: list[Mapping[str, Any]] = [
        {
            "role": "tool",
            "tool_call_id": result.get("tool_use_id"),
            "content": result.get("content"),
            "is_error": result.get("is_error"),
        }
        for result in results
    ]
    return [*messages, {**row, "content": remaining}] if remaining else messages


def messages_of_items(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert items of OpenAI's Responses API to chat messages.

    Consecutive reasoning, text and calls of the model become one assistant message. Raises ``ValueError`` for
    an item that is not a message, reasoning, a function call or its output.
    """
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "function_call_output":
            output = item.get("output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind == "message" and item.get("role") != "assistant":
            role = "system" if item.get("role") == "developer" else item.get("role")
            messages.append({"role": role, "content": item.get("content")})
        elif kind in ("message", "reasoning", "function_call"):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": []})
            parts = item.get("content") if kind == "message" else [item]
            if kind == "function_call":
                parts = [{**item, "id": item.get("call_id") or item.get("id")}]
            messages[-1]["content"] += [parts] if isinstance(parts, str) else parts or []
        else:
            raise ValueError(
                f"item {number} has type {kind!r}; supported types are message, reasoning, function_call and "
                "function_call_output"
            )
    return messages


def call_fields(call: Any) -> Any:
    """The fields of a ``ToolCall``, from OpenAI's nested ``function`` or ``custom``, or from a flat call."""
    if not isinstance(call, Mapping):
        return call
    inner: Any = call.get("function")
    if isinstance(inner, str):  # Inspect gives the name alone
        inner = {"name": inner, "arguments": call.get("arguments")}
    inner = inner or call.get("custom") or call
    arguments: Any = next(
        (inner[name] for name in ("arguments", "input", "args") if inner.get(name) is not None), {}
    )
    fields = {
        "id": call.get("id") or call.get("call_id"),
        "name": inner.get("name"),
        "arguments": arguments if isinstance(arguments, str) else _json(arguments),
    }
    return {name: value for name, value in fields.items() if value is not None}


def tool_fields(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``Tool``, from OpenAI's ``{"type": "function", "function": {…}}`` or a flat schema."""
    nested = tool.get("function")
    inner: Mapping[str, Any] = nested if isinstance(nested, Mapping) else tool
    schema = next(
        (inner[name] for name in ("parameters", "input_schema") if inner.get(name) is not None), None
    )
    return {
        "name": str(inner.get("name") or inner.get("type") or "tool"),
        "description": inner.get("description"),
        "parameters": schema if schema is None or isinstance(schema, str) else _json(schema),
    }


class _ContentParts:
    """Sorts the parts of a message's content into text, calls, attachments and reasoning."""

    def __init__(self, store: StoreAttachment | None) -> None:
        self._store = store
        self.calls: list[Mapping[str, Any]] = []
        self.attachments: list[dict[str, Any]] = []
        self.reasoning: list[str] = []
        self.encrypted: list[str] = []
        self.summarised = False
        self._length = 0

    def text(self, parts: list[Any]) -> str | None:
        """The concatenated text parts; ``None`` without any."""
        texts = [text for text in map(self._part, parts) if text is not None]
        return "".join(texts) if texts else None

    def _part(self, part: Any) -> str | None:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        kind = part.get("type", "text")
        if kind in _REASONING_PARTS:
            self._add_reasoning(part)
            return None
        if kind in _CALL_PARTS:
            self.calls.append(part)
            return None
        texts = (part[name] for name in ("text", "content", "refusal") if isinstance(part.get(name), str))
        text = next(texts, None)
        if text is None:
            self._attach(kind, part)
            return None
        self._length += len(text)
        return str(text)

    def _add_reasoning(self, part: Mapping[str, Any]) -> None:
        texts = [part.get(name) for name in ("thinking", "reasoning", "text", "content")]
        visible = next((text for text in texts if isinstance(text, str) and text), None)
        if isinstance(part.get("content"), list):
            visible = "".join(_texts(part["content"]))
        summary = part.get("summary")
        if isinstance(summary, list):
            summary = "\n\n".join(_texts(summary))
        if visible and not part.get("redacted"):
            self.reasoning.append(visible)
        elif summary:
            self.reasoning.append(str(summary))
            self.summarised = True
        elif blob := part.get("data") or part.get("encrypted_content") or visible:
            self.encrypted.append(str(blob))

    def _attach(self, kind: str, part: Mapping[str, Any]) -> None:
        containers = (kind, "image_url", "source", "file", "input_audio")
        inner = next((part[name] for name in containers if name in part), part)
        inner = {"url": inner} if isinstance(inner, str) else inner
        address_fields = ("url", "uri", "path", "file_data", "file_id", "data", "content")
        address = next((inner[name] for name in address_fields if isinstance(inner.get(name), str)), None)
        media_type = inner.get("media_type") or inner.get("mime_type") or inner.get("mimeType")
        hints = f"{kind} {part.get('modality', '')} {media_type or ''}"
        embedded = not any(name in inner for name in ("url", "uri", "path", "file_id"))
        fields = {
            "kind": "image" if "image" in hints else "audio" if "audio" in hints else "file",
            "at": self._length,
            "name": inner.get("filename") or inner.get("name"),
            **self._reference(address, media_type, embedded=embedded),
        }
        self.attachments.append({name: value for name, value in fields.items() if value is not None})

    def _reference(self, address: str | None, media_type: str | None, *, embedded: bool) -> dict[str, Any]:
        """The attachment's address, or the hash and URI of embedded bytes."""
        if address is None:
            return {"media_type": media_type}
        body = address
        if address.startswith("data:"):
            head, _, body = address.partition(",")
            media_type, embedded = head[len("data:") :].split(";")[0] or media_type, True
        if not embedded:
            return {"uri": address, "media_type": media_type}
        try:
            content = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            content = body.encode()
        uri = self._store(content, media_type or "application/octet-stream") if self._store else None
        return {"sha256": hashlib.sha256(content).hexdigest(), "media_type": media_type, "uri": uri}


def _texts(parts: Iterable[Any]) -> list[str]:
    return [str(part.get("text", "")) for part in parts if isinstance(part, Mapping)]


def _reasoning(row: Mapping[str, Any], parts: _ContentParts) -> Any:
    """A message's reasoning, from its content parts or from a separate field; ``None`` without any."""
    field = row.get("reasoning")
    if field is not None and not isinstance(field, str):
        return field
    details = _ContentParts(None)
    if isinstance(row.get("reasoning_details"), list):
        details.text(row["reasoning_details"])
    texts = (row.get("reasoning_content"), field)
    visible = next((text for text in texts if isinstance(text, str) and text), None)
    if visible is not None:
        return {"text": visible, "visibility": "summarised" if details.summarised else "visible"}
    source = parts if parts.reasoning or parts.encrypted else details
    if source.reasoning:
        visibility = "summarised" if source.summarised else "visible"
        return {"text": "\n\n".join(source.reasoning), "visibility": visibility}
    return {"text": "\n".join(source.encrypted), "visibility": "encrypted"} if source.encrypted else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def parse_arguments(text: str, *, exact: bool = False) -> dict[str, Any]:
    """The arguments of a call, read as every JSON reader reads them.

    Raises ``ValueError`` for anything but an object, names that occur twice (also if they differ only in
    Unicode form, case, spaces or invisible characters), NaN and infinity, characters that are not Unicode,
    and more than ``MAX_DEPTH`` levels; with ``exact`` also for integers beyond 2^53, which a reader may
    round (a guard must know what is released). A text without characters is an object without arguments.
    """
    try:
        value = strict_decoder(_exact if exact else int).decode(text if text.strip() else "{}")
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError(f"deeper than {MAX_DEPTH} levels") from error
    except UnicodeEncodeError as error:
        raise ValueError("a character is half of a surrogate pair") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a text is the argument
    if json_depth(value) > MAX_DEPTH:
        raise ValueError(f"deeper than {MAX_DEPTH} levels")
    return value


def call_arguments(call: ToolCall) -> dict[str, Any] | None:
    """The arguments of a call; ``None`` if :func:`parse_arguments` refuses them."""
    try:
        return parse_arguments(call.arguments)
    except ValueError:
        return None


def canonical_arguments(text: str) -> str:
    """The one serialization of exact arguments, names in order. Raises as :func:`parse_arguments`."""
    return json.dumps(parse_arguments(text, exact=True), ensure_ascii=False, sort_keys=True)


@lru_cache(maxsize=1024)
def normal_name(name: str) -> str:
    """A tool's name without differences of Unicode form, case, spaces and invisible characters."""
    text = unicodedata.normalize("NFKC", name).casefold()
    return "".join(
        character
        for character in text
        if not character.isspace() and unicodedata.category(character) not in ("Cf", "Cc", "Mn")
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: dict[str, str] = {}
    for name, _ in pairs:
        key = normal_name(name)
        if key in names:
            raise ValueError(f"the names {names[key][:100]!r} and {name[:100]!r} are the same")
        names[key] = name
    return dict(pairs)


def _refuse_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:30]} is beyond the numbers of JSON readers")
    return value


def _exact(text: str) -> int:
    if len(text) > 17 or abs(value := int(text)) > _EXACT:
        raise ValueError(f"{text[:30]} is beyond 2^53; write it as a string")
    return value


def strict_decoder(parse_int: Callable[[str], int] = int) -> json.JSONDecoder:
    """Reads JSON without repeated names, NaN and infinity."""
    return json.JSONDecoder(
        object_pairs_hook=_distinct,
        parse_constant=_refuse_number,
        parse_float=_finite,
        parse_int=parse_int,
    )


def json_depth(value: Any) -> int:
    """Levels of nesting; Python's own limit of recursion is far above ``MAX_DEPTH``."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if items is None else 1 + max(map(json_depth, items), default=0)


def call_error(tools: Sequence[Tool], call: ToolCall) -> str | None:
    """Why ``call`` matches none of ``tools``: an unknown name, or arguments that violate the JSON schema.

    Returns ``None`` for a valid call. A tool without a schema accepts any JSON object. Patterns match in
    linear time, and nothing is fetched. Raises ``SchemaError`` for an unusable schema.
    """
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        names = ", ".join(tool.name for tool in tools) or "none"
        return f"there is no tool {call.name!r}; the tools are: {names}"[: 2 * _MAX_QUOTED]
    try:
        arguments = parse_arguments(call.arguments)
        violation = next(iter(_validator(tool.parameters or "{}").iter_errors(arguments)), None)
    except ValueError as error:
        return f"the arguments cannot be read: {str(error)[:_MAX_QUOTED]}"
    if violation is None:
        return None
    where = ".".join(str(part) for part in violation.instance_path)
    return f"{where + ': ' if where else ''}{violation.message[:_MAX_QUOTED]}"


@lru_cache(maxsize=256)
def _validator(schema: str) -> jsonschema_rs.Validator:
    import jsonschema_rs  # here, because every import of the records loads this module

    try:
        parsed = json.loads(schema)
        if not isinstance(parsed, dict):
            raise SchemaError("the schema of a tool's parameters must be a JSON object")
        if _count_nodes(parsed, parsed, (), {}) > MAX_SCHEMA_NODES:
            raise SchemaError(f"the schema has more than {MAX_SCHEMA_NODES} parts; make it smaller")
        # Regular expressions without backtracking, so that no pattern takes long.
        return jsonschema_rs.validator_for(
            parsed, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (ValueError, RecursionError) as error:  # jsonschema_rs.ValidationError is a ValueError
        message = str(error)[:_MAX_QUOTED]
        raise SchemaError(f"the schema of a tool's parameters is unusable: {message}") from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name[:_MAX_QUOTED]} is not allowed here")


def _count_nodes(root: Any, value: Any, parents: tuple[str, ...], sizes: dict[str, int]) -> int:
    """Values in ``value`` with its references resolved.

    Raises ``SchemaError`` for a recursive reference, whose cost would depend on the arguments, and for a
    reference that leaves the schema.
    """
    if isinstance(value, list):
        return 1 + sum(_count_nodes(root, item, parents, sizes) for item in value)
    if not isinstance(value, dict):
        return 1
    if value.keys() & {"$dynamicRef", "$recursiveRef"}:
        raise SchemaError("the schema has dynamic references; write them out")
    inner = (item for name, item in value.items() if name != "$defs")
    total = 1 + sum(_count_nodes(root, item, parents, sizes) for item in inner)
    target = value.get("$ref")
    if not isinstance(target, str):
        return total
    if target in parents:
        raise SchemaError(f"the schema refers to itself at {target[:_MAX_QUOTED]!r}; bound its depth")
    if target not in sizes:
        sizes[target] = _count_nodes(root, _resolve(root, target), (*parents, target), sizes)
    return total + sizes[target]


def _resolve(root: Any, pointer: str) -> Any:
    """The value at a JSON pointer such as ``#/$defs/Name``. Other references raise ``SchemaError``."""
    value = root
    head, *parts = pointer.split("/")
    if head != "#":
        raise SchemaError(f"the schema refers to {pointer[:_MAX_QUOTED]!r}; only '#/…' is followed")
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise SchemaError(f"the schema refers to {pointer[:_MAX_QUOTED]!r}, which it does not have")
    return value
