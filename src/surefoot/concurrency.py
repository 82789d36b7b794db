"""Coroutines from synchronous code, fair turns at what several clients share, and a device per process."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

R = TypeVar("R")
CALLER: ContextVar[str] = ContextVar("caller", default="")
"""The client for whom the current task or thread works, such as ``key 3``; empty outside a server."""
_MOST_KEYS = 10_000
"""Keys whose use is remembered; the one that has been idle longest is forgotten first."""
_SMOOTHING = 0.2
"""Weight of the newest turn in a key's mean cost."""


def run_sync(coroutine: Coroutine[Any, Any, R]) -> R:
    """Wait for ``coroutine`` and return its result, in a script, a REPL or a notebook alike.

    ``asyncio.run`` fails if an event loop is already running, as in a notebook's cells. In that case the
    coroutine runs in a new loop in another thread while this one waits. Its exceptions are raised here.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()


def launched() -> int:
    """Processes that ``torchrun`` or ``accelerate launch`` started together, on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_device(name: str) -> str:
    """``name``; in one of several processes that were launched, with its local rank if it has no number."""
    if launched() == 1 or ":" in name or name in ("cpu", "mps"):
        return name
    import torch

    # as accelerate chooses: a launcher may show each process only its own device
    count = max(1, torch.get_device_module(name).device_count())
    return f"{name}:{int(os.environ.get('LOCAL_RANK', '0')) % count}"


class Shares:
    """A bounded total with owners: anybody may take while it has room, then only who has less than an equal
    share. So no owner can fill it; ``n`` have at most ``most * (1 + 1/2 + … + 1/n)`` together."""

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self.by_owner: Counter[str] = Counter()

    def has_room(self, owner: str, amount: int = 1) -> bool:
        """Whether ``owner`` may take ``amount`` more."""
        owners = len(self.by_owner) + (owner not in self.by_owner)
        return in_share(self.most, amount, self.total, self.by_owner[owner], owners)

    def add(self, owner: str, amount: int = 1) -> None:
        """Take ``amount``, or give it back if it is negative."""
        self.total += amount
        self.by_owner[owner] += amount
        if self.by_owner[owner] <= 0:
            del self.by_owner[owner]


def in_share(most: int, amount: int, total: int, own: int, owners: int) -> bool:
    """The rule of :class:`Shares`: ``total`` is taken by now, ``own`` of it by the one of ``owners`` who asks
    for ``amount``."""
    return total + amount <= most or own + amount <= most // owners


_GRANTED: Future[None] = Future()
_GRANTED.set_result(None)


@dataclass(eq=False)
class FairTurn:
    """A key's place in a :class:`FairQueue`."""

    key: str
    cost: float | None
    quick: bool
    """Whether it may have a quick slot; once it has a slot, whether it is one."""
    granted: Future[None] = _GRANTED
    """Done once the turn has a slot; cancelling it gives the turn up."""
    began: float = 0.0
    charged: float = 0.0


@dataclass
class _Share:
    """What a key has used."""

    finish: float = 0.0
    """Virtual time at which its use so far ends."""
    mean: float | None = None
    """Smoothed cost of its turns, each counted as ``quick_cost`` at most; ``None`` before the first."""
    turns: int = 0
    """Slots that it has now."""


_Group = tuple[str, bool]
"""Turns of equal rank: their key, and whether they may be quick."""


