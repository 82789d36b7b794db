"""The HTTP client of the package: JSON requests, JSON or event-stream responses, deadlines and size limits.

Sampling makes thousands of small calls, so the client's own cost per call matters: aiohttp takes a tenth of a
millisecond, the official OpenAI client more than one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from surefoot.concurrency import run_sync
from surefoot.printable import quoted

API_KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the key of every server."""
MAX_RESPONSE_BYTES = 64_000_000
"""Largest body, or all events of a stream together, if the caller sets no lower bound."""
_ERROR_BYTES = 64_000
"""Bytes of an error's body that are read."""
_KEEP_ALIVE_S = 4.0
"""Idle connections are closed earlier than by uvicorn (5 s), so that no request is sent on a closing one."""
_SLICE_S = 0.002
"""Seconds of work on a stream after which it pauses."""
_LARGE_BYTES, _BYTE_S = 65_536, 1e-7
"""An event of more bytes pauses for the work that is to come, at so many seconds a byte."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
_LONGEST_RETRY_AFTER_S = 60.0
"""A larger ``Retry-After`` is ignored."""
_JITTER = random.Random()
"""Spreads the retries of clients that were refused at the same time."""
_RETRYABLE = frozenset({408, 409, 429})
"""Statuses below 500 after which the same request may succeed."""


class CallError(Exception):
    """A call failed; the message says why.

    ``retryable``: the same request may succeed later. ``status`` and ``body`` belong to an HTTP error
    response; ``retry_after_s`` is the wait that the server asked for.
    """

    def __init__(
        self,
        reason: str,
        *,
        retryable: bool,
        retry_after_s: float | None = None,
        status: int | None = None,
        body: str = "",
    ) -> None:
        super().__init__(reason)
        self.retryable, self.retry_after_s = retryable, retry_after_s
        self.status, self.body = status, body

    def wait_s(self, attempt: int) -> float:
        """Seconds to wait after ``attempt`` failed attempts: ``Retry-After``, or exponential backoff."""
        requested = self.retry_after_s
        if requested is not None and 0 < requested <= _LONGEST_RETRY_AFTER_S:
            return requested
        longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (attempt - 1))
        return float(longest * (1 - _JITTER.random() / 4))


@dataclass(frozen=True, kw_only=True)
class NotStreamed:
    """The response of a server that does not stream."""

    body: bytes


class HttpClient:
    """Client for one server.

    ``timeout_s`` bounds a whole call, from the connection to the last byte. For a stream it bounds the wait
    for the headers and for each event. ``max_bytes`` bounds a response; compressed ones are refused, as their
    size is known too late. Redirects are not followed: they would pass the key and the request's texts to
    another address.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float,
        max_retries: int = 0,
    ) -> None:
        """``api_key`` defaults to ``OPENAI_API_KEY``; ``max_retries`` is for :meth:`request`."""
        self._session, self._url = session, base_url.rstrip("/")
        self._timeout_s, self._max_retries = timeout_s, max_retries
        self._proxy = _proxy(base_url)
        self._streams = 0
        self._headers = {
            "Authorization": f"Bearer {api_key or os.environ.get(API_KEY_VARIABLE) or 'none'}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # the size of a compressed body is known only after decompression
        }

    async def request(
        self, path: str, body: Mapping[str, Any] | None, *, params: Mapping[str, str] | None = None
    ) -> bytes:
        """:meth:`request_once` with retries. Raises :class:`CallError` after the last one."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self.request_once(path, body, params=params)
            except CallError as error:
                if not error.retryable or attempt > self._max_retries:
                    raise
                await asyncio.sleep(error.wait_s(attempt))

    async def request_once(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        params: Mapping[str, str] | None = None,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> bytes:
        """POST ``body``, or GET if it is ``None``, and return the response's body.

        Raises :class:`CallError`, and ``UnicodeEncodeError`` before anything is sent.
        """
        data = None if body is None else _to_json(body)
        try:
            async with asyncio.timeout(self._timeout_s), self._request(path, data, params) as response:
                await _check(response)
                return await _read(response, max_bytes)
        except _FAILURES as error:
            raise _call_error(error) from error

    async def events(
        self, path: str, body: Mapping[str, Any], *, max_bytes: int = MAX_RESPONSE_BYTES
    ) -> AsyncGenerator[bytes | NotStreamed]:
        """Yield the data of each event of a stream, up to ``[DONE]``.

        Wrap it in :func:`contextlib.aclosing`. Raises as :meth:`request_once` does.
        """
        data = _to_json(body)
        loop = asyncio.get_running_loop()
        self._streams += 1
        try:
            async with asyncio.timeout(self._timeout_s) as deadline, self._request(path, data) as response:
                await _check(response)
                if response.content_type == "application/json":
                    yield NotStreamed(body=await _read(response, max_bytes))
                    return
                async for event in _events(_bounded(response, max_bytes), self._pause):
                    if event.startswith(b"[DONE]"):
                        return
                    deadline.reschedule(None)  # time that the consumer takes is not the server's
                    if len(event) > _LARGE_BYTES:
                        await self._pause(len(event) * _BYTE_S)
                    yield event
                    deadline.reschedule(loop.time() + self._timeout_s)
        except _FAILURES as error:
            raise _call_error(error) from error
        finally:
            self._streams -= 1

    async def _pause(self, worked_s: float) -> None:
        """Wait so long that all streams together take half of the time, however much they have to read."""
        await asyncio.sleep(worked_s * self._streams)

    def _request(
        self, path: str, data: bytes | None, params: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.request(
            "GET" if data is None else "POST",
            self._url + path,
            data=data,
            params=params,
            headers=self._headers,
            proxy=self._proxy,
            allow_redirects=False,
        )


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raise :class:`CallError` unless the response is a success of the form that was requested."""
    status = response.status
    if status >= 300:
        read: list[bytes] = []
        if status < 400:
            body = f"redirected to {response.headers.get('Location')}; use the final address"
        else:
            async for chunk in response.content.iter_chunked(_ERROR_BYTES):
                read.append(chunk)
                if sum(map(len, read)) >= _ERROR_BYTES:  # the rest is left unread
                    break
            body = b"".join(read).decode(errors="replace")
        raise CallError(
            f"status {status}: {quoted(body)}",
            retryable=status in _RETRYABLE or status >= 500,
            retry_after_s=_retry_after(response.headers.get("Retry-After")),
            status=status,
            body=body,
        )
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise CallError(
            "connection failed: the response is compressed, which was not requested", retryable=True
        )


