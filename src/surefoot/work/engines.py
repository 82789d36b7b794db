"""Engines that do the pieces of a job: this process, several processes of this machine, or a Ray cluster."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

from surefoot.errors import RunError
from surefoot.extras import need
from surefoot.work.jobs import Job, PieceDone, Pieces, Worker, WorkerTask, open_worker

Next = Callable[[int], int | None]
"""Returns the number of the next piece, given how many are under way; ``None`` = no more for now."""
RunPieces = Callable[[Next], Generator[PieceDone]]
"""Does the pieces whose numbers ``Next`` gives, and yields each once when it is done, in any order."""

_MAX_DEATHS = 3
"""Number of times that workers may die without finishing a piece in between."""


class Here:
    """Does pieces in this process. With ``in_flight`` above 1, so many wait for a server at once, in one
    event loop; the job's work must then be a coroutine function."""

    def __init__(self, in_flight: int = 1) -> None:
        self.in_flight = in_flight

    @contextmanager
    def start(self, job: Job[Any], pieces: Pieces[Any]) -> Iterator[RunPieces]:
        """Open the job: its models are loaded here."""
        with open_worker(WorkerTask(job=job, pieces=pieces)) as worker:
            if self.in_flight > 1 and not worker.asks_servers:
                raise TypeError("work with several pieces in flight must be a coroutine function")
            yield partial(_one_by_one if self.in_flight == 1 else self._concurrently, worker)

    def _concurrently(self, worker: Worker, following: Next) -> Generator[PieceDone]:
        running: set[asyncio.Task[PieceDone]] = set()

        async def next_done() -> list[asyncio.Task[PieceDone]]:
            while len(running) < self.in_flight and (number := following(len(running))) is not None:
                running.add(asyncio.create_task(worker.piece(number)))
            if not running:
                return []
            done, _ = await asyncio.wait(running, return_when=FIRST_COMPLETED)
            return sorted(done, key=lambda task: task.exception() is not None)  # save what succeeded first

        async def stop() -> None:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

        try:
            while done := worker.runner.run(next_done()):
                for task in done:
                    running.remove(task)
                    yield task.result()
        finally:
            worker.runner.run(stop())


def _one_by_one(worker: Worker, following: Next) -> Generator[PieceDone]:
    while (number := following(0)) is not None:
        yield worker.do(number)


class Processes:
    """Does pieces in ``workers`` processes of this machine, started with ``spawn``: they share nothing with
    this one.

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
        """Get ready; processes start with the first piece."""
        try:
            yield partial(self._run, WorkerTask(job=job, pieces=pieces, threads=self.threads))
        except BaseException:
            self._end(kill=True)
            raise
        self._end(kill=False)

    def _run(self, task: WorkerTask, following: Next) -> Generator[PieceDone]:
        packed, running, waiting, deaths = pickle.dumps(task), dict[Future[PieceDone], int](), list[int](), 0
        while True:
            pool = self._pool = self._pool or ProcessPoolExecutor(
                self.workers, multiprocessing.get_context("spawn"), _start_worker, (packed,)
            )
            try:
                while len(running) <= self.workers:  # one piece waits, so that no worker does
                    if not waiting and (number := following(len(running))) is not None:
                        waiting.append(number)
                    if not waiting:
                        break
                    future = pool.submit(_do_piece, waiting[-1])
                    running[future] = waiting.pop()
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    piece = future.result()
                    del running[future]
                    deaths = 0
                    yield piece
            except BrokenProcessPool as error:
                self._end(kill=True)
                waiting += running.values()
                running.clear()
                deaths += 1
                if deaths == _MAX_DEATHS:
                    raise RunError(
                        f"worker processes died {deaths} times in a row, last in pieces {sorted(waiting)} "
                        "(out of memory?); use fewer --workers, and start the same command again"
                    ) from error

    def _end(self, *, kill: bool) -> None:
        """Stop the workers; ``kill`` does not wait for the pieces under way."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if kill:
            for process in list((pool._processes or {}).values()):
                process.terminate()
        pool.shutdown(cancel_futures=True)


class RayEngine:
    """Does pieces as tasks of the Ray cluster that ``RAY_ADDRESS`` names, or of this machine (extra ``ray``).

    At most ``workers`` run at once, each with one core and ``gpus`` of a node. Tasks read their items from
    files, so all nodes must share the folders of the inputs and of temporary files (``TMPDIR``). Ray uses a
    process again for the next task, so models are loaded once per process, and repeats a task whose process
    or node died. Raises ``RunError`` if processes keep dying in one piece.
    """

    in_flight = 1

    def __init__(self, workers: int, *, gpus: float = 0) -> None:
        self.workers, self.gpus = workers, gpus

    @contextmanager
    def start(self, job: Job[Any], pieces: Pieces[Any]) -> Iterator[RunPieces]:
        """Get ready; the cluster is joined with the first piece. Raises ``MissingExtraError`` without Ray."""
        need("ray", "--engine ray")
        yield partial(self._run, WorkerTask(job=job, pieces=pieces))

    def _run(self, task: WorkerTask, following: Next) -> Generator[PieceDone]:
        import ray
        from ray.exceptions import RayError, RayTaskError

        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        # without max_calls, a process with a GPU would end after one task
        settings = ray.remote(num_gpus=self.gpus, max_calls=0, max_retries=_MAX_DEATHS - 1)
        do_piece = settings(_do_piece_of)
        packed, running = ray.put(ray.cloudpickle.dumps(task)), dict[Any, int]()
        try:
            while True:
                while len(running) < self.workers and (number := following(len(running))) is not None:
                    running[do_piece.remote(packed, number)] = number
                if not running:
                    return
                [done], _ = ray.wait(list(running))
                number = running.pop(done)
                try:
                    piece: PieceDone = ray.get(done)
                except RayTaskError as error:
                    raise error.cause from None
                except RayError as error:
                    raise RunError(
                        f"workers died {_MAX_DEATHS} times in piece {number} (out of memory?); use fewer "
                        "--workers, and start the same command again"
                    ) from error
                yield piece
        finally:
            for ref in running:
                ray.cancel(ref, force=True)


Engine = Here | Processes | RayEngine


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_packed = b""
_worker: Worker | None = None
_open = ExitStack()


def _start_worker(packed: bytes) -> None:
    global _packed
    _packed = packed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process stops the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    Finalize(None, _open.close, exitpriority=1)


def _end_with_parent() -> None:
    # a killed parent cannot stop its workers, and they would wait for it forever
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do_piece(number: int) -> PieceDone:
    """Do one piece in a worker process, which opens the job for the first one: its error is then a result."""
    global _worker
    if _worker is None:
        task: WorkerTask = pickle.loads(_packed)  # noqa: S301 - from our own parent
        os.environ["OMP_NUM_THREADS"] = str(task.threads)
        if torch := sys.modules.get("torch"):  # imported with the job, so it did not see the variable
            torch.set_num_threads(task.threads)
        os.chdir(task.directory)
        _worker = _open.enter_context(open_worker(task))
    return _worker.do(number)


def _do_piece_of(packed: bytes, number: int) -> PieceDone:
    """Do one piece of this task in a process that Ray may have used for another."""
    global _packed, _worker
    if packed != _packed:
        _open.close()
        _packed, _worker = packed, None
    return _do_piece(number)
