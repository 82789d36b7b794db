"""Slow clients and many connections: what they hold, and for how long."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest
from gateway_server import ask, served, wait_until
from pydantic import ValidationError

from surefoot.policies.scripted import ScriptedPolicy
from surefoot.server.gateway.connections import client_address
from surefoot.server.gateway.settings import ServerLimits, ServerSettings

LIMITS = ServerLimits(header_s=0.5, body_s=0.5, body_bytes_per_s=1000, read_s=0.5, connections_per_address=20)


def connect(found):
    parts = urlsplit(found.root)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def rest(link):
    """What comes until the server closes; a reset ends it too."""
    text = b""
    try:
        while more := link.recv(4096):
            text += more
    except ConnectionResetError:
        pass
    return text.decode()


def body_head(found, length):
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(found.root).netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def test_half_sent_requests_are_closed_and_counted():
    with served(limits=LIMITS) as found, ExitStack() as links:
        closed = found.gateway.metrics.connections.closed
        silent, half, trickle, after = (links.enter_context(connect(found)) for _ in range(4))
        half.sendall(b"GET /health HTTP/1.1\r\nHost:")
        trickle.sendall(b"GET /health HTTP/1.1\r\nHost:")
        after.sendall(f"GET /health HTTP/1.1\r\nHost: {urlsplit(found.root).netloc}\r\n\r\n".encode())
        answer = b""
        while b'{"status":"ok"}' not in answer:
            answer += after.recv(4096)
        after.sendall(b"GET")
        begin = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - begin < 10:  # a byte now and then resets no clock
                trickle.sendall(b"G")
                time.sleep(0.05)
        assert "408" in rest(half)
        assert "408" in rest(silent)
        assert "408" in rest(after)
        wait_until(lambda: closed["slow_headers"] == 4)
        assert time.monotonic() - begin < 8
        assert found.gateway.metrics.connections.total == 0
        metrics = ask(f"{found.root}/metrics")[1]
        assert 'surefoot_connections_closed_total{reason="slow_headers"} 4.0' in metrics


def test_a_body_has_a_deadline_that_its_bytes_extend():
    with served(limits=LIMITS) as found, connect(found) as slow, connect(found) as steady:
        slow.sendall(body_head(found, 4000) + b"{")
        steady.sendall(body_head(found, 3000))
        for _ in range(15):  # 1.5 s at twice the slowest rate
            steady.sendall(b" " * 200)
            time.sleep(0.1)
        assert "400" in steady.recv(4096).decode()
        assert "408" in rest(slow)
        assert found.gateway.metrics.connections.closed["slow_body"] == 1


def test_a_client_that_does_not_read_is_let_go():
    long = ScriptedPolicy(lambda request, sample: "x" * 16_000_000)
    with served(long, limits=LIMITS) as found, connect(found) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = b'{"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}'
        link.sendall(body_head(found, len(body)) + body)
        wait_until(lambda: found.gateway.metrics.connections.closed["slow_reader"] == 1)
        wait_until(lambda: found.gateway.metrics.connections.total == 0)


def test_one_address_has_a_bounded_number_of_connections():
    with served(limits=LIMITS.model_copy(update={"header_s": 20.0})) as found, ExitStack() as links:
        held = [links.enter_context(connect(found)) for _ in range(20)]
        wait_until(lambda: found.gateway.metrics.connections.total == 20)
        with connect(found) as one_more:
            assert "429" in rest(one_more)
        held[0].close()
        wait_until(lambda: found.gateway.metrics.connections.total == 19)
        assert ask(f"{found.root}/health")[0] == 200


def test_all_connections_are_bounded():
    limits = LIMITS.model_copy(update={"header_s": 20.0, "connections": 3})
    with served(limits=limits) as found, ExitStack() as links:
        for _ in range(3):
            links.enter_context(connect(found))
        wait_until(lambda: found.gateway.metrics.connections.total == 3)
        with connect(found) as one_more:
            assert "503" in rest(one_more)


def test_a_request_of_two_lengths_is_the_last_of_its_connection():
    with served() as found, connect(found) as link:
        text = body_head(found, 2).replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        smuggled = f"GET /health HTTP/1.1\r\nHost: {urlsplit(found.root).netloc}\r\n\r\n".encode()
        link.sendall(text + b"2\r\n{}\r\n0\r\n\r\n" + smuggled)
        begin = time.monotonic()
        answer = rest(link)
        assert time.monotonic() - begin < 4  # not after the time of a connection that is kept
    assert answer.count("HTTP/1.1") == 1
    assert "400" in answer


def test_what_counts_as_one_address():
    assert client_address("10.0.0.1") == client_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert client_address("2001:db8::1") == client_address("2001:db8::ffff:2")
    assert client_address("2001:db8::1") != client_address("2001:db8:0:1::1")
    with pytest.raises(ValidationError, match="not an address or network"):
        ServerSettings(proxies=("everywhere",))


def test_head_and_body_of_an_answer_come_together():
    with served() as found, connect(found) as link:
        for _ in range(2):
            link.sendall(f"GET /health HTTP/1.1\r\nHost: {urlsplit(found.root).netloc}\r\n\r\n".encode())
            answer = link.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b'{"status":"ok"}')
        link.sendall(
            f"HEAD /v1/models HTTP/1.1\r\nHost: {urlsplit(found.root).netloc}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        assert rest(link).startswith("HTTP/1.1 405")


def test_malformed_requests_are_refused():
    with served(limits=LIMITS) as found:
        host = f"Host: {urlsplit(found.root).netloc}\r\n"
        heads = {
            "no host": "GET /health HTTP/1.1\r\n\r\n",
            "two hosts": f"GET /health HTTP/1.1\r\n{host}{host}\r\n",
            "long head": f"GET /health HTTP/1.1\r\n{host}X: " + "x" * 100_000,
            "many at once": f"GET /v1/models HTTP/1.1\r\n{host}\r\n" * 200,
        }
        for name, head in heads.items():
            with connect(found) as link:
                link.sendall(head.encode())
                assert "Invalid HTTP request received." in rest(link), name


def test_requests_of_one_connection_may_be_sent_at_once():
    with served() as found, connect(found) as link:
        head = f"GET /health HTTP/1.1\r\nHost: {urlsplit(found.root).netloc}\r\n"
        link.sendall((3 * f"{head}\r\n" + f"{head}Connection: close\r\n\r\n").encode())
        assert rest(link).count('{"status":"ok"}') == 4
