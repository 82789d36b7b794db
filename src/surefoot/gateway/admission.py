"""Places for requests: so many are worked on, so many wait, and the next is sent away."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from surefoot.gateway.http.errors import ApiError

_SLOWLY = 0.1
"""Weight of the latest request in the mean time of a request."""


class Admission:
    """``running`` places and ``waiting`` seats before them, given out in the order of arrival."""

    def __init__(self, *, running: int, waiting: int) -> None:
        self.places, self.seats = running, waiting
        self._free = asyncio.Semaphore(running)
        self._inside = 0
        self._running = 0
        self._mean_s = 1.0
        self.draining = False
        """Whether nobody is let in any more, because the server is stopping."""

    @property
    def running(self) -> int:
        """Requests that are worked on."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._inside - self._running

    def ticket(self) -> Ticket:
        """A ticket to enter with. Raises :class:`ApiError` 429 if there is no seat, 503 while stopping."""
        if self.draining:
            raise ApiError(503, "the server is stopping", code="stopping", retry_after_s=5)
        if self._inside >= self.places + self.seats:
            wait_s = min(60.0, self._mean_s * (self.waiting + 1) / self.places)
            message = f"{self._running} requests are running and {self.waiting} wait; try again later"
            raise ApiError(429, message, code="overloaded", retry_after_s=wait_s)
        self._inside += 1
        return Ticket(self)

    async def enter(self) -> float:
        """Wait for a place; when it began."""
        await self._free.acquire()
        self._running += 1
        return time.monotonic()

    def leave(self, began: float | None) -> None:
        """Give the ticket back, and the place if there was one."""
        self._inside -= 1
        if began is not None:
            self._mean_s += _SLOWLY * (time.monotonic() - began - self._mean_s)
            self._running -= 1
            self._free.release()


class Ticket:
    """The right to a place; held in an ``async with`` block, or closed unused."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._began: float | None = None
        self._open = True

    def close(self) -> None:
        """Give it back; more than once does nothing."""
        if self._open:
            self._open = False
            self._admission.leave(self._began)

    async def __aenter__(self) -> Self:
        try:
            self._began = await self._admission.enter()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
