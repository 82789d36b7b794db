"""Connections: malformed requests, several at once."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import pytest
from gateway_server import served


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


@pytest.mark.parametrize("path", ["/health", "/v1/chat/completions", "/projects"])
def test_a_request_names_one_host(path):
    with served() as found:
        host = f"Host: {urlsplit(found.root).netloc}\r\n"
        for hosts in ("", host + host, host + "Host: evil.example\r\n"):
            with connect(found) as link:
                link.sendall(f"GET {path} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
                answer = rest(link)
                assert answer.startswith("HTTP/1.1 400")
                assert "exactly one Host header" in answer
        with connect(found) as link:  # HTTP/1.0 has no such header, but without keys the server needs it
            link.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            assert rest(link).split()[1] == ("404" if path == "/projects" else "403")


def test_requests_of_one_connection_may_be_sent_at_once():
    with served() as found, connect(found) as link:
        head = f"GET /health HTTP/1.1\r\nHost: {urlsplit(found.root).netloc}\r\n"
        link.sendall((3 * f"{head}\r\n" + f"{head}Connection: close\r\n\r\n").encode())
        assert rest(link).count('{"status":"ok"}') == 4
