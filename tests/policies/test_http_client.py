"""Servers that send a byte now and then, or without end: no call outlasts its seconds or its bytes."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from openai_server import Reply, completion, serve

from surefoot.errors import ScoreError
from surefoot.models.remote.scorer import RemoteScorer
from surefoot.models.remote.wires import GatewayScore
from surefoot.policies.http_client import MAX_RESPONSE_BYTES
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import SampleRequest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TIMEOUT_S = 0.4
WAYS = {
    "head": (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"),
    "body": (HEAD + b'{"choices": "', b"a"),
    "events": (EVENTS, b"3\r\n: \n\r\n"),
}
"""What is sent at once, and what every 50 ms."""


@contextmanager
def trickling(way):
    """The address of a server that never ends an answer."""
    begin, piece = WAYS[way]
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)

    def answer(link):
        with link:
            try:
                link.recv(65536)
                link.sendall(begin)
                while not over.wait(0.05):
                    link.sendall(piece)
            except OSError:
                pass  # the client has gone

    def accept():
        while not over.is_set():
            try:
                link, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=answer, args=(link,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        over.set()
        thread.join()
        listener.close()


@pytest.fixture
def in_time():
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < 5  # for ever, if each byte begins another wait


@pytest.mark.parametrize("way", ["head", "body"])
def test_a_policy_ends_a_call_to_a_server_that_trickles(way, in_time):
    with trickling(way) as url:
        policy = OpenAIPolicy(model="m", base_url=url, max_retries=1, timeout_s=TIMEOUT_S)
        [result] = asyncio.run(policy.sample([SampleRequest(prompt="p")]))
    assert "no answer in time" in result.error
    assert result.usage.calls == 2


@pytest.mark.parametrize("way", ["head", "body", "events"])
def test_a_stream_ends_without_events(way, in_time):
    with trickling(way) as url:
        policy = OpenAIPolicy(model="m", base_url=url, max_retries=0, timeout_s=TIMEOUT_S)
        result = asyncio.run(policy.stream(SampleRequest(prompt="p"), lambda *_: None))
    assert "no answer in time" in result.error


@pytest.mark.parametrize("way", ["head", "body"])
def test_a_scoring_server_ends_in_time_too(way, in_time):
    with trickling(way) as url, pytest.raises(ScoreError, match="no answer in time"):
        RemoteScorer(GatewayScore(), base_url=url, name="s", max_retries=0, timeout_s=TIMEOUT_S)


class Endless:
    """Megabytes without end, counted."""

    def __init__(self, piece, **headers):
        self.sent, self.piece = 0, piece * (1_000_000 // len(piece))
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def __call__(self, body):
        return Reply(events=self.pieces(), headers=self.headers, drop=True)

    def pieces(self):
        while True:
            self.sent += len(self.piece)
            yield self.piece


@pytest.mark.parametrize("piece", [b" ", b": %s\n\n" % (b"a" * 100_000)], ids=["body", "events"])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_without_end_is_given_up(piece, streamed):
    endless = Endless(piece, Content_Type="application/json" if piece == b" " else "text/event-stream")
    with serve(endless) as server:
        policy = OpenAIPolicy(model="m", base_url=server.url, max_retries=0)
        request = SampleRequest(prompt="p")
        if streamed:
            result = asyncio.run(policy.stream(request, lambda *_: None))
        else:
            [result] = asyncio.run(policy.sample([request]))
    assert result.error.startswith("server: ")
    assert endless.sent < 2 * MAX_RESPONSE_BYTES


def test_a_scoring_server_without_end_is_given_up():
    endless = Endless(b" ", Content_Type="application/json")
    with serve(endless) as server, pytest.raises(ScoreError, match="longer than 64000000 bytes"):
        RemoteScorer(GatewayScore(), base_url=server.url, name="s", max_retries=0)
    assert endless.sent < 2 * MAX_RESPONSE_BYTES


def test_a_compressed_answer_is_not_read():
    bomb = gzip.compress(b" " * 100_000_000)
    reply = Reply(events=[bomb], headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
    with serve(lambda body: reply) as server:
        policy = OpenAIPolicy(model="m", base_url=server.url, max_retries=0)
        [result] = asyncio.run(policy.sample([SampleRequest(prompt="p")]))
    assert "compressed" in result.error


def test_redirects_are_not_followed():
    """A redirect would hand the key to another address."""
    with serve(lambda body: Reply(payload=completion(["x"]))) as other:
        reply = Reply(status=307, headers={"Location": f"{other.url}/completions"})
        with serve(lambda body: reply) as server:
            policy = OpenAIPolicy(model="m", base_url=server.url, max_retries=0, mode="completions")
            [result] = asyncio.run(policy.sample([SampleRequest(prompt="p")]))
            with pytest.raises(ScoreError, match=f"status 307: redirected to {other.url}"):
                RemoteScorer(GatewayScore(), base_url=server.url, name="s", max_retries=0)
        assert other.seen == []
    assert f"status 307: redirected to {other.url}" in result.error


def test_the_proxy_of_the_environment_is_used(monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serve(lambda body: Reply(payload=completion(["by the proxy"]))) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        policy = OpenAIPolicy(model="m", base_url="http://model.invalid/v1", mode="completions")
        [result] = asyncio.run(policy.sample([SampleRequest(prompt="1")]))
    assert result.completions[0].text == "by the proxy"
    assert proxy.seen[0][0] == "http://model.invalid/v1/completions"


def test_a_request_that_is_wrong_in_itself_is_sent_once():
    with serve(lambda body: Reply(status=400, payload="too long")) as server:
        policy = OpenAIPolicy(model="m", base_url=server.url, mode="completions")
        [result] = asyncio.run(policy.sample([SampleRequest(prompt="1")]))
        assert (result.error, result.usage.calls) == ("server: status 400: too long", 1)
        assert len(server.seen) == 1
