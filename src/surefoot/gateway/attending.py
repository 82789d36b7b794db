"""Work for a client who may leave, on a server that may stop."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from surefoot.gateway.http.errors import ApiError

T = TypeVar("T")
_LOG = logging.getLogger("surefoot.gateway")


class ClientLeftError(Exception):
    """There is nobody to answer any more."""


class Jobs:
    """Work under way; :meth:`stop` cancels it, and those who wait for it get an error 503."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that is known here until it ends."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop(self) -> int:
        """Cancel all; how many there were."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        return len(self._tasks)

    def result(self, task: asyncio.Task[T]) -> T:
        """Of a task that has ended. Raises what it raised, :class:`ApiError` 503 if it was stopped."""
        if task.cancelled() and self._stopped:
            message = "the server is stopping, and this was not done in time"
            raise ApiError(503, message, code="stopping", retry_after_s=5)
        return task.result()


async def attend(receive: Receive, jobs: Jobs, work: Coroutine[Any, Any, T], left: Callable[[], None]) -> T:
    """The result of ``work``, which is cancelled if the client leaves first (``left`` is then told).

    Raises :class:`ClientLeftError`, or what ``work`` raises.
    """
    task = jobs.start(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return jobs.result(task)
        left()
        raise ClientLeftError
    finally:
        await _end(task, gone)


Emit = Callable[[str], None]
"""Sends the data of one event."""


class EventStream(Response):
    """Server-sent events that ``work`` emits, each a line ``data: …``; then ``data: [DONE]``.

    After ``keep_alive_s`` seconds of silence a comment is sent. An error of ``work`` is an event of the
    OpenAI form, and nothing follows it. If the client leaves, ``work`` is cancelled and ``left`` told;
    ``ended`` is called at the end in any case.
    """

    def __init__(
        self,
        work: Callable[[Emit], Coroutine[Any, Any, None]],
        *,
        jobs: Jobs,
        keep_alive_s: float,
        left: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._work, self._jobs, self._keep_alive_s = work, jobs, keep_alive_s
        self._left, self._ended = left, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the stream."""
        try:
            await self._stream(receive, send)
        finally:
            self._ended()

    async def _stream(self, receive: Receive, send: Send) -> None:
        events: asyncio.Queue[str | None] = asyncio.Queue()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        task = self._jobs.start(self._work(events.put_nowait))
        gone = asyncio.ensure_future(_until_gone(receive))
        for one in (task, gone):
            one.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while True:
                try:
                    async with asyncio.timeout(self._keep_alive_s):
                        data = await events.get()
                except TimeoutError:
                    await _chunk(send, ": keep-alive\n\n")
                    continue
                if data is None:
                    break
                await _chunk(send, f"data: {data}\n\n")
            if task.done():
                await _chunk(send, self._last(task))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                self._left()
        finally:
            await _end(task, gone)

    def _last(self, task: asyncio.Task[None]) -> str:
        try:
            self._jobs.result(task)
        except ApiError as error:
            return f"data: {response_text(error)}\n\n"
        except Exception as error:
            _LOG.exception("a stream failed")
            return f"data: {response_text(ApiError(500, f'unforeseen error: {type(error).__name__}'))}\n\n"
        return "data: [DONE]\n\n"


def response_text(error: ApiError) -> str:
    """The body of an error as JSON."""
    return json.dumps(error.body)


async def _chunk(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode("utf-8"), "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
