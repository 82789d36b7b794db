"""An engine of actors on a Ray cluster (extra ``ray``)."""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from surefoot.errors import RunError
from surefoot.extras import need
from surefoot.work.engines import Next, RunPieces, available_cores
from surefoot.work.jobs import Job, Opened, PieceDone, Pieces, WorkerTask, do_piece, open_job

if TYPE_CHECKING:
    from ray import ObjectRef

_LOG = logging.getLogger("surefoot.work")
_SHORT_S = 2.0
"""If pieces take less than this, a second one waits at each worker, so that it is never idle. A longer piece
does not wait at a worker, which may turn out to be a slow one."""
_WAIT_S = 60.0
"""Seconds without any worker after which a warning is logged."""


class RayEngine:
    """``workers`` actors on the cluster that ``RAY_ADDRESS`` names, or on this machine if it is not set.

    Each actor has ``cpus`` and ``gpus`` of a node. Workers receive piece numbers and read their items from
    files, so all nodes must share the folders of the inputs and of temporary files (``TMPDIR``). They return
    their records to this process, which alone writes. Ray restarts a worker that died, on another node if its
    own is gone. Other workers do its pieces, so a cluster that has become too small for all workers continues
    with those that fit.

    The work is given up when ``max_deaths`` workers have died in the same piece. Among a thousand workers
    that live half an hour each, some piece meets three or four deaths by chance.
    """

    in_flight = 1

    def __init__(self, workers: int, *, cpus: float = 1, gpus: float = 0, max_deaths: int = 6) -> None:
        self.workers, self.cpus, self.gpus, self.max_deaths = workers, cpus, gpus, max_deaths

    @contextmanager
    def start(self, job: Job[Any], pieces: Pieces[Any]) -> Iterator[RunPieces]:
        """See :class:`surefoot.work.engines.Engine`. Raises ``MissingExtraError`` without Ray."""
        need("ray", "--engine ray")
        threads = max(1, available_cores() // self.workers)
        yield partial(self._run, WorkerTask(job=job, pieces=pieces, threads=threads))

    def _run(self, task: WorkerTask, following: Next) -> Generator[PieceDone]:
        """Raises ``RunError`` for a piece in which too many workers die, and any error of the job itself."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        first = following(0)
        if first is None:
            return
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        actor: Any = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=-1)(_Worker)
        calls = _Calls([actor.remote(task) for _ in range(self.workers)], self.max_deaths)
        waiting = [first]
        try:
            while True:
                while calls.free:
                    number = waiting.pop() if waiting else following(calls.pieces)
                    if number is None:
                        break
                    calls.start(number)
                if calls.free and not calls.pieces:
                    return
                refs = list(calls.underway)
                ready, _ = ray.wait(refs, num_returns=1, timeout=_WAIT_S)
                if not ready and not calls.pieces:
                    _LOG.warning("no worker for %.0f s; waiting for the cluster to have room", _WAIT_S)
                all_ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
                for ref in all_ready:
                    try:
                        done: PieceDone | None = ray.get(ref)
                    except RayTaskError as error:
                        raise error.cause from None
                    except RayError as error:  # the worker or its node died
                        waiting += calls.died(ref, error)
                        continue
                    calls.finished(ref, done)
                    if done is not None:
                        yield done
        finally:
            for worker in calls.actors:
                ray.kill(worker)


class _Calls:
    """Calls of the actors. A dead worker gets no pieces until it answers a call of ``ready``.

    Ray could repeat a dead worker's calls, but if the cluster has no room for the worker any more, they would
    wait forever.
    """

    def __init__(self, actors: list[Any], max_deaths: int) -> None:
        self.actors = actors
        self._max_deaths = max_deaths
        self.free: deque[int] = deque()
        """Workers, once for each piece that they can accept."""
        self.underway: dict[ObjectRef[PieceDone | None], tuple[int, int | None]] = {}
        """Worker and piece, oldest first; without a piece the worker is getting ready."""
        self.pieces = 0
        """Number of pieces under way."""
        self._slots: Counter[int] = Counter()
        """For each worker: the pieces that it can accept, and those under way."""
        self._dead: set[int] = set()
        self._deaths: Counter[int] = Counter()
        for worker in range(len(actors)):
            self._prepare(worker)

    def start(self, number: int) -> None:
        """Have a free worker do this piece."""
        worker = self.free.popleft()
        self.underway[self.actors[worker].do.remote(number)] = worker, number
        self.pieces += 1

    def finished(self, ref: ObjectRef[PieceDone | None], done: PieceDone | None) -> None:
        """Note that a call succeeded."""
        worker, number = self._remove(ref)
        if worker in self._dead:
            self._revive(worker)
            return
        self._slots[worker] -= number is not None
        more = (2 if done is not None and done.seconds < _SHORT_S else 1) - self._slots[worker]
        self.free.extend([worker] * more)
        self._slots[worker] += more

    def died(self, ref: ObjectRef[PieceDone | None], error: Exception) -> list[int]:
        """The pieces to repeat because the worker of this call is dead.

        Raises ``RunError`` if too many died in the same piece: the oldest, as a worker does one at a time.
        """
        worker, number = self.underway[ref]
        if number is None:
            raise RunError(f"a worker could not be started: {error}") from error
        if worker not in self._dead:
            self._dead.add(worker)
            self.free = deque(other for other in self.free if other != worker)
            self._slots[worker] = 0
            oldest = next(piece for busy, piece in self.underway.values() if busy == worker)
            if oldest is not None:
                self._deaths[oldest] += 1
                if self._deaths[oldest] == self._max_deaths:
                    raise RunError(
                        f"workers died {self._max_deaths} times in piece {oldest} (out of memory?); use "
                        "fewer --workers on a node, and start the same command again"
                    ) from error
        self._remove(ref)
        self._revive(worker)
        return [number]

    def _remove(self, ref: ObjectRef[PieceDone | None]) -> tuple[int, int | None]:
        worker, number = self.underway.pop(ref)
        self.pieces -= number is not None
        return worker, number

    def _revive(self, worker: int) -> None:
        """Once every call of a dead worker has ended, wait until Ray has started it again."""
        if all(busy != worker for busy, _ in self.underway.values()):
            self._dead.discard(worker)
            self._prepare(worker)

    def _prepare(self, worker: int) -> None:
        ready = self.actors[worker].ready.options(max_task_retries=-1)
        self.underway[ready.remote()] = worker, None


class _Worker:
    """One process of the cluster, with the job opened in it."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._stack = ExitStack()  # open as long as this worker lives
        self._opened: Opened | None = None

    def ready(self) -> None:
        self._open()

    def do(self, number: int) -> PieceDone:
        return do_piece(self._task, self._open(), number)

    def _open(self) -> Opened:
        if self._opened is None:
            os.environ["OMP_NUM_THREADS"] = str(self._task.threads)
            os.chdir(self._task.directory)
            self._opened = self._stack.enter_context(open_job(self._task.job))
        return self._opened
