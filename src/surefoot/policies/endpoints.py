"""Several servers of the same model: each call goes to the least busy one that works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


class Endpoints(Generic[C]):
    """Chooses among servers that are equal; used from one event loop.

    A call goes to the one with the fewest calls under way. One that fails ``eject_after`` times in a row gets
    none for ``rest_s`` seconds; then one call at a time tries it, until one succeeds. Where all rest, the one
    whose rest ends first is tried.
    """

    def __init__(
        self,
        clients: Sequence[C],
        *,
        eject_after: int = 2,
        rest_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = tuple(Endpoint(client) for client in clients)
        self._eject_after, self._rest_s, self._clock = eject_after, rest_s, clock

    @contextmanager
    def use(self, *, avoid: Sequence[Endpoint[C]] = ()) -> Iterator[Endpoint[C]]:
        """The server for one call, not one of ``avoid`` if there is another; say then how the call went."""
        endpoint = self._choose([one for one in self.all if one not in avoid] or list(self.all))
        endpoint.in_flight += 1
        try:
            yield endpoint
        finally:
            endpoint.in_flight -= 1

    def succeeded(self, endpoint: Endpoint[C]) -> None:
        """The server answered."""
        endpoint.failures, endpoint.rests_until = 0, 0.0

    def failed(self, endpoint: Endpoint[C]) -> None:
        """The server did not answer, or is not able to."""
        endpoint.failures += 1
        if endpoint.failures >= self._eject_after:
            endpoint.rests_until = self._clock() + self._rest_s

    def _choose(self, among: Sequence[Endpoint[C]]) -> Endpoint[C]:
        now = self._clock()
        ready = [one for one in among if self._ready(one, now)]
        if not ready:
            return min(among, key=lambda one: (one.rests_until, one.in_flight))
        return min(ready, key=lambda one: one.in_flight)

    def _ready(self, endpoint: Endpoint[C], now: float) -> bool:
        if endpoint.failures < self._eject_after:
            return True
        return endpoint.rests_until <= now and not endpoint.in_flight  # on trial
