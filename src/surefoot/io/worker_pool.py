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
from collections import deque

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
        self._quick, self._other = _Turns(workers[: size // 2]), _Turns(workers[size // 2 :])

    def ask(self, question: object, budget: Budget | None = None) -> Reply:
        """The reply to one question. Failures are those of a worker, and:

        budget: the request's budget is spent; cancelled: nobody waits for the answer. Raises as
        :meth:`BoundedWorker.ask` does.
        """
        budget = budget or Budget()
        limit = self._timeout_s
        if self._quick.size and _LEAST_S < budget.quick_left_s < limit:
            reply = self._turn(self._quick, question, budget, budget.quick_left_s)
            if reply.failure != "timeout":
                return reply
        return self._turn(self._other, question, budget, limit)

    def close(self) -> None:
        """Kill all workers, once each has answered. Can be repeated; a later question starts another."""
        for turns in (self._quick, self._other):
            workers = [worker for _ in range(turns.size) if (worker := turns.get()) is not None]
            for worker in workers:
                worker.close()
                turns.put(worker)

    def _turn(self, workers: _Turns, question: object, budget: Budget, limit_s: float) -> Reply:
        """Wait for a worker and ask it, within the budget."""
        if budget.cancelled:
            return Reply(failure="cancelled")
        begin = time.monotonic()
        left = budget.left_s
        worker = workers.get(left) if left > 0 else None
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


class _Turns:
    """Free workers, handed out in the order in which they were asked for.

    ``queue.Queue`` lets a thread that returns a worker have it again before those who wait.
    """

    def __init__(self, workers: list[BoundedWorker]) -> None:
        self.size = len(workers)
        self._free = deque(workers)
        self._waiting: deque[queue.SimpleQueue[BoundedWorker]] = deque()
        self._lock = threading.Lock()

    def get(self, timeout_s: float = math.inf) -> BoundedWorker | None:
        """The next free worker; ``None`` = there was none in time."""
        with self._lock:
            if self._free:
                return self._free.popleft()
            turn: queue.SimpleQueue[BoundedWorker] = queue.SimpleQueue()
            self._waiting.append(turn)
        try:
            return turn.get(timeout=min(timeout_s, threading.TIMEOUT_MAX))
        except queue.Empty:
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                    return None
            return turn.get()  # it came at the last moment

    def put(self, worker: BoundedWorker) -> None:
        """A worker is free again."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().put(worker)
            else:
                self._free.append(worker)
