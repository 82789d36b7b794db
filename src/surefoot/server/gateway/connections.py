"""Connections of a server: how many there may be, and how long a client may take to send and to read.

A client that sends half a request, or reads an answer byte by byte, would otherwise hold a file descriptor
for ever. ``surefoot.server.gateway.admission`` limits requests; this module limits connections, which cost
something before they send any request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from surefoot.server.gateway.settings import ServerLimits

PEER: Final = "surefoot.peer"
"""Key of a request's scope: the address of the connection it came by."""
Reason = Literal["total", "address", "slow_headers", "slow_body", "slow_reader"]
"""Why a connection was refused or closed."""
_RESERVED = 200
"""File descriptors left for files, the database, policies and workers."""
_HEAD_BYTES = 65_536
"""Of a request line with its headers that do not come at once."""
_PIPELINED = 100
"""Requests of a connection that wait for the answer to an earlier one."""
_STATUS = {
    "total": b"503 Service Unavailable",
    "address": b"429 Too Many Requests",
    "slow_headers": b"408 Request Timeout",
    "slow_body": b"408 Request Timeout",
}


class ConnectionTable:
    """Open connections by address, and how many were ``closed`` by the server for what reason."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.closed: Counter[Reason] = Counter()

    @property
    def total(self) -> int:
        """Open connections."""
        return self.open.total()

    def enter(self, address: str, *, limits: ServerLimits, exempt: bool) -> Reason | None:
        """Count a connection of an address; the reason if it is refused instead."""
        reason: Reason | None = None
        if self.total >= min(limits.connections, _descriptors() - _RESERVED):
            reason = "total"
        elif not exempt and self.open[address] >= limits.connections_per_address:
            reason = "address"
        if reason is None:
            self.open[address] += 1
        else:
            self.closed[reason] += 1
        return reason

    def leave(self, address: str) -> None:
        """A counted connection has ended."""
        self.open[address] -= 1
        if self.open[address] <= 0:
            del self.open[address]


def client_address(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 network that one IPv6 client can use freely."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def address_in(host: str, networks: Sequence[str]) -> bool:
    """Whether the address ``host`` is, or lies in, one of ``networks``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in ipaddress.ip_network(network) for network in networks)


class DirectPeer:
    """ASGI middleware that keeps the connection's address; X-Forwarded-For may replace ``client``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        scope[PEER] = scope.get("client")
        await self.app(scope, receive, send)


class _JoinedHead:
    """Writes to ``transport``; the head of a response of stated length waits for the body, so that both go
    out together."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._held, self._begun = transport, b"", False
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._begun and data[9:12] != b"100":
            self._begun = True
            if b"\r\ncontent-length: " in data:
                self._held = data
                return
        self._transport.write(self._held + data)
        self._held = b""

    def close(self) -> None:
        self.write(b"")
        self._transport.close()


def bounded_protocol(
    table: ConnectionTable, limits: ServerLimits, proxies: Sequence[str] = ()
) -> type[HttpToolsProtocol]:
    """HTTP/1.1 as uvicorn speaks it, within ``limits``. The addresses of ``proxies`` may have any number of
    connections, as many clients share them."""

    class BoundedProtocol(HttpToolsProtocol):
        _counted: str | None = None
        _deadline: asyncio.TimerHandle | None = None
        _write_deadline: asyncio.TimerHandle | None = None
        _part: Literal["head", "body", "end"] = "head"
        """Of a request: the part that comes next."""
        _phase: tuple[object, object] | None = None
        _begun = 0.0
        _received = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            peer = transport.get_extra_info("peername")
            host = str(peer[0]) if isinstance(peer, tuple) else "local"
            address = client_address(host)
            reason = table.enter(address, limits=limits, exempt=address_in(host, proxies))
            if reason is not None:
                self.transport = transport
                _refuse(transport, reason)
                return
            self._counted = address
            super().connection_made(transport)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._deadline, self._write_deadline):
                if timer is not None:
                    timer.cancel()
            if self._counted is not None:
                table.leave(self._counted)
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._counted is None or self.transport.is_closing():
                return
            self._received += len(data)
            super().data_received(data)
            self._watch()
            too_long = self._part == "head" and self._received > _HEAD_BYTES
            if (too_long or len(self.pipeline) > _PIPELINED) and not self.transport.is_closing():
                self.send_400_response("Invalid HTTP request received.")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._part = "head"

        def on_headers_complete(self) -> None:
            hosts = sum(name == b"host" for name, _ in self.headers)
            if hosts > 1 or not (hosts or self.parser.get_http_version() == "1.0"):
                raise ValueError("not one Host")  # which the parser reports: the answer is 400
            cycle = self.cycle
            super().on_headers_complete()
            self._part = "body"
            if self.cycle is not cycle and self.scope["method"] != "HEAD":
                self.cycle.transport = _JoinedHead(self.transport)  # type: ignore[assignment]

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._part = "end"

        def pause_writing(self) -> None:
            if self._counted is None:
                return
            super().pause_writing()
            self._write_deadline = self.loop.call_later(limits.read_s, self._end, "slow_reader")

        def resume_writing(self) -> None:
            if self._counted is None:
                return
            super().resume_writing()
            if self._write_deadline is not None:
                self._write_deadline.cancel()

        def _watch(self) -> None:
            """Begin the deadline of what the client sends now, if it is new."""
            phase = (self._part, self.cycle)
            if phase == self._phase:
                return
            self._phase, self._begun, self._received = phase, time.monotonic(), 0
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            if self._part == "head":
                self._deadline = self.loop.call_later(limits.header_s, self._end, "slow_headers")
            elif self._part == "body":
                self._deadline = self.loop.call_later(limits.body_s, self._check_body)

        def _check_body(self) -> None:
            """End a body that comes more slowly than it must; while the server itself does not read, wait."""
            if self._part != "body":
                return
            remaining = (
                self._begun + limits.body_s + self._received / limits.body_bytes_per_s - time.monotonic()
            )
            if self.flow.read_paused:
                remaining = limits.body_s
            if remaining <= 0:
                self._end("slow_body")
            else:
                self._deadline = self.loop.call_later(remaining, self._check_body)

        def _end(self, reason: Reason) -> None:
            if self.transport.is_closing():
                return
            if reason == "slow_headers" and self._part != "head":
                return
            table.closed[reason] += 1
            answered = reason == "slow_body" and self.cycle.response_started
            if reason == "slow_reader" or answered:
                self.transport.abort()
            else:
                _refuse(self.transport, reason)

    return BoundedProtocol


def _refuse(transport: asyncio.Transport, reason: Reason) -> None:
    head = b"HTTP/1.1 " + _STATUS[reason] + b"\r\nConnection: close\r\nContent-Length: 0\r\n"
    transport.write(head + (b"Retry-After: 5\r\n" if reason in ("total", "address") else b"") + b"\r\n")
    transport.close()


def _descriptors() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 1 << 30
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else max(soft, 2 * _RESERVED)
