"""Computations on texts of clients, in threads: the event loop only passes them on.

Threads share one interpreter, so each computing thread slows the event loop down. Two compute at a time, one
of them only for small requests, in fair turns (``surefoot.io.worker_pool``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from surefoot.io.worker_pool import FairTurns, WorkerTurn

T = TypeVar("T")
SMALL_BYTES = 32_000
"""A body up to this size is cut into steps within some milliseconds, whatever its text."""
_MOST_THREADS = 256


class Computation:
    """Runs work in threads of its own, in fair turns of their callers."""

    def __init__(self) -> None:
        self._turns = FairTurns(["small"], ["any"])
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="surefoot-compute")

    async def run(self, caller: str, size: int, work: Callable[[], T]) -> T:
        """What ``work`` returns, for a request of ``size`` bytes. Cancelling ends the waiting for a turn."""
        turn = self._turns.enter(caller, quick=size <= SMALL_BYTES)
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._run, turn, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            turn.ready.set()
            future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody waits
            raise

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, turn: WorkerTurn[str], work: Callable[[], T]) -> T:
        if self._turns.wait(turn) is None:
            raise asyncio.CancelledError
        begin = time.monotonic()
        try:
            return work()
        finally:
            self._turns.leave(turn, time.monotonic() - begin)
