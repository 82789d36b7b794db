"""Engines that do the pieces of a job: this process, or several processes of this machine."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, Protocol

from surefoot.errors import RunError
from surefoot.work.jobs import Job, Opened, PieceDone, Pieces, WorkerTask, do_piece, open_job, pack_piece

Next = Callable[[int], int | None]
"""Returns the number of the next piece, given how many are under way; ``None`` = no more for now."""
RunPieces = Callable[[Next], Generator[PieceDone]]
"""Does the pieces whose numbers ``Next`` gives, and yields each once when it is done, in any order."""

_MAX_DEATHS = 3
"""Number of times that workers may die without finishing a piece in between."""


class Engine(Protocol):
    """Does the pieces of a job."""

    in_flight: int
    """Requests to one server at once; 1 if the pieces ask no server."""

    def start(self, job: Job[Any], pieces: Pieces[Any]) -> AbstractContextManager[RunPieces]:
        """Get ready. An engine that works in this process loads the job's models here."""
        ...


class Here:
    """This process. With ``in_flight`` above 1, so many pieces wait for a server at once, in one event loop;
    the job's work must then be a coroutine function."""

    def __init__(self, in_flight: int = 1) -> None:
        self.in_flight = in_flight

    @contextmanager
    def start(self, job: Job[Any], pieces: Pieces[Any]) -> Iterator[RunPieces]:
        """Open the job; see :class:`Engine`."""
        if self.in_flight == 1:
            with open_job(job) as opened:
                yield partial(_one_by_one, WorkerTask(job=job, pieces=pieces), opened)
            return
        with job.open() as opened, asyncio.Runner() as runner:
            yield partial(_concurrently, job, pieces, opened, runner, self.in_flight)


def _one_by_one(task: WorkerTask, opened: Opened, following: Next) -> Generator[PieceDone]:
    while (number := following(0)) is not None:
        yield do_piece(task, opened, number)


def _concurrently(
    job: Job[Any],
    pieces: Pieces[Any],
    opened: Opened,
    runner: asyncio.Runner,
    in_flight: int,
    following: Next,
) -> Generator[PieceDone]:
    if not inspect.iscoroutinefunction(opened.work):
        raise TypeError("work with several pieces in flight must be a coroutine function")
    work, running = opened.work, dict[asyncio.Task[Any], int]()
    connections = AsyncExitStack()

    async def next_done() -> list[asyncio.Task[Any]]:
        while len(running) < in_flight and (number := following(len(running))) is not None:
            running[asyncio.create_task(work(pieces[number]))] = number
        if not running:
            return []
        done, _ = await asyncio.wait(running, return_when=FIRST_COMPLETED)
        return sorted(done, key=lambda task: task.exception() is not None)  # save what succeeded first

    async def stop() -> None:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await connections.aclose()

    runner.run(connections.enter_async_context(opened.during()))
    try:
        while done := runner.run(next_done()):
            for task in done:
                yield pack_piece(job, opened, running.pop(task), task.result())
    finally:
        runner.run(stop())


class Processes:
    """``workers`` processes of this machine, started with ``spawn``: they share nothing with this one.

    They live for one job. If a worker dies (out of memory, a kill), the pieces under way are done again.
    Raises ``RunError`` if workers keep dying.
    """

    in_flight = 1

    def __init__(self, workers: int, *, threads: int | None = None) -> None:
        """``threads`` of each worker; by default the cores of this machine, divided among them."""
        self.workers = workers
        self.threads = threads or max(1, available_cores() // workers)
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def start(self, job: Job[Any], pieces: Pieces[Any]) -> Iterator[RunPieces]:
        """See :class:`Engine`; processes start with the first piece."""
        try:
            yield partial(self._run, WorkerTask(job=job, pieces=pieces, threads=self.threads))
        except BaseException:
            self._end(kill=True)
            raise
        self._end(kill=False)

    def _run(self, task: WorkerTask, following: Next) -> Generator[PieceDone]:
        lost: list[int] = []
        deaths = 0
        packed = pickle.dumps(task)
        while True:
            try:
                for piece in self._run_until_a_death(packed, lost, following):
                    deaths = 0
                    yield piece
                return
            except BrokenProcessPool as error:
                self._end(kill=True)
                deaths += 1
                if deaths == _MAX_DEATHS:
                    raise RunError(
                        f"worker processes died {deaths} times in a row, last in pieces {sorted(lost)} "
                        "(out of memory?); use fewer --workers, and start the same command again"
                    ) from error

    def _run_until_a_death(self, packed: bytes, lost: list[int], following: Next) -> Generator[PieceDone]:
        """Yield pieces as they finish; if the pool breaks, its pieces are in ``lost``."""
        pool = self._pool = self._pool or ProcessPoolExecutor(
            self.workers, multiprocessing.get_context("spawn"), _start_worker
        )
        underway: dict[Future[PieceDone], int] = {}
        try:
            while True:
                while len(underway) <= self.workers:  # one piece waits, so that no worker does
                    number = lost.pop() if lost else following(len(underway))
                    if number is None:
                        break
                    underway[pool.submit(_do_packed_piece, packed, number)] = number
                if not underway:
                    return
                done, _ = wait(underway, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    del underway[future]
        except BrokenProcessPool:
            lost += underway.values()
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


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_current: tuple[object, WorkerTask, Opened] | None = None
_open = ExitStack()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process stops the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    Finalize(None, _open.close, exitpriority=1)


def _end_with_parent() -> None:
    # a killed parent cannot stop its workers, and they would wait for it forever
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def do_piece_here(key: object, load: Callable[[], WorkerTask], number: int) -> PieceDone:
    """Do one piece in a worker process, which keeps the job with this ``key`` open for the next piece."""
    global _current
    if _current is None or _current[0] != key:
        _current = None
        _open.close()
        task = load()
        os.environ["OMP_NUM_THREADS"] = str(task.threads)
        if torch := sys.modules.get("torch"):  # imported with the job, so it did not see the variable
            torch.set_num_threads(task.threads)
        os.chdir(task.directory)
        _current = key, task, _open.enter_context(open_job(task.job))
    _, task, opened = _current
    return do_piece(task, opened, number)


def _do_packed_piece(packed: bytes, number: int) -> PieceDone:
    return do_piece_here(packed, lambda: pickle.loads(packed), number)  # noqa: S301 - from our own parent
