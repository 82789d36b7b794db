"""Several bounded workers for many threads, shared fairly among callers.

A free worker goes to the waiting caller who has used the fewest worker seconds lately, however many questions
each has waiting. Half of the workers are quick: a question may hold one for ``SLICE_S`` seconds, and is then
asked again of another worker; the caller whose questions have been the shortest comes first, and one whose
questions often do not end in time gets none for a while. So hard questions delay a short one of a caller who
asks short ones by a slice at most, whoever asks them and however many.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from surefoot.errors import SurefootError
from surefoot.io.bounded_worker import BoundedWorker, Reply, Task

SLICE_S = 0.1
"""Seconds of a quick worker that one question may use; an honest question takes some milliseconds."""
OVERRUN_S = 0.3
"""Recent seconds of slices that ended without an answer, from which on a caller gets no quick worker."""
HALF_LIFE_S = 20.0
"""Seconds after which what a caller has used counts half."""
MOST_CALLERS = 10_000
"""Callers whose use is remembered."""
_LEAST_S = 0.05
"""Less is not worth a question."""
W = TypeVar("W")


class Budget:
    """What the questions of one request of a ``caller`` may take: wall seconds in all, waiting included.

    :meth:`cancel` may be called from any thread. One question at a time may use it.
    """

    def __init__(self, seconds: float = math.inf, *, caller: str = "") -> None:
        self.left_s = seconds
        self.used_s = 0.0
        """Worker seconds."""
        self.caller = caller
        self._cancelled = threading.Event()
        self._turn: Turn[BoundedWorker] | None = None
        self._worker: BoundedWorker | None = None
        self._lock = threading.Lock()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answers."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the question that waits or is being answered, and answer no other."""
        self._cancelled.set()
        with self._lock:
            if self._turn is not None:
                self._turn.ready.set()
            if self._worker is not None:
                self._worker.interrupt()

    def wait(self, turns: FairTurns[BoundedWorker], turn: Turn[BoundedWorker]) -> BoundedWorker | None:
        """The worker of a turn; ``None`` = there was none in time, or :meth:`cancel` came first."""
        with self._lock:
            self._turn = turn
        try:
            if self.cancelled:
                turn.ready.set()
            return turns.wait(turn, self.left_s)
        finally:
            with self._lock:
                self._turn = None

    def ask(self, worker: BoundedWorker, question: object, timeout_s: float) -> Reply:
        """The worker's reply to a question that :meth:`cancel` ends."""
        with self._lock:
            if self.cancelled:
                return Reply(failure="cancelled")
            self._worker = worker
        try:
            return worker.ask(question, timeout_s=timeout_s)
        finally:
            with self._lock:
                self._worker = None


class WorkerPool:
    """``size`` bounded workers for one task, each started when first needed. Threads may share them.

    Of several workers the first half are quick ones, see above; a single one serves everybody in turn.
    ``timeout_s`` bounds each question. Other arguments are those of :class:`BoundedWorker`.
    """

    def __init__(
        self, task: Task, *, size: int, timeout_s: float, memory_mb: int, error: type[SurefootError]
    ) -> None:
        self._timeout_s = timeout_s
        self._workers = [
            BoundedWorker(task, timeout_s=timeout_s, memory_mb=memory_mb, error=error) for _ in range(size)
        ]
        quick = size // 2 if timeout_s > SLICE_S else 0
        self._turns = FairTurns(self._workers[:quick], self._workers[quick:])

    def ask(self, question: object, budget: Budget | None = None) -> Reply:
        """The reply to one question. Failures are those of a worker, and:

        budget: the request's budget is spent; cancelled: nobody waits for the answer. Raises as
        :meth:`BoundedWorker.ask` does.
        """
        budget = budget or Budget()
        reply = self._ask(question, budget, quick=True)
        if reply is None:
            reply = self._ask(question, budget, quick=False)
        return reply or Reply(failure="timeout")

    def close(self) -> None:
        """Kill all workers, once each has answered. Can be repeated; a later question starts another."""
        with self._turns.idle():
            for worker in self._workers:
                worker.close()

    def _ask(self, question: object, budget: Budget, *, quick: bool) -> Reply | None:
        """Wait for a worker and ask it, within the budget; ``None`` = a quick one had too little time."""
        if budget.cancelled or budget.left_s <= 0:
            return Reply(failure="cancelled" if budget.cancelled else "budget")
        begin = time.monotonic()
        turn = self._turns.enter(budget.caller, quick=quick, used_s=budget.used_s)
        worker = budget.wait(self._turns, turn)
        if worker is None:
            if budget.cancelled:
                return Reply(failure="cancelled")
            budget.left_s = 0.0
            return Reply(failure="budget")
        left = max(budget.left_s - (time.monotonic() - begin), _LEAST_S)
        limit_s = SLICE_S if turn.on_quick else self._timeout_s
        seconds = min(limit_s, left)
        used, overran = 0.0, False
        try:
            worker.start()  # seconds, once; no request pays for it
            asked = time.monotonic()
            reply = budget.ask(worker, question, seconds)
            used = time.monotonic() - asked
            overran = reply.failure == "timeout"
        finally:
            self._turns.leave(turn, used, overran=overran)
        budget.left_s, budget.used_s = left - used, budget.used_s + used
        if budget.cancelled:
            return Reply(failure="cancelled")
        if overran and seconds < limit_s:
            return Reply(failure="budget")
        return None if overran and turn.on_quick else reply


