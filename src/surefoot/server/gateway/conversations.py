"""Conversations of other interfaces as requests for a chat, so that there is one way through the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from surefoot.messages import message_fields
from surefoot.server.gateway.errors import ApiError, invalid
from surefoot.server.gateway.schemas import ChatRequest


def refuse(field: str, given: bool, what: str = "it") -> None:
    """Raise :class:`ApiError` for a field that would change the answer, and is not supported, if it is
    ``given``."""
    if given:
        raise ApiError(
            400, f"{field}: {what} cannot be had here; leave it out", param=field, code="unsupported"
        )


def chat_messages(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages of any shape that :mod:`surefoot.messages` reads, as OpenAI's. Raises :class:`ApiError`."""
    messages = []
    for number, row in enumerate(rows):
        where = f"messages.{number}"
        try:
            fields = message_fields(row)
            refuse(where, bool(fields.get("attachments")), "what is not text")
            messages.append(_chat_message(fields))
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise ApiError(400, f"{where}: {error}", param=where) from error
    return messages


def _chat_message(fields: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = fields.get("reasoning") or {}
    shown = reasoning.get("text") if reasoning.get("visibility") != "encrypted" else None
    calls = [
        {
            "id": call.get("id"),
            "type": "function",
            "function": {"name": call.get("name"), "arguments": call.get("arguments", "{}")},
        }
        for call in fields.get("tool_calls", ())
    ]
    message = {
        "role": fields["role"],
        "content": fields.get("content"),
        "tool_calls": calls or None,
        "tool_call_id": fields.get("tool_call_id"),
        "reasoning_content": shown,
    }
    return {name: value for name, value in message.items() if value is not None}


def chat_request(**fields: Any) -> ChatRequest:
    """The request with these fields, without those that are ``None``. Raises :class:`ApiError`."""
    try:
        return ChatRequest.model_validate(
            {name: value for name, value in fields.items() if value is not None}
        )
    except ValidationError as error:
        raise invalid(error.errors()) from error
