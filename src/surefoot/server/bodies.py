"""Bounds on what is read of a body: its bytes, and how deeply its JSON is nested."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.server.errors import ApiError, response_of

_DRAINED = 16
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
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.max_bytes:
                raise self._error()
            return message

        await self.app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        drained = 0
        while drained < _DRAINED * self.max_bytes:
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
    """Read the body, which the request then keeps. Raises :class:`ApiError` for one nested too deeply."""
    body = await request.body()
    if b"\0" in body:  # UTF-16 or UTF-32, in which brackets cannot be counted so
        raise ApiError(400, "the body is no JSON in UTF-8", code="encoding")
    if json_depth(body, stop=max_depth) > max_depth:
        raise ApiError(400, f"the JSON is nested more than {max_depth} deep", code="nested_too_deeply")


def json_depth(body: bytes, *, stop: int) -> int:
    """How deeply arrays and objects are nested, counted up to ``stop`` + 1; for valid JSON in UTF-8."""
    depth = deepest = at = 0
    size = len(body)
    while at < size and deepest <= stop:
        byte = body[at]
        if byte == _QUOTE:
            at = _string_end(body, at)
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
        at += 1
    return deepest


_QUOTE, _BACKSLASH = ord('"'), ord("\\")


def _string_end(body: bytes, start: int) -> int:
    """Index of the quote that ends the string which begins at ``start``."""
    at = start
    while True:
        at = body.find(b'"', at + 1)
        if at < 0:
            return len(body)
        slashes = 0
        while body[at - 1 - slashes] == _BACKSLASH:
            slashes += 1
        if slashes % 2 == 0:
            return at
