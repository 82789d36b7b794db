"""Several servers of the same model: each call goes to the one that knows its prompt, or that has room."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

C = TypeVar("C")


@dataclass(eq=False)
class Endpoint(Generic[C]):
    """One server."""

    client: C
    in_flight: int = 0
    failures: int = 0
    """Calls that failed, one after another."""
    rests_until: float = 0.0
    waiting: deque[_Waiter[C]] = field(default_factory=deque)
    """Calls that would best go here; a server with room and without waiting calls takes the oldest."""


@dataclass(eq=False, kw_only=True)
class _Waiter(Generic[C]):
    avoid: Collection[Endpoint[C]]
    turn: asyncio.Future[Endpoint[C]]


class Endpoints(Generic[C]):
    """Chooses among servers that are equal; used from one event loop.

    **Windows.** A server has at most ``window`` calls under way; others wait.

    **Affinity.** Calls with the same ``key`` go to the same server, whose prefix cache then holds their
    prompt, unless it has a quarter of its window more calls than another; a key of ``None`` goes to the one
    with the fewest. No server is idle while calls wait: it takes those that wait for another.

    **Failures.** A server that fails ``eject_after`` times in a row gets no calls for ``rest_s`` seconds;
    then one call at a time tries it, until one succeeds. Where all rest, the one whose rest ends first is
    tried.
    """

    def __init__(
        self,
        clients: Sequence[C],
        *,
        window: int = 16,
        eject_after: int = 2,
        rest_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = tuple(Endpoint(client) for client in clients)
        self._window, self._eject_after, self._rest_s, self._clock = window, eject_after, rest_s, clock

    @asynccontextmanager
    async def use(
        self, key: int | None = None, *, avoid: Collection[Endpoint[C]] = ()
    ) -> AsyncIterator[Endpoint[C]]:
        """The server for one call, not one of ``avoid`` if there is another; say then how the call went."""
        endpoint = await self._acquire(key, () if len(avoid) >= len(self.all) else avoid)
        try:
            yield endpoint
        finally:
            endpoint.in_flight -= 1
            self._hand_out()

    def succeeded(self, endpoint: Endpoint[C]) -> None:
        """The server answered."""
        endpoint.failures, endpoint.rests_until = 0, 0.0

    def failed(self, endpoint: Endpoint[C]) -> None:
        """The server did not answer, or is not able to."""
        endpoint.failures += 1
        if endpoint.failures >= self._eject_after:
            endpoint.rests_until = self._clock() + self._rest_s

    async def _acquire(self, key: int | None, avoid: Collection[Endpoint[C]]) -> Endpoint[C]:
        if len(self.all) == 1:  # it is tried even while it rests
            best = self.all[0]
            has_room = best.in_flight < self._window
        else:
            allowed = [endpoint for endpoint in self.all if endpoint not in avoid]
            best = self._best(key, allowed)
            has_room = best in self._with_room(allowed)
        if not best.waiting and has_room:
            best.in_flight += 1
            return best
        waiter = _Waiter(avoid=avoid, turn=asyncio.get_running_loop().create_future())
        best.waiting.append(waiter)
        self._hand_out()
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter in best.waiting:
                best.waiting.remove(waiter)
            elif not waiter.turn.cancelled():  # its turn came at the same time
                waiter.turn.result().in_flight -= 1
                self._hand_out()
            raise

    def _best(self, key: int | None, allowed: Sequence[Endpoint[C]]) -> Endpoint[C]:
        among = self._ready(allowed)
        fewest = min(among, key=_load)
        if key is None:
            return fewest
        home = allowed[key % len(allowed)]
        balanced = home.in_flight - fewest.in_flight <= self._window // 4
        return home if home in among and balanced else fewest

    def _ready(self, allowed: Sequence[Endpoint[C]]) -> list[Endpoint[C]]:
        """Those that work; if none does, the one whose rest ends first. Never empty."""
        now = self._clock()
        ready = [
            endpoint
            for endpoint in allowed
            if endpoint.failures < self._eject_after
            or (endpoint.rests_until <= now and not endpoint.in_flight)  # on trial
        ]
        return ready or [min(allowed, key=lambda one: (one.rests_until, one.in_flight))]

    def _with_room(self, allowed: Sequence[Endpoint[C]]) -> list[Endpoint[C]]:
        return [endpoint for endpoint in self._ready(allowed) if endpoint.in_flight < self._window]

    def _hand_out(self) -> None:
        """Give calls that wait to servers with room: to each its own first, then others'."""
        while any(endpoint.waiting for endpoint in self.all):
            for endpoint in sorted(self._with_room(self.all), key=_load):
                queues = [endpoint.waiting, *(other.waiting for other in self.all if other is not endpoint)]
                if self._take(endpoint, queues):
                    break
            else:
                break
        else:
            return
        if any(endpoint.in_flight for endpoint in self.all):
            return  # whose end hands out the rest
        for waiter in [
            waiter for endpoint in self.all for waiter in endpoint.waiting if not waiter.turn.done()
        ][:1]:
            # it avoids all that work
            endpoint = self._ready([candidate for candidate in self.all if candidate not in waiter.avoid])[0]
            self._take(endpoint, [other.waiting for other in self.all])

    def _take(self, endpoint: Endpoint[C], queues: Sequence[deque[_Waiter[C]]]) -> bool:
        """Give ``endpoint`` the first call of the first queue that has one for it."""
        for queue in queues:
            for waiter in queue:
                if endpoint not in waiter.avoid and not waiter.turn.done():
                    queue.remove(waiter)
                    endpoint.in_flight += 1
                    waiter.turn.set_result(endpoint)
                    return True
        return False


def _load(endpoint: Endpoint[C]) -> int:
    return endpoint.in_flight + len(endpoint.waiting)
