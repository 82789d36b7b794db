"""Chat messages, calls and tools in the shapes that servers and agents write, as fields of the records.

Understood are OpenAI's chat completions (nested ``function``, content as a list of parts), the
``reasoning_content`` and ``reasoning`` of vLLM, SGLang and OpenRouter, Anthropic's blocks (``thinking``,
``tool_use``) and Inspect's content. A message that is in the record's own shape stays as it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Keep = Callable[[bytes, str], str]
"""Stores the bytes of an attachment, whose media type is the second argument, and returns its URI."""

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
"""Fields of a message that say nothing of the process, or are read into others."""


def message_fields(row: Mapping[str, Any], keep: Keep | None = None) -> dict[str, Any]:
    """The fields of a ``Message`` for a message of any shape named above.

    ``keep`` is called with the bytes of each attachment that is part of the message (a ``data:`` URL);
    without it their hash stays, not they. Fields that no shape has are left in, for the record to refuse by
    name. Raises ``ValueError`` for a part that is of no shape.
    """
    try:
        return _fields(row, keep)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a part of the message has no known shape ({error})") from error


def _fields(row: Mapping[str, Any], keep: Keep | None) -> dict[str, Any]:
    fields = {name: value for name, value in row.items() if name not in _IGNORED and value is not None}
    fields["role"] = _ROLES.get(row.get("role", ""), row.get("role"))
    reader = _Parts(keep)
    if isinstance(row.get("content"), list):
        fields["content"] = reader.text(row["content"])
    elif isinstance(row.get("content"), dict):
        fields["content"] = reader.text([row["content"]])
    elif row.get("content") is None and isinstance(row.get("refusal"), str):
        fields["content"] = row["refusal"]
    calls = [*(row.get("tool_calls") or ()), *reader.calls]
    if not calls and isinstance(row.get("function_call"), Mapping):
        calls = [row["function_call"]]
    if calls:
        fields["tool_calls"] = [call_fields(call) for call in calls]
    else:
        fields.pop("tool_calls", None)
    if attachments := [*(row.get("attachments") or ()), *reader.attachments]:
        fields["attachments"] = attachments
    fields.pop("reasoning", None)
    if (reasoning := _reasoning(row, reader)) is not None:
        fields["reasoning"] = reasoning
    return _with_failure(row, fields)


def _with_failure(row: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Whether a tool failed: a flag, or what went wrong in words, which are the content if there is none."""
    if fields["role"] != "tool":
        return fields
    flags = (fields.pop(name, None) for name in ("error", "is_error", "isError"))
    failure: Any = next((flag for flag in flags if flag not in (None, "")), None)
    if failure is None and row.get("status") in ("error", "success"):  # LangChain
        failure = row["status"] == "error"
    if isinstance(failure, str | Mapping):
        words = failure if isinstance(failure, str) else failure.get("message") or _json(failure)
        fields["content"] = fields.get("content") or words
        failure = True
    return fields if failure is None else {**fields, "error": failure}


def messages_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """``row``, or a message for each result in it: Anthropic's users answer all calls in one message."""
    content = row.get("content")
    blocks = content if isinstance(content, list) else []
    results = [one for one in blocks if isinstance(one, Mapping) and one.get("type") == "tool_result"]
    if not results:
        return [row]
    rest = [one for one in blocks if not any(one is result for result in results)]
    told = [
        {
            "role": "tool",
            "tool_call_id": one.get("tool_use_id"),
            "content": one.get("content"),
            "is_error": one.get("is_error"),
        }
        for one in results
    ]
    return [*told, {**row, "content": rest}] if rest else [*told]


