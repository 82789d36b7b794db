"""Bounded workers shared by many threads, with fair turns for their callers.

Half of the workers are quick: a question may use one for ``SLICE_S`` seconds and is then asked again of
another worker. The caller with the cheapest recent questions is served first by quick workers, and a caller
whose questions keep overrunning the slice gets no quick worker. The other workers serve the caller who has
used them least. So a short question waits for one slice at most, however many hard questions others ask.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from surefoot.errors import SurefootError
from surefoot.io.bounded_worker import BoundedWorker, Reply, Task

SLICE_S = 0.1
"""Seconds of a quick worker that one question may use; an honest question takes some milliseconds."""
MAX_CALLERS = 10_000
"""Callers whose use is remembered; the caller who has been idle longest is forgotten first."""
_QUICK_COST = 0.8 * SLICE_S
"""A caller whose recent questions cost more than this gets no quick worker."""
_SMOOTHING = 0.2
"""Weight of the newest question in a caller's recent cost."""
_MIN_S = 0.05
"""A question is given at least this much time."""
W = TypeVar("W")


class RequestBudget:
    """Bounds the questions of one request: ``seconds`` of wall time in all, waiting included.

    :meth:`cancel` may be called from any thread. A budget is used for one question at a time.
    """

    def __init__(self, seconds: float = math.inf, *, caller: str = "") -> None:
        self.left_s = seconds
        self.used_s = 0.0
        """Worker seconds."""
        self.caller = caller
        self.cancelled = False
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None

    def cancel(self) -> None:
        """End the question that is waiting or being answered, and refuse all others."""
        with self._lock:
            self.cancelled = True
            if self._interrupt is not None:
                self._interrupt()

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Within the block, :meth:`cancel` calls ``interrupt``."""
        with self._lock:
            self._interrupt = interrupt
            if self.cancelled:
                interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._interrupt = None


class WorkerPool:
    """``size`` bounded workers for one task, each started when first needed. Threads may share them.

    The first half of several workers are quick ones (see the module); a single one serves everybody in turn.
    ``timeout_s`` bounds each question. Other arguments are those of :class:`BoundedWorker`.
    """

    def __init__(
        self, task: Task, *, size: int, timeout_s: float, memory_mb: int, error: type[SurefootError]
    ) -> None:
        self._timeout_s = timeout_s
        self._workers = [
            BoundedWorker(task, timeout_s=timeout_s, memory_mb=memory_mb, error=error) for _ in range(size)
        ]
        n_quick = size // 2 if timeout_s > SLICE_S else 0
        self._turns = FairTurns(self._workers[:n_quick], self._workers[n_quick:])

    def ask(self, question: object, budget: RequestBudget | None = None) -> Reply:
        """The reply to one question. Failures are those of a worker, ``budget`` (spent) and ``cancelled``.

        Raises as :meth:`BoundedWorker.ask` does.
        """
        budget = budget or RequestBudget()
        reply = self._ask(question, budget, quick=True)
        if reply is None:
            reply = self._ask(question, budget, quick=False)
        return reply or Reply(failure="timeout")

    def close(self) -> None:
        """Kill all workers once each has answered. Can be repeated; a later question starts a new one."""
        with self._turns.idle():
            for worker in self._workers:
                worker.close()

    def _ask(self, question: object, budget: RequestBudget, *, quick: bool) -> Reply | None:
        """Wait for a worker and ask it, within the budget; ``None`` if a slice was too short."""
        if budget.cancelled or budget.left_s <= 0:
            return Reply(failure="cancelled" if budget.cancelled else "budget")
        begin = time.monotonic()
        turn = self._turns.enter(budget.caller, quick=quick, used_s=budget.used_s)
        with budget.interruptible(turn.ready.set):
            worker = self._turns.wait(turn, budget.left_s)
        if worker is None:
            if not budget.cancelled:
                budget.left_s = 0.0
            return Reply(failure="cancelled" if budget.cancelled else "budget")
        left_s = max(budget.left_s - (time.monotonic() - begin), _MIN_S)
        limit_s = SLICE_S if turn.on_quick else self._timeout_s
        seconds, used_s = min(limit_s, left_s), 0.0
        reply = Reply(failure="cancelled")
        try:
            worker.start()  # takes seconds, once; no request pays for it
            started = time.monotonic()
            with budget.interruptible(worker.interrupt):
                if not budget.cancelled:
                    reply = worker.ask(question, timeout_s=seconds)
            used_s = time.monotonic() - started
        finally:
            self._turns.leave(turn, used_s)
        budget.left_s, budget.used_s = left_s - used_s, budget.used_s + used_s
        if budget.cancelled:
            return Reply(failure="cancelled")
        if reply.failure == "timeout":
            if seconds < limit_s:
                return Reply(failure="budget")
            if turn.on_quick:
                return None
        return reply


@dataclass(eq=False)
class WorkerTurn(Generic[W]):
    """A question that waits for a worker, or has one."""

    caller: str
    quick: bool
    """Whether it may have a quick worker."""
    used_s: float = 0.0
    """Worker seconds of its request so far."""
    ready: threading.Event = field(default_factory=threading.Event)
    worker: W | None = None
    on_quick: bool = False
    """Whether ``worker`` is a quick one."""


@dataclass
class _Use:
    """What a caller has used of the workers."""

    cost_s: float = SLICE_S / 2
    """Smoothed seconds per question, each counted as a slice at most."""
    finish: float = 0.0
    """Virtual time at which the caller's last question ended (start-time fair queueing)."""