class FairQueue:
    """Hands ``slots`` to waiting turns, fairly by key and cost: start-time fair queueing (Goyal et al. 1996).

    The next slot goes to the key that has used the least; one that was idle starts with what the others have
    used by then. Of one key's turns, the oldest comes first. A turn costs the value given to :meth:`leave`,
    else its seconds.

    ``quick`` of the slots serve only keys whose recent turns cost less than ``quick_cost`` (8/10 of it, on
    average), the cheapest first. A key without any turn so far gets one slot, a quick one if no other is
    free. So short work does not wait for long work to end, however many ask for it. The empty key may use all
    slots. Threads and event loops may share it.
    """

    def __init__(self, slots: int, *, quick: int = 0, quick_cost: float = 1e9) -> None:
        self._free, self._free_quick, self._quick_cost = slots - quick, quick, quick_cost
        self._waiting: dict[_Group, dict[FairTurn, None]] = {}
        """Turns of equal rank, the oldest first: a free slot is given in time linear in the groups."""
        self._shares: dict[str, _Share] = {}
        self._now = 0.0
        """Virtual time: the start of the latest turn."""
        self._lock = threading.Lock()

    def enter(self, key: str, *, cost: float | None = None, quick: bool = True) -> FairTurn:
        """A turn, which waits until it is ``granted``. With ``quick=False`` it never takes a quick slot."""
        turn = FairTurn(key, cost, quick)
        with self._lock:
            if self._free and not (self._free_quick or self._waiting):
                self._free -= 1
                self._grant(turn, quick=False)
                return turn
            self._waiting.setdefault((key, quick), {})[turn] = None
            self._hand_out()
            if self._is_waiting(turn):
                turn.granted = Future()
        return turn

    def leave(self, turn: FairTurn, used: float | None = None) -> None:
        """End a turn, which has cost ``used``, by default its ``cost`` or seconds; or give up waiting."""
        with self._lock:
            if self._is_waiting(turn):
                self._remove(turn)
                return
            if used is None:
                used = time.monotonic() - turn.began if turn.cost is None else turn.cost
            share = self._shares[turn.key] = self._shares.pop(turn.key)  # the newest last
            share.finish += used - turn.charged
            share.turns -= 1
            capped = min(used, self._quick_cost)
            share.mean = capped if share.mean is None else share.mean + _SMOOTHING * (capped - share.mean)
            if len(self._shares) > _MOST_KEYS:
                idle = next((key for key, share in self._shares.items() if not share.turns), None)
                if idle is not None:  # it has been idle longest
                    del self._shares[idle]
            if turn.quick:
                self._free_quick += 1
            else:
                self._free += 1
            self._hand_out()

    @contextmanager
    def turn(self, key: str | None = None, *, cost: float | None = None) -> Iterator[FairTurn]:
        """A turn in a thread, by default for :data:`CALLER`."""
        turn = self.enter(CALLER.get() if key is None else key, cost=cost)
        try:
            turn.granted.result()
            yield turn
        finally:
            self.leave(turn)

    @asynccontextmanager
    async def async_turn(
        self, key: str | None = None, *, cost: float | None = None
    ) -> AsyncIterator[FairTurn]:
        """:meth:`take` for a block."""
        turn = await self.take(key, cost=cost)
        try:
            yield turn
        finally:
            self.leave(turn)

    async def take(
        self, key: str | None = None, *, cost: float | None = None, quick: bool = True
    ) -> FairTurn:
        """A turn in an event loop, by default for :data:`CALLER`; :meth:`leave` it."""
        turn = self.enter(CALLER.get() if key is None else key, cost=cost, quick=quick)
        try:
            if not turn.granted.done():
                await asyncio.wrap_future(turn.granted)
        except BaseException:
            self.leave(turn)
            raise
        return turn

    async def run(
        self,
        threads: ThreadPoolExecutor,
        work: Callable[[], R],
        key: str | None = None,
        *,
        quick: bool = True,
    ) -> R:
        """What ``work`` returns, in a thread and in a turn, which ends with the work even if the caller is
        cancelled; then work that has not begun is given up."""
        turn = await self.take(key, quick=quick)
        try:
            future = threads.submit(contextvars.copy_context().run, work)
        except BaseException:
            self.leave(turn)
            raise
        future.add_done_callback(lambda _: self.leave(turn))
        return await asyncio.wrap_future(future)

    def _hand_out(self) -> None:
        """Give free slots to waiting turns; the lock is held."""
        while self._free_quick and (
            groups := [group for group in self._waiting if self._may_be_quick(group)]
        ):
            self._free_quick -= 1
            group = min(groups, key=lambda group: self._mean(group[0]))
            self._grant(self._take(group), quick=True)
        while self._free and self._waiting:
            self._free -= 1
            self._grant(self._take(min(self._waiting, key=self._order)), quick=False)

    def _may_be_quick(self, group: _Group) -> bool:
        key, quick = group
        share = self._share(key)
        if share.mean is None and key:
            return quick and not (share.turns or self._free)
        return quick and (not key or self._mean(key) < 0.8 * self._quick_cost)

    def _mean(self, key: str) -> float:
        """Mean cost of a key's turns; a new key comes after those known to be cheap."""
        mean = self._share(key).mean
        return self._quick_cost / 2 if mean is None else mean

    def _order(self, group: _Group) -> tuple[float, float]:
        finish = self._share(group[0]).finish
        return max(finish, self._now), finish

    def _take(self, group: _Group) -> FairTurn:
        turn = next(iter(self._waiting[group]))
        self._remove(turn)
        return turn

    def _grant(self, turn: FairTurn, *, quick: bool) -> None:
        share = self._shares.setdefault(turn.key, _Share())
        turn.quick, turn.began = quick, time.monotonic()
        start = max(share.finish, self._now)
        turn.charged = share.mean or 0.0 if turn.cost is None else turn.cost
        share.finish = start + turn.charged
        share.turns += 1
        if not quick:
            self._now = start
        # A turn that was given up meanwhile keeps its slot until `leave` follows.
        if turn.granted is not _GRANTED and turn.granted.set_running_or_notify_cancel():
            turn.granted.set_result(None)

    def _is_waiting(self, turn: FairTurn) -> bool:
        return turn in self._waiting.get((turn.key, turn.quick), ())

    def _remove(self, turn: FairTurn) -> None:
        group = (turn.key, turn.quick)
        del self._waiting[group][turn]
        if not self._waiting[group]:
            del self._waiting[group]

    def _share(self, key: str) -> _Share:
        return self._shares.get(key) or _NEW


_NEW = _Share()
