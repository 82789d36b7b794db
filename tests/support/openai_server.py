"""A scripted OpenAI-compatible server on a real socket, for tests of clients.

The test gives a function from the parsed request to a :class:`Reply`; the server records what it saw.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What to send. ``wait_s`` before the answer; ``drop`` cuts the connection half way through it."""

    payload: Body | str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    drop: bool = False


def completion(texts: list[str], *, prompt_tokens: int = 7, finish: str = "stop", **extra: Any) -> Body:
    """A ``/completions`` answer; a completion's tokens are its words; ``extra`` goes into each choice."""
    choices = [{"index": i, "text": text, "finish_reason": finish, **extra} for i, text in enumerate(texts)]
    return {"choices": choices, "usage": _usage(prompt_tokens, texts)}


def chat(texts: list[str | None], *, prompt_tokens: int = 7, finish: str = "stop", **extra: Any) -> Body:
    """A ``/chat/completions`` answer; ``extra`` goes into each message."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text, **extra}, "finish_reason": finish}
        for i, text in enumerate(texts)
    ]
    return {"choices": choices, "usage": _usage(prompt_tokens, [text or "" for text in texts])}


def _usage(prompt_tokens: int, texts: list[str]) -> Body:
    return {"prompt_tokens": prompt_tokens, "completion_tokens": sum(len(text.split()) for text in texts)}


class OpenAIServer(ThreadingHTTPServer):
    """Answers every POST with ``answer(body)``; ``seen`` holds ``(path, body)`` in order of arrival."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Callable[[Body], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.lock = threading.Lock()
        self.seen: list[tuple[str, Body]] = []
        self.keys: set[str | None] = set()
        self.in_flight = 0
        self.most_in_flight = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def bodies(self) -> list[Body]:
        return [body for _, body in self.seen]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left before its answer is part of the game; nothing is printed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OpenAIServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.seen.append((self.path, body))
            server.keys.add(self.headers["Authorization"])
            server.in_flight += 1
            server.most_in_flight = max(server.most_in_flight, server.in_flight)
        reply = server.answer(body)
        time.sleep(reply.wait_s)
        # Before the bytes go out: the client may send its next request as soon as it has them.
        with server.lock:
            server.in_flight -= 1
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        payload = reply.payload if isinstance(reply.payload, str) else json.dumps(reply.payload)
        data = payload.encode()
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if reply.drop else data)
        if reply.drop:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def serve(answer: Callable[[Body], Reply]) -> Iterator[OpenAIServer]:
    """Run the server in a thread for the time of the block."""
    with OpenAIServer(answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
