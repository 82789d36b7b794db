"""Who is served: slots for requests, the work under way, and clients that disconnect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from starlette.types import Receive

from surefoot.gateway.errors import ApiError

T = TypeVar("T")
_SMOOTHING = 0.1
"""Weight of the latest request in the mean duration of a request."""


class Admission:
    """At most ``running`` requests run and ``waiting`` wait, in the order of arrival; more are refused."""

    def __init__(self, *, running: int, waiting: int) -> None:
        self.max_running, self.max_waiting = running, waiting
        self._free = asyncio.Semaphore(running)
        self._admitted = 0
        self._running = 0
        self._mean_s = 1.0
        self.draining = False
        """Whether new requests are refused, because the server is stopping."""

    @property
    def running(self) -> int:
        """Requests that are worked on."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return self._admitted - self._running

    def reserve(self) -> Slot:
        """A slot to wait for. Raises :class:`ApiError` 429 if too many wait already, 503 while stopping."""
        if self.draining:
            raise ApiError(503, "the server is stopping", code="stopping", retry_after_s=5)
        if self._admitted >= self.max_running + self.max_waiting:
            wait_s = min(60.0, self._mean_s * (self.waiting + 1) / self.max_running)
            message = f"{self._running} requests are running and {self.waiting} wait; try again later"
            raise ApiError(429, message, code="overloaded", retry_after_s=wait_s)
        self._admitted += 1
        return Slot(self)

    async def start(self) -> float:
        """Wait for a free slot; the time at which it was free."""
        await self._free.acquire()
        self._running += 1
        return time.monotonic()

    def release(self, started: float | None) -> None:
        """Give up a reservation, and the slot if it was ``started``."""
        self._admitted -= 1
        if started is not None:
            self._mean_s += _SMOOTHING * (time.monotonic() - started - self._mean_s)
            self._running -= 1
            self._free.release()


class Slot:
    """A reservation; use it as an ``async with`` block, which waits for the slot, or close it unused."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._started: float | None = None
        self._open = True

    def close(self) -> None:
        """Release it; calling this again does nothing."""
        if self._open:
            self._open = False
            self._admission.release(self._started)

    async def __aenter__(self) -> Self:
        try:
            self._started = await self._admission.start()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ClientDisconnectedError(Exception):
    """The client has gone, so nobody is left to answer."""


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
        """Result of a task that has ended. Raises its error, or :class:`ApiError` 503 if it was stopped."""
        if task.cancelled() and self._stopped:
            message = "the server is stopping, and this was not done in time"
            raise ApiError(503, message, code="stopping", retry_after_s=5)
        return task.result()


async def run_while_connected(
    receive: Receive, jobs: Jobs, work: Coroutine[Any, Any, T], on_disconnect: Callable[[], None]
) -> T:
    """The result of ``work``, which is cancelled if the client disconnects first.

    Raises :class:`ClientDisconnectedError`, or what ``work`` raises.
    """
    task = jobs.start(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return jobs.result(task)
        on_disconnect()
        raise ClientDisconnectedError
    finally:
        await cancel(task, disconnect)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel ``tasks`` and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
