"""Several bounded workers for many threads, where questions that take long cannot delay the others.

There are two classes of worker. A request begins with the quick ones and may hold them for ``QUICK_S``
seconds in all; afterwards it waits for the others. So a request of hard questions delays an innocent one by
at most that much, however many they are.
"""

from __future__ import annotations

import math
import queue
import threading
import time

from surefoot.errors import SurefootError
from surefoot.io.bounded_worker import BoundedWorker, Reply, Task

QUICK_S = 0.5
"""Seconds of a quick worker that one request may use; an honest question takes some milliseconds."""

_LEAST_S = 0.05
"""Less is not worth a question."""


class Budget:
    """What the questions of one request may take: wall seconds in all, waiting for workers included.

    :meth:`cancel` may be called from any thread. One question at a time may use it.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self.left_s = seconds
        self.quick_left_s = QUICK_S
        self._cancelled = threading.Event()
        self._worker: BoundedWorker | None = None
        self._lock = threading.Lock()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answers."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the question that is being answered, and answer no other."""
        self._cancelled.set()
        with self._lock:
            if self._worker is not None:
                self._worker.interrupt()

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
        workers = [
            BoundedWorker(task, timeout_s=timeout_s, memory_mb=memory_mb, error=error) for _ in range(size)
        ]
        self._quick_size, self._other_size = size // 2, size - size // 2
        self._quick = _queue(workers[: self._quick_size])
        self._other = _queue(workers[self._quick_size :])

    def ask(self, question: object, budget: Budget | None = None) -> Reply:
        """The reply to one question. Failures are those of a worker, and:

        budget: the request's budget is spent; cancelled: nobody waits for the answer. Raises as
        :meth:`BoundedWorker.ask` does.
        """
        budget = budget or Budget()
        limit = self._timeout_s
        if self._quick_size and _LEAST_S < budget.quick_left_s < limit:
            reply = self._turn(self._quick, question, budget, budget.quick_left_s)
            if reply.failure != "timeout":
                return reply
        return self._turn(self._other, question, budget, limit)

    def close(self) -> None:
        """Kill all workers, once each has answered. Can be repeated; a later question starts another."""
        for waiting, count in ((self._quick, self._quick_size), (self._other, self._other_size)):
            workers = [waiting.get() for _ in range(count)]
            for worker in workers:
                worker.close()
                waiting.put(worker)

    def _turn(
        self, workers: queue.Queue[BoundedWorker], question: object, budget: Budget, limit_s: float
    ) -> Reply:
        """Wait for a worker and ask it, within the budget."""
        if budget.cancelled:
            return Reply(failure="cancelled")
        begin = time.monotonic()
        left = budget.left_s
        try:
            worker = workers.get(timeout=min(left, threading.TIMEOUT_MAX)) if left > 0 else None
        except queue.Empty:
            worker = None
        if worker is None:
            budget.left_s = 0.0
            return Reply(failure="budget")
        left = max(left - (time.monotonic() - begin), _LEAST_S)
        seconds = min(limit_s, left)
        try:
            worker.start()  # seconds, once; no request pays for it
            asked = time.monotonic()
            reply = budget.ask(worker, question, seconds)
            used = time.monotonic() - asked
        finally:
            workers.put(worker)
        budget.left_s = left - used
        if workers is self._quick:
            budget.quick_left_s -= used
        if budget.cancelled:
            return Reply(failure="cancelled")
        if reply.failure == "timeout" and seconds < limit_s:
            return Reply(failure="budget")
        return reply


def _queue(workers: list[BoundedWorker]) -> queue.Queue[BoundedWorker]:
    waiting: queue.Queue[BoundedWorker] = queue.Queue()
    for worker in workers:
        waiting.put(worker)
    return waiting