class FairTurns(Generic[W]):
    """Hands free workers to waiting turns (see the module). Threads may share it.

    Among turns of one caller, the request that has used least comes first, then the one that waits longest.
    """

    def __init__(self, quick: Sequence[W], others: Sequence[W]) -> None:
        self._quick, self._others = list(quick), list(others)
        self._size = len(quick) + len(others)
        self._waiting: list[WorkerTurn[W]] = []
        self._use: dict[str, _Use] = {}
        self._virtual_time = 0.0
        self._pauses = 0
        self._changed = threading.Condition()

    def enter(self, caller: str, *, quick: bool = True, used_s: float = 0.0) -> WorkerTurn[W]:
        """A new turn; it has a worker if one is free."""
        turn: WorkerTurn[W] = WorkerTurn(caller, quick, used_s)
        with self._changed:
            self._waiting.append(turn)
            self._hand_out()
        return turn

    def wait(self, turn: WorkerTurn[W], timeout_s: float = math.inf) -> W | None:
        """The worker of a turn; ``None`` if none was free in time, which ends the turn.

        Setting ``turn.ready`` ends the waiting.
        """
        turn.ready.wait(min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
        with self._changed:
            if turn.worker is None:
                self._waiting.remove(turn)
            return turn.worker

    def leave(self, turn: WorkerTurn[W], used_s: float) -> None:
        """Return the worker of a turn, which used it for ``used_s`` seconds."""
        if turn.worker is None:
            raise ValueError("the turn has no worker")
        with self._changed:
            use = self._use[turn.caller] = self._use.pop(turn.caller, _Use())  # the newest last
            use.cost_s += _SMOOTHING * (min(used_s, SLICE_S) - use.cost_s)
            use.finish = max(use.finish, self._virtual_time) + used_s
            if len(self._use) > MAX_CALLERS:
                del self._use[next(iter(self._use))]
            (self._quick if turn.on_quick else self._others).append(turn.worker)
            turn.worker = None
            self._hand_out()
            self._changed.notify_all()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Wait until all workers are free, and hand none out before the block ends."""
        with self._changed:
            self._pauses += 1
            self._changed.wait_for(lambda: len(self._quick) + len(self._others) == self._size)
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._hand_out()

    def _hand_out(self) -> None:
        """Give free workers to turns; the lock is held."""
        if self._pauses or not self._waiting:
            return
        use = {turn.caller: self._use.get(turn.caller, _Use()) for turn in self._waiting}
        if self._quick:
            cheap = [turn for turn in self._waiting if turn.quick and use[turn.caller].cost_s < _QUICK_COST]
            cheap.sort(key=lambda turn: (use[turn.caller].cost_s, turn.used_s))  # stable: else by arrival
            self._give(self._quick, cheap, quick=True)
        if self._others:

            def order(turn: WorkerTurn[W]) -> tuple[float, float, float]:
                finish = use[turn.caller].finish
                return max(finish, self._virtual_time), finish, turn.used_s

            turns = sorted(self._waiting, key=order)
            served = self._give(self._others, turns, quick=False)
            if served:
                self._virtual_time = max(self._virtual_time, use[served[-1].caller].finish)

    def _give(
        self, workers: list[W], turns: Sequence[WorkerTurn[W]], *, quick: bool
    ) -> Sequence[WorkerTurn[W]]:
        served = turns[: len(workers)]
        for turn in served:
            self._waiting.remove(turn)
            turn.worker, turn.on_quick = workers.pop(), quick
            turn.ready.set()
        return served
