"""Which requests run: fair turns of the clients, and what ends a request before its answer."""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from typing import Any, Self

from starlette.types import Receive

from surefoot.concurrency import CALLER, FairQueue, FairTurn, Shares
from surefoot.server.gateway.errors import ApiError, ClientDisconnectedError

_SMOOTHING = 0.1
"""Weight of the latest request in the mean duration of a request."""

_SWEEP_S = 0.05
"""Seconds between looks at all requests, which end those that are too old. Those that were there before are
watched for a disconnected client: many answers come sooner."""


class Admission:
    """At most ``running`` requests run, in fair turns of the clients, and ``waiting`` more wait. More are
    refused, but for clients with less than an equal share. Each ends after ``timeout_s`` seconds."""

    def __init__(self, *, running: int, waiting: int, timeout_s: float = 300.0) -> None:
        self.max_running, self.timeout_s = running, timeout_s
        self.turns = FairQueue(running)
        self.shares = Shares(running + waiting)
        """Running and waiting requests, by client."""
        self.running = 0
        """Running requests."""
        self.entered: set[Slot] = set()
        """Requests within their ``async with`` block."""
        self._sweeping: asyncio.TimerHandle | None = None
        self.mean_s = 1.0
        """Mean duration of a request."""
        self.disconnects = 0
        """Clients that disconnected before their answer."""
        self.draining = False
        """Whether new requests are refused, because the server is stopping."""

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return self.shares.total - self.running

    def reserve(self, *, receive: Receive | None = None, cost: float | None = None) -> Slot:
        """A slot to wait for, of a request that ``receive`` belongs to and that costs ``cost`` (default: its
        seconds). Raises :class:`ApiError` 429 if too many wait already, 503 while stopping."""
        if self.draining:
            raise ApiError(503, "the server is stopping", code="stopping", retry_after_s=5)
        if not self.shares.has_room(CALLER.get()):
            wait_s = min(60.0, self.mean_s * (self.waiting + 1) / self.max_running)
            message = f"{self.running} requests are running and {self.waiting} wait; try again later"
            raise ApiError(429, message, code="overloaded", retry_after_s=wait_s)
        return Slot(self, receive, cost)

    def enter(self, slot: Slot) -> None:
        """A request entered its block."""
        if self._sweeping is None:
            self._sweep()
        self.entered.add(slot)

    def _sweep(self) -> None:
        delay_s = min(_SWEEP_S, self.timeout_s / 2)  # one timer, not one for each request, and of none
        loop = asyncio.get_running_loop()
        self._sweeping = loop.call_later(delay_s, self._sweep, context=contextvars.Context())
        for slot in self.entered:
            loop.call_soon(slot.look)  # apart, so that an error ends no other's look; the loop logs it

    def leave(self, slot: Slot) -> None:
        """A request ended. The timer ends with the last one, as its event loop may."""
        self.entered.discard(slot)
        if not self.entered and self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def stop(self) -> int:
        """End all requests with an error 503; their number."""
        message = "the server is stopping, and this was not done in time"
        for slot in self.entered:
            slot.end(ApiError(503, message, code="stopping", retry_after_s=5))
        return len(self.entered)


class Slot:
    """A request's place: an ``async with`` block, which begins with its turn, or close it unused.

    If the client disconnects, the time is over, or the server stops, the block is cancelled, and raises
    ``ClientDisconnectedError``, or :class:`ApiError` 504 or 503.
    """

    def __init__(self, admission: Admission, receive: Receive | None, cost: float | None) -> None:
        self._admission, self._receive = admission, receive
        self._caller, self._cost = CALLER.get(), cost
        admission.shares.add(self._caller)
        self._turn: FairTurn | None = None
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._entered = self._started = math.nan
        """When it entered the block, and when its turn came."""
        self._was_seen = False
        self._error: Exception | None = None
        """Why the block was cancelled."""
        self._open = True

    async def __aenter__(self) -> Self:
        admission, self._task = self._admission, asyncio.current_task()
        self._entered = time.monotonic()
        admission.enter(self)
        try:
            self._turn = await admission.turns.take(self._caller, cost=self._cost)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        admission.running += 1
        self._started = time.monotonic()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(error, asyncio.CancelledError) and self._error is not None:
            assert self._task is not None  # noqa: S101 - for the type checker
            self._task.uncancel()
            raise self._error from None

    def end(self, error: Exception) -> None:
        """Cancel the block, which then raises ``error``."""
        if self._error is None and self._open and self._task is not None:
            self._error = error
            self._task.cancel()

    def look(self) -> None:
        """End it if it is too old, and from the second look on watch its client."""
        seconds = self._admission.timeout_s
        if time.monotonic() - self._entered >= seconds:
            self.end(ApiError(504, f"no answer within {seconds:g} s", code="timeout"))
        elif self._open and self._was_seen and self._watcher is None and self._receive is not None:
            self._watcher = asyncio.ensure_future(self._watch(self._receive))
        self._was_seen = True

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._admission.disconnects += self._open
        self.end(ClientDisconnectedError())

    def close(self) -> None:
        """Release it; calling this again does nothing."""
        if not self._open:
            return
        self._open, admission = False, self._admission
        admission.leave(self)
        if self._watcher is not None:
            self._watcher.cancel()
        admission.shares.add(self._caller, -1)
        if not math.isnan(self._started):
            admission.mean_s += _SMOOTHING * (time.monotonic() - self._started - admission.mean_s)
            admission.running -= 1
        if self._turn is not None:
            admission.turns.leave(self._turn)


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel ``tasks`` and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