def open_session() -> aiohttp.ClientSession:
    """Open a connection pool without a limit on connections; the caller closes it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),  # no session is needed
    )


@dataclass(frozen=True, kw_only=True)
class RemoteServer:
    """How to reach a server; a blocking :meth:`request` opens and closes its own connection."""

    base_url: str
    api_key: str | None = None
    timeout_s: float
    max_retries: int = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[HttpClient]:
        """A client whose connections are closed at the end of the block."""
        async with open_session() as session:
            yield HttpClient(
                session,
                self.base_url,
                api_key=self.api_key,
                timeout_s=self.timeout_s,
                max_retries=self.max_retries,
            )

    def request(
        self, path: str, body: Mapping[str, Any] | None = None, *, params: Mapping[str, str] | None = None
    ) -> bytes:
        """:meth:`HttpClient.request` from synchronous code, in any thread."""

        async def ask() -> bytes:
            async with self.open() as client:
                return await client.request(path, body, params=params)

        return run_sync(ask())


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    return b"".join([chunk async for chunk in _bounded(response, max_bytes)])


async def _bounded(response: aiohttp.ClientResponse, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the body in chunks, at most ``max_bytes`` in all."""
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > max_bytes:
            reason = f"connection failed: the response is longer than {max_bytes} bytes"
            raise CallError(reason, retryable=False)  # it would be again
        yield chunk


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _to_json(body: Mapping[str, Any]) -> bytes:
    """Raises ``UnicodeEncodeError`` for text with an unpaired surrogate."""
    return _compact(body).encode()


_FAILURES = (aiohttp.ClientError, OSError)


def _call_error(error: Exception) -> CallError:
    if isinstance(error, TimeoutError):
        return CallError("no answer in time; raise timeout_s or lower concurrency", retryable=True)
    return CallError(f"connection failed: {str(error) or type(error).__name__}", retryable=True)


async def _events(
    chunks: AsyncIterator[bytes], pause: Callable[[float], Awaitable[None]]
) -> AsyncGenerator[bytes]:
    """Yield the data of server-sent events (WHATWG HTML, section 9.2); other fields are ignored. ``pause`` is
    awaited with the seconds of work after each slice of it."""
    pending, data = list[bytes](), list[bytes]()
    async for chunk in chunks:
        first, *lines = chunk.split(b"\n")
        pending.append(first)
        if not lines:
            continue
        lines, pending = [b"".join(pending), *lines[:-1]], lines[-1:]
        begin = time.perf_counter()
        for line in lines:
            if (worked_s := time.perf_counter() - begin) > _SLICE_S:
                await pause(worked_s)
                begin = time.perf_counter()
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif not field and not value and data:
                yield b"\n".join(data)
                data = []
    if data:
        yield b"\n".join(data)


def _proxy(url: str) -> str | None:
    """The environment's proxy for this address; aiohttp itself would look it up at every call."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _retry_after(value: str | None) -> float | None:
    """Seconds from a ``Retry-After`` header, which holds seconds or a date."""
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except ValueError:
        return None
