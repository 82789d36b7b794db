"""Who does the pieces: processes of this machine, or a cluster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing.util import Finalize
from typing import Protocol, Self

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


class InProcess:
    """This process, which does one piece after another."""

    workers = 1

    def run(self, assignment: Assignment, following: Next) -> Generator[PieceDone]:
        """The pieces whose numbers ``following`` gives; see :class:`Engine`."""
        number = following(0)
        if number is None:
            return
        with open_here(assignment.job) as opened:
            while number is not None:
                yield do_piece(assignment, opened, number)
                number = following(0)


class LocalPool:
    """``workers`` processes of this machine, started afresh, so that they share nothing with this one.

    In a ``with`` block they live from one ``run`` to the next, else for one. A worker that dies (out of
    memory, a kill) loses the pieces under way, which are done again. Raises ``RunError`` if workers die again
    and again.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._kept = False
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        self._kept = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._kept = False
        self._end(kill=kind is not None)

    def run(self, assignment: Assignment, following: Next) -> Generator[PieceDone]:
        """The pieces whose numbers ``following`` gives; see :class:`Engine`."""
        again: list[int] = []
        deaths = 0
        sent = pickle.dumps(assignment)
        done_well = False
        try:
            while not done_well:
                try:
                    for piece in self._all(sent, again, following):
                        deaths = 0
                        yield piece
                    done_well = True
                except BrokenProcessPool as error:
                    self._end(kill=True)
                    deaths += 1
                    if deaths == _MOST_DEATHS:
                        raise RunError(
                            f"worker processes died {deaths} times in a row, last in pieces {sorted(again)} "
                            "(out of memory?); use fewer --workers, and start the same command again"
                        ) from error
        finally:
            if not done_well or not self._kept:
                self._end(kill=not done_well)

    def _all(self, sent: bytes, again: list[int], following: Next) -> Generator[PieceDone]:
        """Pieces as they are finished; those of a pool that breaks are in ``again``."""
        pool = self._pool = self._pool or ProcessPoolExecutor(
            self.workers, multiprocessing.get_context("spawn"), _start_worker
        )
        underway: dict[Future[PieceDone], int] = {}
        try:
            while True:
                while len(underway) <= self.workers:  # one waits, so that no worker does
                    number = again.pop() if again else following(len(underway))
                    if number is None:
                        break
                    underway[pool.submit(_piece, sent, number)] = number
                if not underway:
                    return
                done, _ = wait(underway, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    del underway[future]
        except BrokenProcessPool:
            again += underway.values()
            raise

    def _end(self, *, kill: bool) -> None:
        """Stop the workers; ``kill`` does not wait for the pieces under way."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if kill:
            for process in list((pool._processes or {}).values()):
                process.terminate()
        pool.shutdown(cancel_futures=True)


_current: tuple[bytes, Assignment, Opened] | None = None
_open = ExitStack()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process stops the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    Finalize(None, _open.close, exitpriority=1)


def _end_with_parent() -> None:
    """A parent that is killed cannot stop its workers, and they would wait for it for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _piece(sent: bytes, number: int) -> PieceDone:
    global _current
    if _current is None or _current[0] != sent:
        _current = None
        _open.close()
        assignment: Assignment = pickle.loads(sent)  # noqa: S301 - of the process that started this one
        os.environ["OMP_NUM_THREADS"] = str(assignment.threads)
        _current = sent, assignment, _open.enter_context(open_here(assignment.job))
    _, assignment, opened = _current
    return do_piece(assignment, opened, number)
