"""Bounded workers shared by many threads, with fair turns for their callers.

Half of the workers are quick: a question may use one for ``SLICE_S`` seconds and is then asked again of
another worker. So a short question waits for one slice at most, however many hard questions others ask
(:class:`surefoot.concurrency.FairQueue`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager

from surefoot.concurrency import FairQueue
from surefoot.errors import SurefootError
from surefoot.io.bounded_worker import BoundedWorker, Reply, Task

SLICE_S = 0.1
"""Seconds of a quick worker that one question may use; an honest question takes some milliseconds."""
_MIN_S = 0.05
"""A question is given at least this much time."""


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
        self._interrupt: Callable[[], object] | None = None

    def cancel(self) -> None:
        """End the question that is waiting or being answered, and refuse all others."""
        with self._lock:
            self.cancelled = True
            if self._interrupt is not None:
                self._interrupt()

    @contextmanager
    def interruptible(self, interrupt: Callable[[], object]) -> Iterator[None]:
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
    ``timeout_s`` bounds each question. Other arguments are passed to :class:`BoundedWorker`.
    """

    def __init__(
        self, task: Task, *, size: int, timeout_s: float, memory_mb: int, error: type[SurefootError]
    ) -> None:
        self._timeout_s = timeout_s
        self._workers = [
            BoundedWorker(task, timeout_s=timeout_s, memory_mb=memory_mb, error=error) for _ in range(size)
        ]
        n_quick = size // 2 if timeout_s > SLICE_S else 0
        self._idle = {True: self._workers[:n_quick], False: self._workers[n_quick:]}
        """Workers without a question: quick ones, and others."""
        self._turns = FairQueue(size, quick=n_quick, quick_cost=SLICE_S)

    def ask(self, question: object, budget: RequestBudget | None = None) -> Reply:
        """The reply to one question. Its failure is one of a worker, ``budget`` (spent) or ``cancelled``.

        Raises as :meth:`BoundedWorker.ask` does.
        """
        budget = budget or RequestBudget()
        reply = self._ask(question, budget, quick=True)
        if reply is None:
            reply = self._ask(question, budget, quick=False)
        return reply or Reply(failure="timeout")

    def close(self) -> None:
        """Kill each worker once it has answered. Can be repeated; a later question starts a new one."""
        for worker in self._workers:
            worker.close()

    def _ask(self, question: object, budget: RequestBudget, *, quick: bool) -> Reply | None:
        """Wait for a worker and ask it, within the budget; ``None`` if a slice was too short."""
        if budget.cancelled or budget.left_s <= 0:
            return Reply(failure="cancelled" if budget.cancelled else "budget")
        begin = time.monotonic()
        turn = self._turns.enter(budget.caller, quick=quick, used_before=budget.used_s)
        try:
            with budget.interruptible(turn.granted.cancel):
                turn.granted.result(min(budget.left_s, threading.TIMEOUT_MAX))
        except (TimeoutError, CancelledError):
            self._turns.leave(turn, 0.0)
            if not budget.cancelled:
                budget.left_s = 0.0
            return Reply(failure="cancelled" if budget.cancelled else "budget")
        left_s = max(budget.left_s - (time.monotonic() - begin), _MIN_S)
        limit_s = SLICE_S if turn.quick else self._timeout_s
        seconds, used_s = min(limit_s, left_s), 0.0
        reply = Reply(failure="cancelled")
        worker = self._idle[turn.quick].pop()
        try:
            worker.start()  # takes seconds, once; no request pays for it
            started = time.monotonic()
            with budget.interruptible(worker.interrupt):
                if not budget.cancelled:
                    reply = worker.ask(question, timeout_s=seconds)
            used_s = time.monotonic() - started
        finally:
            self._idle[turn.quick].append(worker)
            self._turns.leave(turn, used_s)
        budget.left_s, budget.used_s = left_s - used_s, budget.used_s + used_s
        if budget.cancelled:
            return Reply(failure="cancelled")
        if reply.failure == "timeout":
            if seconds < limit_s:
                return Reply(failure="budget")
            if turn.quick:
                return None
        return reply
