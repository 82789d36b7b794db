"""A scripted OpenAI-compatible server on a real socket, for tests of clients.

The test gives a function from the parsed request to a :class:`Reply`; the server records what it saw.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from typing import Any

from counting_server import CountingServer, is_probe
from openai_replies import Body, Reply


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


def pieces(answer: Body, cut: Callable[[str], list[str]], *, usage: bool = True) -> Iterator[Body]:
    """An answer of either endpoint as the events of a stream: texts, arguments and tokens ``cut`` in pieces.

    Choices come in turns; each ends with an event that has its reason, and all with one that has the usage.
    """
    choices = [_choice_pieces(choice, cut) for choice in answer["choices"]]
    for turn in zip_longest(*choices):
        yield from ({"choices": [choice]} for choice in turn if choice is not None)
    if usage:
        yield {"choices": [], "usage": answer["usage"]}


def _choice_pieces(choice: Body, cut: Callable[[str], list[str]]) -> Iterator[Body]:
    rest = dict(choice)
    index, tokens = rest.pop("index"), rest.pop("token_ids", None)
    if "text" in rest:
        made = [{"text": text} for text in cut(rest.pop("text"))]
        last: Body = {"text": ""}
    else:
        message = rest.pop("message")
        made = [{"delta": {"role": "assistant", "content": message["content"] and ""}}]
        for name in ("reasoning_content", "reasoning"):
            made += [{"delta": {name: text}} for text in cut(message.get(name) or "") if text]
        made += [{"delta": {"reasoning_details": [one]}} for one in message.get("reasoning_details", [])]
        made += [{"delta": {"content": text}} for text in cut(message["content"] or "")]
        made += [{"delta": {"tool_calls": [call]}} for call in _call_pieces(message.get("tool_calls"), cut)]
        last = {"delta": {}}
    for number, piece in enumerate(made):
        drawn = {} if tokens is None else {"token_ids": tokens[number : number + 1]}
        yield {"index": index, "finish_reason": None, **piece, **drawn}
    drawn = {} if tokens is None else {"token_ids": tokens[len(made) :]}
    yield {"index": index, **last, **rest, **drawn}


def _call_pieces(calls: list[Body] | None, cut: Callable[[str], list[str]]) -> Iterator[Body]:
    for number, call in enumerate(calls or []):
        function = call["function"]
        yield {**call, "index": number, "function": {"name": function["name"], "arguments": ""}}
        for text in cut(function["arguments"]):
            yield {"index": number, "function": {"arguments": text}}


class OpenAIServer(ThreadingHTTPServer):
    """Answers every POST with ``answer(body)``; ``seen`` holds ``(path, body)`` in order of arrival.

    ``GET /v1/models`` is answered with the list of ``models``; other paths there are none. With a ``key``, a
    request without it is refused.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Callable[[Body], Reply], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer
        self.lock = threading.Lock()
        self.seen: list[tuple[str, Body]] = []
        self.keys: set[str | None] = set()
        self.models: list[Body] = []
        self.key: str | None = None
        self.probe: Callable[[Body], Reply] | None = CountingServer()
        """Answers the probe of capabilities, which ``seen`` leaves out; ``None``: ``answer`` does."""
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


def event_bytes(body: Body) -> bytes:
    """An event as it is sent."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OpenAIServer

    def do_GET(self) -> None:
        """The list of models; the only path that clients get."""
        if self._refused():
            return
        if self.path == "/v1/models":
            self._send(Reply(payload={"object": "list", "data": self.server.models}))
        else:
            self._send(Reply(status=404, payload={"detail": "Not Found"}))

    def _refused(self) -> bool:
        key = self.server.key
        refused = key is not None and self.headers["Authorization"] != f"Bearer {key}"
        if refused:
            self._send(Reply(status=401, payload={"error": "Unauthorized"}))
        return refused

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        server = self.server
        if server.probe is not None and is_probe(body):
            self._send(server.probe(body))
            return
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
        if reply.events is None:
            self._send(reply)
        else:
            self._stream(reply, reply.events)

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

    def _stream(self, reply: Reply, events: Iterable[Body | bytes]) -> None:
        self.send_response(reply.status)
        for name, value in {"Content-Type": "text/event-stream", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in events:
                self._chunk(event if isinstance(event, bytes) else event_bytes(event))
        except ConnectionError:
            self.close_connection = True
            if isinstance(events, Generator):
                events.close()
            return
        if reply.drop:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def serve(answer: Callable[[Body], Reply], port: int = 0) -> Iterator[OpenAIServer]:
    """Run the server in a thread for the time of the block, on a free port unless one is given."""
    with OpenAIServer(answer, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
