"""Requests to one server by HTTP: JSON in, JSON or a stream of events out, and what goes wrong in words.

Sampling makes thousands of small calls, so what one of them costs this process counts. aiohttp needs a tenth
of a millisecond for each, where the official OpenAI client needs more than one.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from surefoot.policies.deadlines import MAX_ANSWER_BYTES

ERROR_CHARACTERS = 500
"""How much of a server's own words goes into an error."""
_KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept: less than uvicorn's 5 s, so that no request meets one being closed."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
_LONGEST_ASKED_WAIT_S = 60.0
"""``Retry-After`` above this is not waited for."""
_JITTER = random.Random()
"""So that clients that were refused at the same time do not come again at the same time."""
_BUSY = frozenset({408, 409, 429})
"""Statuses below 500 after which the same request may succeed."""
_ELSEWHERE = _BUSY | {401, 403, 404}
"""Statuses below 500 that another server may not answer with."""


class CallError(Exception):
    """There is no answer; the text says why.

    ``passes``: the same request may succeed when it is made again; ``elsewhere``: another server may answer
    it. ``retry_after_s`` is how long the server asks to wait.
    """

    def __init__(
        self, reason: str, *, passes: bool, elsewhere: bool = True, retry_after_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.passes, self.elsewhere, self.retry_after_s = passes, elsewhere, retry_after_s

    def wait_s(self, tried: int) -> float:
        """Seconds before the next try, after ``tried`` of them: as the server asks, else growing ones."""
        asked = self.retry_after_s
        if asked is not None and 0 < asked <= _LONGEST_ASKED_WAIT_S:
            return asked
        longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (tried - 1))
        return float(longest * (1 - _JITTER.random() / 4))


@dataclass(frozen=True, kw_only=True)
class NotStreamed:
    """The answer of a server that does not stream."""

    body: bytes


class Server:
    """One server. Each call is one request; trying again is the caller's.

    ``timeout_s`` bounds a whole call, from the connection to the last byte; of a stream, the time to its head
    and the wait for each event.
    """

    def __init__(
        self, session: aiohttp.ClientSession, base_url: str, *, api_key: str, timeout_s: float
    ) -> None:
        self._session, self._url, self._timeout_s = session, base_url.rstrip("/"), timeout_s
        self._proxy = _proxy(base_url)
        self._headers = {
            "Authorization": f"Bearer {api_key}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # the size of another is known only afterwards
        }

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The body of the answer. Raises :class:`CallError`, and ``UnicodeEncodeError`` before it sends."""
        data = to_json(body)
        with _explained():
            async with asyncio.timeout(self._timeout_s), self._request(path, data) as response:
                return b"".join([chunk async for chunk in _bounded(response)])

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes | NotStreamed]:
        """Data of each event of a stream, up to ``[DONE]``.

        Wrap it in :func:`contextlib.aclosing`. Raises as :meth:`post` does.
        """
        data = to_json(body)
        loop = asyncio.get_running_loop()
        with _explained():
            async with asyncio.timeout(self._timeout_s) as limit, self._request(path, data) as response:
                if response.content_type == "application/json":
                    yield NotStreamed(body=b"".join([chunk async for chunk in _bounded(response)]))
                    return
                async for event in _events(_bounded(response)):
                    if event.startswith(b"[DONE]"):
                        return
                    limit.reschedule(None)  # what is done with an event is no wait for the server
                    yield event
                    limit.reschedule(loop.time() + self._timeout_s)

    @asynccontextmanager
    async def _request(self, path: str, data: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._session.post(
            self._url + path, data=data, headers=self._headers, proxy=self._proxy
        ) as response:
            if response.status >= 400:
                said = b"".join([chunk async for chunk in _bounded(response)]).decode(errors="replace")
                status = response.status
                raise CallError(
                    f"status {status}: {said[:ERROR_CHARACTERS]}",
                    passes=status in _BUSY or status >= 500,
                    elsewhere=status in _ELSEWHERE or status >= 500,
                    retry_after_s=_retry_after(response.headers.get("Retry-After")),
                )
            if response.headers.get("Content-Encoding", "identity") != "identity":
                reason = "connection failed: the answer is compressed, which was not asked for"
                raise CallError(reason, passes=True)
            yield response


async def _bounded(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes, at most ``MAX_ANSWER_BYTES`` of it."""
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            reason = f"connection failed: the answer is longer than {MAX_ANSWER_BYTES} bytes"
            raise CallError(reason, passes=True)
        yield chunk


def open_session() -> aiohttp.ClientSession:
    """Connections for all servers, as many as there are calls; to be closed by the caller."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )


def to_json(body: Mapping[str, Any]) -> bytes:
    """``body`` in JSON. Raises ``UnicodeEncodeError`` for text that holds half a character."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


@contextmanager
def _explained() -> Iterator[None]:
    """Turns what aiohttp raises into :class:`CallError`."""
    try:
        yield
    except TimeoutError as error:
        raise CallError("no answer in time; raise timeout_s or lower concurrency", passes=True) from error
    except (aiohttp.ClientError, OSError) as error:
        reason = f"connection failed: {str(error) or type(error).__name__}"
        raise CallError(reason, passes=True) from error


async def _events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Data of server-sent events (WHATWG HTML, section 9.2); their other fields say nothing here."""
    rest, data = list[bytes](), list[bytes]()
    async for chunk in chunks:
        first, *lines = chunk.split(b"\n")
        rest.append(first)
        if not lines:
            continue
        lines, rest = [b"".join(rest), *lines[:-1]], lines[-1:]
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif not field and not value and data:
                yield b"\n".join(data)
                data = []
    if data:
        yield b"\n".join(data)


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for this address; aiohttp itself would look at every call."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _retry_after(value: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header, which gives them or a date."""
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
