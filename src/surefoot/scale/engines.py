"""Who does the pieces: processes of this machine, or a cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing.util import Finalize
from typing import Protocol

from surefoot.errors import RunError
from surefoot.scale.jobs import Assignment, Opened, PieceDone, do_piece, open_here

Next = Callable[[int], int | None]
"""The number of the next piece, given how many are under way; ``None`` = no more for now."""

_MOST_DEATHS = 3
"""Times that workers die without a piece being finished in between, before the work is given up."""


class Engine(Protocol):
    """Does pieces in other processes. Results come as pieces are finished, in any order, once each."""

    workers: int

    def run(self, assignment: Assignment, following: Next) -> Generator[PieceDone]: ...


class LocalPool:
    """``workers`` processes of this machine, started afresh, so that they share nothing with this one.

    A worker that dies (out of memory, a kill) loses the pieces under way, which are done again. Raises
    ``RunError`` if workers die again and again.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, assignment: Assignment, following: Next) -> Generator[PieceDone]:
        """The pieces whose numbers ``following`` gives; see :class:`Engine`."""
        again: list[int] = []
        deaths = 0
        while True:
            underway: dict[Future[PieceDone], int] = {}
            with self._processes(assignment) as pool:
                try:
                    while True:
                        while len(underway) <= self.workers:  # one waits, so that no worker does
                            number = again.pop() if again else following(len(underway))
                            if number is None:
                                break
                            underway[pool.submit(_piece, number)] = number
                        if not underway:
                            return
                        done, _ = wait(underway, return_when=FIRST_COMPLETED)
                        for future in done:
                            yield future.result()
                            del underway[future]
                            deaths = 0
                except BrokenProcessPool as error:
                    again += underway.values()
                    deaths += 1
                    if deaths == _MOST_DEATHS:
                        raise RunError(
                            f"worker processes died {deaths} times in a row, last in pieces {sorted(again)} "
                            "(out of memory?); use fewer --workers, and start the same command again"
                        ) from error

    @contextmanager
    def _processes(self, assignment: Assignment) -> Iterator[ProcessPoolExecutor]:
        pool = ProcessPoolExecutor(
            self.workers, multiprocessing.get_context("spawn"), _start_worker, (assignment,)
        )
        try:
            yield pool
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


_worker: tuple[Assignment, Opened] | None = None


def _start_worker(assignment: Assignment) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process stops the others
    os.environ["OMP_NUM_THREADS"] = str(assignment.threads)
    stack = ExitStack()
    Finalize(None, stack.close, exitpriority=1)
    _worker = assignment, stack.enter_context(open_here(assignment.job))


def _piece(number: int) -> PieceDone:
    if _worker is None:
        raise RunError("this process was not started as a worker")
    assignment, opened = _worker
    return do_piece(assignment, opened, number)