def messages_of_items(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Items of OpenAI's Responses API as chat messages.

    What the model said, thought and called between two answers of others is one message. Raises
    ``ValueError`` for an item that is no message, reasoning, call of a function or result of one.
    """
    rows: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "function_call_output":
            rows.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind == "message" and item.get("role") != "assistant":
            role = "system" if item.get("role") == "developer" else item.get("role")
            rows.append({"role": role, "content": item.get("content")})
        elif kind in ("message", "reasoning", "function_call"):
            if not rows or rows[-1]["role"] != "assistant":
                rows.append({"role": "assistant", "content": []})
            said = item.get("content") if kind == "message" else [item]
            if kind == "function_call":
                said = [{**item, "id": item.get("call_id") or item.get("id")}]
            rows[-1]["content"] += [said] if isinstance(said, str) else said or []
        else:
            raise ValueError(
                f"item {number} is of type {kind!r}; known are message, reasoning, function_call and "
                "function_call_output"
            )
    return rows


def call_fields(call: Any) -> Any:
    """The fields of a ``ToolCall``: of OpenAI's nested ``function`` or ``custom``, or a flat call."""
    if not isinstance(call, Mapping):
        return call
    inner: Any = call.get("function")
    if isinstance(inner, str):  # Inspect: the name alone
        inner = {"name": inner, "arguments": call.get("arguments")}
    inner = inner or call.get("custom") or call
    given = (inner[name] for name in ("arguments", "input", "args") if inner.get(name) is not None)
    arguments: Any = next(given, {})
    fields = {
        "id": call.get("id") or call.get("call_id"),
        "name": inner.get("name"),
        "arguments": arguments if isinstance(arguments, str) else _json(arguments),
    }
    return {name: value for name, value in fields.items() if value is not None}


def tool_fields(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``Tool``: of OpenAI's ``{"type": "function", "function": {…}}``, or a flat schema."""
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


class _Parts:
    """Reads content that is a list of parts."""

    def __init__(self, keep: Keep | None) -> None:
        self._keep = keep
        self.calls: list[Mapping[str, Any]] = []
        self.attachments: list[dict[str, Any]] = []
        self.reasoning: list[str] = []
        self.encrypted: list[str] = []
        self.summarised = False
        self._length = 0

    def text(self, parts: list[Any]) -> str | None:
        """The text of the parts together; ``None`` where no part is text."""
        texts = [text for text in map(self._part, parts) if text is not None]
        return "".join(texts) if texts else None

    def _part(self, part: Any) -> str | None:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        kind = part.get("type", "text")
        if kind in ("thinking", "reasoning", "reasoning.text", "reasoning.summary", "redacted_thinking",
                    "reasoning.encrypted"):  # fmt: skip
            self._thinking(part)
            return None
        if kind in ("tool_use", "tool_call", "function_call"):
            self.calls.append(part)
            return None
        own = next(
            (part[name] for name in ("text", "content", "refusal") if isinstance(part.get(name), str)), None
        )
        if own is None:
            self._attach(kind, part)
            return None
        self._length += len(own)
        return str(own)

    def _thinking(self, part: Mapping[str, Any]) -> None:
        texts = [part.get(name) for name in ("thinking", "reasoning", "text", "content")]
        shown = next((text for text in texts if isinstance(text, str) and text), None)
        if isinstance(part.get("content"), list):
            shown = "".join(str(one.get("text", "")) for one in part["content"] if isinstance(one, Mapping))
        summary = part.get("summary")
        if isinstance(summary, list):
            summary = "\n\n".join(str(one.get("text", "")) for one in summary if isinstance(one, Mapping))
        if shown and not part.get("redacted"):
            self.reasoning.append(shown)
        elif summary:
            self.reasoning.append(str(summary))
            self.summarised = True
        elif blob := part.get("data") or part.get("encrypted_content") or shown:
            self.encrypted.append(str(blob))

    def _attach(self, kind: str, part: Mapping[str, Any]) -> None:
        inner = next(
            (part[name] for name in (kind, "image_url", "source", "file", "input_audio") if name in part),
            part,
        )
        inner = {"url": inner} if isinstance(inner, str) else inner
        places = ("url", "uri", "path", "file_data", "file_id", "data", "content")
        address = next((inner[name] for name in places if isinstance(inner.get(name), str)), None)
        named = inner.get("media_type") or inner.get("mime_type") or inner.get("mimeType")
        what = f"{kind} {part.get('modality', '')} {named or ''}"
        fields = {
            "kind": "image" if "image" in what else "audio" if "audio" in what else "file",
            "at": self._length,
            "name": inner.get("filename") or inner.get("name"),
            **self._reference(
                address, named, raw=not any(name in inner for name in ("url", "uri", "path", "file_id"))
            ),
        }
        self.attachments.append({name: value for name, value in fields.items() if value is not None})

    def _reference(self, address: str | None, media_type: str | None, *, raw: bool) -> dict[str, Any]:
        """Where the bytes are: their address, or for bytes that are here their hash."""
        if address is None:
            return {"media_type": media_type}
        if address.startswith("data:"):
            head, _, body = address.partition(",")
            media_type, raw = head[len("data:") :].split(";")[0] or media_type, True
        elif raw:
            body = address
        if not raw:
            return {"uri": address, "media_type": media_type}
        try:
            content = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            content = body.encode()
        uri = self._keep(content, media_type or "application/octet-stream") if self._keep else None
        return {"sha256": hashlib.sha256(content).hexdigest(), "media_type": media_type, "uri": uri}


def _reasoning(row: Mapping[str, Any], parts: _Parts) -> Any:
    """The reasoning of a message, wherever it stands; ``None`` without any."""
    own = row.get("reasoning")
    if own is not None and not isinstance(own, str):
        return own
    details = _Parts(None)
    if isinstance(row.get("reasoning_details"), list):
        details.text(row["reasoning_details"])
    shown = next(
        (text for text in (row.get("reasoning_content"), own) if isinstance(text, str) and text), None
    )
    if shown is None:
        source = parts if parts.reasoning or parts.encrypted else details
        if source.reasoning:
            visibility = "summarised" if source.summarised else "visible"
            return {"text": "\n\n".join(source.reasoning), "visibility": visibility}
        return {"text": "\n".join(source.encrypted), "visibility": "encrypted"} if source.encrypted else None
    return {"text": shown, "visibility": "summarised" if details.summarised else "visible"}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
