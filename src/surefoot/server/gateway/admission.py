"""Which requests run: slots, running work, and disconnected clients."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar

from starlette.types import Receive

from surefoot.concurrency import CALLER, FairQueue, FairTurn, Shares
from surefoot.server.gateway.errors import ApiError, ClientDisconnectedError

if TYPE_CHECKING:
    from surefoot.server.store.accounts import ApiKey

T = TypeVar("T")
_SMOOTHING = 0.1
"""Weight of the latest request in the mean duration of a request."""


class Admission:
    """At most ``running`` requests run, in fair turns of the clients, and ``waiting`` more wait; of these at
    most ``per_key`` have the same key. More are refused, but for clients with less than an equal share."""

    def __init__(self, *, running: int, waiting: int, per_key: int | None = None) -> None:
        self.max_running, self.max_waiting, self.max_per_key = running, waiting, per_key
        self.admitted_by_key: Counter[int] = Counter()
        self.turns = FairQueue(running)
        self.shares = Shares(running + waiting)
        """Requests that are worked on or wait, by client."""
        self.running = 0
        """Requests that are worked on."""
        self.mean_s = 1.0
        """Mean duration of a request."""
        self.draining = False
        """Whether new requests are refused, because the server is stopping."""

    @property
    def admitted(self) -> int:
        """Requests that are worked on or wait."""
        return self.shares.total

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return self.admitted - self.running

    def reserve(self, key: ApiKey | None = None) -> Slot:
        """A slot to wait for. Raises :class:`ApiError` 429 if too many wait already, 503 while stopping."""
        if self.draining:
            raise ApiError(503, "the server is stopping", code="stopping", retry_after_s=5)
        if not self.shares.has_room(CALLER.get()):
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
        self._admission, self._key_id, self._caller = admission, key_id, CALLER.get()
        admission.shares.add(self._caller)
        if key_id is not None:
            admission.admitted_by_key[key_id] += 1
        self._turn: FairTurn | None = None
        self._started: float | None = None
        self._open = True

    def close(self) -> None:
        """Release it; calling this again does nothing."""
        if not self._open:
            return
        self._open = False
        admission = self._admission
        admission.shares.add(self._caller, -1)
        if self._key_id is not None:
            admission.admitted_by_key[self._key_id] -= 1
            if not admission.admitted_by_key[self._key_id]:
                del admission.admitted_by_key[self._key_id]
        if self._started is not None:
            admission.mean_s += _SMOOTHING * (time.monotonic() - self._started - admission.mean_s)
            admission.running -= 1
        if self._turn is not None:
            admission.turns.leave(self._turn)

    async def __aenter__(self) -> Self:
        self._turn = self._admission.turns.enter(self._caller)
        try:
            if not self._turn.granted.done():
                await asyncio.wrap_future(self._turn.granted)
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

    async def run(self, work: Coroutine[Any, Any, T], disconnect: Coroutine[Any, Any, None]) -> T:
        """What ``work`` returns, in the current task; it is cancelled once ``disconnect`` ends, and by
        :meth:`stop`.

        Raises ``ClientDisconnectedError``, and :class:`ApiError` 503 if it was stopped.
        """
        task, ended = asyncio.current_task(), False
        assert task is not None  # noqa: S101 - for the type checker

        def interrupt(watcher: asyncio.Task[None]) -> None:
            if not (ended or watcher.cancelled()):
                task.cancel()

        watcher = asyncio.ensure_future(disconnect)
        watcher.add_done_callback(interrupt)
        self._tasks.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if not (self._stopped or watcher.done()):
                raise
            task.uncancel()
            raise self._stopping() if self._stopped else ClientDisconnectedError() from None
        finally:
            ended = True
            self._tasks.discard(task)
            watcher.cancel()

    def stop(self) -> int:
        """Cancel all tasks, and return their number."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        return len(self._tasks)

    def result(self, task: asyncio.Task[T]) -> T:
        """Result of a task that has ended. Raises its error, or :class:`ApiError` 503 if it was stopped."""
        if task.cancelled() and self._stopped:
            raise self._stopping()
        return task.result()

    def _stopping(self) -> ApiError:
        message = "the server is stopping, and this was not done in time"
        return ApiError(503, message, code="stopping", retry_after_s=5)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel ``tasks`` and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
