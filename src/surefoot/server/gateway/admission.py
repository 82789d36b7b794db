"""Which requests run: slots, running work, disconnected clients, and threads for computations."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from starlette.types import Receive

from surefoot.io.worker_pool import FairTurns, WorkerTurn
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.records import AuthorizedKey

T = TypeVar("T")
SMALL_BYTES = 32_000
"""A body up to this size is cut into steps within some milliseconds, whatever its text."""
_MOST_THREADS = 256
_SMOOTHING = 0.1
"""Weight of the latest request in the mean duration of a request."""


class Admission:
    """At most ``running`` requests run and ``waiting`` more wait, in order of arrival; of these at most
    ``per_key`` have the same key. More are refused."""

    def __init__(self, *, running: int, waiting: int, per_key: int | None = None) -> None:
        self.max_running, self.max_waiting, self.max_per_key = running, waiting, per_key
        self.admitted_by_key: Counter[int] = Counter()
        self.free = asyncio.Semaphore(running)
        self.admitted = 0
        """Requests that are worked on or wait."""
        self.running = 0
        """Requests that are worked on."""
        self.mean_s = 1.0
        """Mean duration of a request."""
        self.draining = False
        """Whether new requests are refused, because the server is stopping."""

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return self.admitted - self.running

    def reserve(self, key: AuthorizedKey | None = None) -> Slot:
        """A slot to wait for. Raises :class:`ApiError` 429 if too many wait already, 503 while stopping."""
        if self.draining:
            raise ApiError(503, "the server is stopping", code="stopping", retry_after_s=5)
        if self.admitted >= self.max_running + self.max_waiting:
            wait_s = min(60.0, self.mean_s * (self.waiting + 1) / self.max_running)
            message = f"{self.running} requests are running and {self.waiting} wait; try again later"
            raise ApiError(429, message, code="overloaded", retry_after_s=wait_s)
        if key is None:
            return Slot(self, None)
        if self.max_per_key is not None and self.admitted_by_key[key.id] >= self.max_per_key:
            message = f"key {key.name!r} has {self.max_per_key} requests running or waiting; try again later"
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after_s=min(60.0, self.mean_s))
        return Slot(self, key.id)


class Slot:
    """A reservation; use it as an ``async with`` block, which waits for the slot, or close it unused."""

    def __init__(self, admission: Admission, key_id: int | None) -> None:
        self._admission, self._key_id = admission, key_id
        admission.admitted += 1
        if key_id is not None:
            admission.admitted_by_key[key_id] += 1
        self._started: float | None = None
        self._open = True

    def close(self) -> None:
        """Release it; calling this again does nothing."""
        if not self._open:
            return
        self._open = False
        admission = self._admission
        admission.admitted -= 1
        if self._key_id is not None:
            admission.admitted_by_key[self._key_id] -= 1
            if not admission.admitted_by_key[self._key_id]:
                del admission.admitted_by_key[self._key_id]
        if self._started is not None:
            admission.mean_s += _SMOOTHING * (time.monotonic() - self._started - admission.mean_s)
            admission.running -= 1
            admission.free.release()

    async def __aenter__(self) -> Self:
        try:
            await self._admission.free.acquire()
        except BaseException:
            self.close()
            raise
        self._admission.running += 1
        self._started = time.monotonic()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Jobs:
    """Running work; :meth:`stop` cancels it, and its clients get an error 503."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that :meth:`stop` cancels."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop(self) -> int:
        """Cancel all tasks, and return their number."""
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


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel ``tasks`` and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Computation:
    """Runs computations on clients' texts in threads, in fair turns of the callers.

    Threads share one interpreter, so each computing thread slows the event loop down. Two compute at a time,
    one of them only for small requests; see ``surefoot.io.worker_pool``.
    """

    def __init__(self) -> None:
        self._turns = FairTurns(["small"], ["any"])
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="surefoot-compute")

    async def run(self, caller: str, size: int, work: Callable[[], T]) -> T:
        """Run ``work`` for a request of ``size`` bytes. Cancelling ends the wait for a turn."""
        turn = self._turns.enter(caller, quick=size <= SMALL_BYTES)
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._run, turn, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            turn.ready.set()
            future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # not awaited
            raise

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, turn: WorkerTurn[str], work: Callable[[], T]) -> T:
        if self._turns.wait(turn) is None:
            raise asyncio.CancelledError
        begin = time.monotonic()
        try:
            return work()
        finally:
            self._turns.leave(turn, time.monotonic() - begin)
