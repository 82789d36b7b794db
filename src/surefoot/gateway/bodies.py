"""Bounds on what is read of a body: its bytes, how deeply its JSON is nested, and its text."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.gateway.errors import ApiError, printable, response_of

_MAX_DRAINED = 16
"""A refused body is still read up to so many times the bound: a client that writes before it reads would
otherwise see a broken connection, not the answer."""


class BodyLimit:
    """ASGI middleware: a body of more than ``max_bytes`` is answered 413, before or while it is read."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _declared_length(scope) > self.max_bytes:
            await self._refuse(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.max_bytes:
                raise self._error()
            return message

        await self.app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        drained = 0
        while drained < _MAX_DRAINED * self.max_bytes:
            message = await receive()
            drained += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        await response_of(self._error())(scope, receive, send)

    def _error(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self.max_bytes} bytes", code="body_too_large")


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def require_shallow(request: Request, max_depth: int) -> None:
    """Read the body, which the request then keeps.

    Raises :class:`ApiError` 400 for one nested too deeply, and for text that UTF-8 cannot hold.
    """
    body = await request.body()
    if b"\0" in body or not _is_utf8(body):  # brackets of UTF-16 and UTF-32 cannot be counted so
        raise ApiError(400, "the body is not JSON in UTF-8", code="encoding")
    if json_depth(body, stop=max_depth) > max_depth:
        raise ApiError(400, f"the JSON is nested more than {max_depth} deep", code="nested_too_deeply")
    if has_half_surrogate(body):
        where = _field_with_surrogate(body)
        message = (
            f"{where or 'the body'}: half of a surrogate pair is not a character; send both halves or neither"
        )
        raise ApiError(400, message, param=where, code="encoding")


_QUOTE = ord('"')
_UNMARKED = bytes(set(range(256)) - set(b'"[]{}'))
_SIGNS = np.zeros(256, np.int8)
_SIGNS[list(b"[{")], _SIGNS[list(b"]}")] = 1, -1


def json_depth(body: bytes, *, stop: int) -> int:
    """How deeply arrays and objects are nested, counted up to ``stop`` + 1; for valid JSON in UTF-8.

    In a body that is not valid, everything before the first error is counted as a parser would, or higher.
    """
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")  # the quotes that are left begin and end strings
    marks = np.frombuffer(plain.translate(None, _UNMARKED), np.uint8)
    quotes = np.cumsum(marks == _QUOTE, dtype=np.uint8)  # may wrap round: odd stays odd
    steps = _SIGNS[marks] * (quotes % 2 == 0)
    deepest = int(np.cumsum(steps, dtype=np.int32).max(initial=0))
    return min(deepest, stop + 1)


# a first half without the second, or a second half without the first
_HALF = re.compile(
    rb"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|[c-fC-F](?<!\\u[dD][89abAB]..\\u[dD].))", re.DOTALL
)


def has_half_surrogate(body: bytes) -> bool:
    """Whether an escape in ``body``, which is valid JSON, is half of a surrogate pair without the other."""
    return _HALF.search(body.replace(rb"\\", b"  ")) is not None


def _field_with_surrogate(body: bytes) -> str | None:
    """Path of the first such text, as ``messages.0.content``; ``None`` = the JSON is none."""
    try:
        value = json.loads(body)
    except ValueError:
        return None
    path = _path_to_surrogate(value)
    return ".".join(path) if path else None


def _path_to_surrogate(value: Any) -> tuple[str, ...] | None:
    """Path of the first text in ``value`` that UTF-8 cannot hold."""
    if isinstance(value, str):
        return None if printable(value) == value else ()
    if isinstance(value, dict):
        for name, inner in value.items():
            if printable(name) != name:
                return (printable(name)[:100],)
            if (path := _path_to_surrogate(inner)) is not None:
                return (name[:100], *path)
    if isinstance(value, list):
        for number, inner in enumerate(value):
            if (path := _path_to_surrogate(inner)) is not None:
                return (str(number), *path)
    return None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
