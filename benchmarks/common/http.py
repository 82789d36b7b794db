"""The least of HTTP/1.1 that a load and its upstream need; a library would cost more than the server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any


async def post(
    link: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    body: bytes,
    *,
    path: str = "/v1/chat/completions",
    key: str = "",
) -> tuple[int, bytes]:
    """Status and body of the answer on an open connection."""
    reader, writer = link
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
    )
    head += f"Authorization: Bearer {key}\r\n\r\n" if key else "\r\n"
    writer.write(head.encode() + body)
    top = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(top.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" not in top:
        return status, await reader.readexactly(_length(top))
    pieces = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, b"".join(pieces)


class Http(asyncio.Protocol):
    """Requests with a content length on one connection, whose paths and bodies go to ``answer``."""

    def __init__(self) -> None:
        self.data = b""
        self.transport: Any = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def answer(self, path: str, body: bytes) -> bytes:
        """The body of the answer, which is JSON."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of ``asyncio.Protocol``."""
        self.transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        """Of ``asyncio.Protocol``: a client that has gone waits for nothing."""
        for task in self.tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        """Of ``asyncio.Protocol``."""
        self.data += data
        while b"\r\n\r\n" in self.data:
            head, _, rest = self.data.partition(b"\r\n\r\n")
            size = _length(head.lower())
            if len(rest) < size:
                return
            self.data = rest[size:]
            task = asyncio.ensure_future(self._respond(head.split(b" ", 2)[1].decode(), rest[:size]))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _respond(self, path: str, body: bytes) -> None:
        found = await self.answer(path, body)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(found)}\r\n\r\n"
        self.transport.write(head.encode() + found)


def _length(head: bytes) -> int:
    _, found, rest = head.partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


def run(protocol: Callable[[], Http]) -> None:
    """Serve on a free port, which is printed, until standard input ends."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)

    asyncio.run(main())
