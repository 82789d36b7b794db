"""Clients of OpenAI-compatible servers whose calls end in time and within memory, whatever the server does.

The time-outs of an HTTP client are for each read, so a server that sends a byte now and then holds a call for
ever. Here the seconds are for a whole try: connection, head and body. Of a stream they are for its head; what
reads the events bounds the wait for each. An answer has at most ``MAX_ANSWER_BYTES``, and is not asked for,
or read, in a compressed form, whose size is known only afterwards.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any
from weakref import finalize

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

_LIBRARY = import_module(next(iter(DefaultHttpxClient.__bases__)).__module__.partition(".")[0])
"""What the official client sends with: httpx, or httpx2 in later versions."""
_READ_ERROR: type[Exception] = _LIBRARY.ReadError
_READ_TIMEOUT: type[Exception] = _LIBRARY.ReadTimeout
"""After these errors the official client tries again."""
MAX_ANSWER_BYTES = 64_000_000
"""Of a body, or of all events of a stream."""
_HEADERS = {"Accept-Encoding": "identity"}


def async_client(*, base_url: str, api_key: str, timeout_s: float, max_retries: int) -> AsyncOpenAI:
    """A client of which no try takes longer than ``timeout_s`` seconds."""
    return AsyncOpenAI(
        base_url=base_url,
        api_key=api_key,
        max_retries=max_retries,
        timeout=timeout_s,
        http_client=_AsyncClient(timeout_s),
    )


def client(*, base_url: str, api_key: str, timeout_s: float, max_retries: int) -> OpenAI:
    """The same for threads; it does not stream."""
    return OpenAI(
        base_url=base_url,
        api_key=api_key,
        max_retries=max_retries,
        timeout=timeout_s,
        http_client=_Client(timeout_s),
    )


class _AsyncClient(DefaultAsyncHttpxClient):
    def __init__(self, seconds: float) -> None:
        super().__init__(timeout=seconds, headers=_HEADERS)
        self._seconds = seconds

    async def send(self, request: Any, *, stream: bool = False, **more: Any) -> Any:
        try:
            async with asyncio.timeout(self._seconds):
                answer = await super().send(request, stream=True, **more)
                try:
                    if answer.headers.get("content-encoding", "identity") != "identity":
                        raise _READ_ERROR("the answer is compressed, which was not asked for")
                    answer.stream = _Bounded(answer.stream)
                    if not stream:
                        await answer.aread()
                except BaseException:
                    await answer.aclose()
                    raise
                return answer
        except TimeoutError as error:
            raise _READ_TIMEOUT(f"no answer within {self._seconds:g} s") from error


class _Bounded(_LIBRARY.AsyncByteStream):  # type: ignore[misc, name-defined]
    """A body of at most ``MAX_ANSWER_BYTES``."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def elapsed(self) -> Any:
        """Where later versions of the library look up how long an answer took."""
        return getattr(self._stream, "elapsed", None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                raise _READ_ERROR(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Client(DefaultHttpxClient):
    """Sends in an event loop of another thread: only there can a read be ended from outside."""

    def __init__(self, seconds: float) -> None:
        super().__init__(timeout=seconds, headers=_HEADERS)
        self._sender = _AsyncClient(seconds)
        self._loop = _background_loop()
        # holds the sender, so that its connections are still whole when this client is collected
        finalize(self, _close_later, self._sender, self._loop).atexit = False

    def send(self, request: Any, **more: Any) -> Any:  # noqa: ARG002 - whether to stream: never
        future = asyncio.run_coroutine_threadsafe(self._sender.send(request), self._loop)
        try:
            answer = future.result()
        except BaseException:
            future.cancel()
            raise
        headers = [
            (name, value)
            for name, value in answer.headers.multi_items()
            if name.lower() not in ("content-length", "transfer-encoding")
        ]
        copy = type(answer)(
            answer.status_code, headers=headers, content=answer.content, request=answer.request
        )
        copy.elapsed = answer.elapsed
        return copy

    def close(self) -> None:
        if not self._sender.is_closed:
            asyncio.run_coroutine_threadsafe(self._sender.aclose(), self._loop).result()
        super().close()

    def __del__(self) -> None:
        """Nothing: the base would close what :func:`_close_later` closes."""


def _close_later(sender: _AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
    """Close without waiting: this may be the thread of the loop."""
    if not sender.is_closed and loop.is_running():
        asyncio.run_coroutine_threadsafe(sender.aclose(), loop)


_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def _background_loop() -> asyncio.AbstractEventLoop:
    """The event loop for clients of threads, one a process: a fork has no thread that runs its parent's."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="surefoot-calls", daemon=True).start()
        return loop