@dataclass(eq=False)
class Turn(Generic[W]):
    """One question that waits for a worker, or has one."""

    caller: str
    quick: bool
    """Whether it may have a quick worker."""
    used_s: float = 0.0
    """Worker seconds of its request so far."""
    ready: threading.Event = field(default_factory=threading.Event)
    worker: W | None = None
    on_quick: bool = False
    """Whether ``worker`` is a quick one."""


class FairTurns(Generic[W]):
    """Free workers, handed out to waiting turns by what their callers have used lately, see above.

    Of one caller, the request that has used the least comes first, and then who waits longest. Threads may
    share it.
    """

    def __init__(
        self, quick: Sequence[W], others: Sequence[W], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quick, self._others = list(quick), list(others)
        self._size = len(quick) + len(others)
        self._waiting: list[Turn[W]] = []
        self._use: dict[str, _Use] = {}
        self._clock = clock
        self._pauses = 0
        self._changed = threading.Condition()

    def enter(self, caller: str, *, quick: bool = True, used_s: float = 0.0) -> Turn[W]:
        """A turn, which has a worker now if there is one; else it waits."""
        turn: Turn[W] = Turn(caller, quick, used_s)
        with self._changed:
            self._waiting.append(turn)
            self._hand_out()
        return turn

    def wait(self, turn: Turn[W], timeout_s: float = math.inf) -> W | None:
        """The worker of a turn; ``None`` = there was none in time, and the turn is given up.

        Setting ``turn.ready`` ends the waiting.
        """
        turn.ready.wait(min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
        with self._changed:
            if turn.worker is None:
                self._waiting.remove(turn)
            return turn.worker

    def leave(self, turn: Turn[W], used_s: float, *, overran: bool = False) -> None:
        """The worker of a turn, which had it for ``used_s`` seconds, is free again; ``overran``: without an
        answer."""
        if turn.worker is None:
            raise ValueError("the turn has no worker")
        with self._changed:
            use = self._use_of(turn.caller).at(self._clock())
            self._use[turn.caller] = replace(
                use,
                seconds=use.seconds + used_s,
                overrun_s=use.overrun_s + (used_s if overran and turn.on_quick else 0.0),
                questions=use.questions + 1,
            )
            (self._quick if turn.on_quick else self._others).append(turn.worker)
            turn.worker = None
            self._hand_out()
            self._changed.notify_all()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """A block in which no worker is in use: it begins when all are free, and none is handed out before
        its end."""
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
        now = self._clock()
        use = {caller: self._use_of(caller).at(now) for caller in {turn.caller for turn in self._waiting}}

        def give(workers: list[W], turns: list[Turn[W]], *, quick: bool) -> None:
            for turn in turns[: len(workers)]:
                self._waiting.remove(turn)
                turn.worker, turn.on_quick = workers.pop(), quick
                turn.ready.set()

        short = [turn for turn in self._waiting if turn.quick and use[turn.caller].overrun_s < OVERRUN_S]
        short.sort(key=lambda turn: (use[turn.caller].mean_s, turn.used_s))  # stable: else by arrival
        give(self._quick, short, quick=True)
        rest = sorted(self._waiting, key=lambda turn: (use[turn.caller].seconds, turn.used_s))
        give(self._others, rest, quick=False)

    def _use_of(self, caller: str) -> _Use:
        use = self._use.get(caller)
        if use is None:
            now = self._clock()
            if len(self._use) >= MOST_CALLERS:  # who has used least loses least
                uses = ((name, use.at(now)) for name, use in self._use.items())
                self._use = dict(heapq.nlargest(MOST_CALLERS // 2, uses, key=lambda item: item[1].seconds))
            use = self._use[caller] = _Use(seen=now)
        return use


@dataclass(frozen=True, kw_only=True)
class _Use:
    """What a caller has used of the workers, each number halved every ``HALF_LIFE_S``."""

    seen: float
    seconds: float = 0.0
    overrun_s: float = 0.0
    """Of slices that ended without an answer."""
    questions: float = 0.0

    @property
    def mean_s(self) -> float:
        """Seconds of a question; who has asked few is expected to need a slice."""
        return (self.seconds + SLICE_S) / (self.questions + 1)

    def at(self, now: float) -> _Use:
        """As it counts now."""
        kept = 0.5 ** ((now - self.seen) / HALF_LIFE_S)
        return _Use(
            seen=now,
            seconds=self.seconds * kept,
            overrun_s=self.overrun_s * kept,
            questions=self.questions * kept,
        )
