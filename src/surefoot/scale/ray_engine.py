"""Pieces done by actors of a Ray cluster (extra ``ray``)."""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from surefoot.errors import RunError
from surefoot.extras import need
from surefoot.scale.engines import Next
from surefoot.scale.jobs import Assignment, Opened, PieceDone, do_piece, open_here

if TYPE_CHECKING:
    from ray import ObjectRef

_LOG = logging.getLogger("surefoot.scale")
_SHORT_S = 2.0
"""Where pieces take less than this, one waits at each worker, so that it is never idle. Longer ones do not
wait at a worker, which may turn out to be the slow one."""
_PATIENCE_S = 60.0
"""Seconds without any worker after which that is logged."""


class RayEngine:
    """``workers`` actors, each with a share of a node, on the cluster that ``RAY_ADDRESS`` names or on this
    machine alone.

    What travels is the numbers of pieces: workers read items by their byte ranges and save what they do, so
    the folder of temporary files (``TMPDIR``) and that of the output have to be on a file system that all
    nodes share. Ray starts a worker that died again, on another node if its own is gone. Its pieces are done
    by those that live, so a cluster that has become too small for all workers goes on with the others. A
    piece's file is written whole or not at all, and has the same bytes whoever writes it.

    The work is given up when ``most_deaths`` workers have died in the same piece. Among a thousand workers
    that live half an hour each, some piece meets three or four deaths by chance.
    """

    def __init__(self, workers: int, *, cpus: float = 1, gpus: float = 0, most_deaths: int = 6) -> None:
        self.workers, self.cpus, self.gpus, self.most_deaths = workers, cpus, gpus, most_deaths

    def run(self, assignment: Assignment, following: Next) -> Generator[PieceDone]:
        """The pieces whose numbers ``following`` gives; see :class:`surefoot.scale.engines.Engine`.

        Raises ``MissingExtraError`` without Ray, ``RunError`` for a piece in which worker after worker dies,
        and what the job itself raised.
        """
        need("ray", "--engine ray")
        import ray
        from ray.exceptions import RayError, RayTaskError

        first = following(0)
        if first is None:
            return
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        actor: Any = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=-1)(_Worker)
        calls = _Calls([actor.remote(assignment) for _ in range(self.workers)], self.most_deaths)
        again = [first]
        try:
            while True:
                while calls.free:
                    number = again.pop() if again else following(calls.pieces)
                    if number is None:
                        break
                    calls.give(number)
                if calls.free and not calls.pieces:
                    return
                refs = list(calls.underway)
                some, _ = ray.wait(refs, num_returns=1, timeout=_PATIENCE_S)
                if not some and not calls.pieces:
                    _LOG.warning("no worker for %.0f s; waiting for the cluster to have room", _PATIENCE_S)
                all_done, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
                for ref in all_done:
                    try:
                        done: PieceDone | None = ray.get(ref)
                    except RayTaskError as error:
                        raise error.cause from None
                    except RayError as error:  # the worker or its node died
                        again += calls.died(ref, error)
                        continue
                    calls.answered(ref, done)
                    if done is not None:
                        yield done
        finally:
            for one in calls.actors:
                ray.kill(one)


class _Calls:
    """Who does what. Dead workers are called again by :meth:`died`, and have no pieces until they answer.

    It is not left to Ray to do a dead worker's calls again: where there is no room for the worker any more,
    its calls would wait for ever.
    """

    def __init__(self, actors: list[Any], most_deaths: int) -> None:
        self.actors = actors
        self._most_deaths = most_deaths
        self.free: deque[int] = deque()
        """Workers, as often as each can take a piece."""
        self.underway: dict[ObjectRef[PieceDone | None], tuple[int, int | None]] = {}
        """Worker and piece, oldest first; no piece = getting ready."""
        self.pieces = 0
        """Pieces under way."""
        self._slots: Counter[int] = Counter()
        """Of each worker: how often it is free, and its pieces under way."""
        self._dead: set[int] = set()
        self._deaths: Counter[int] = Counter()
        for worker in range(len(actors)):
            self._prepare(worker)

    def give(self, number: int) -> None:
        """Have a free worker do this piece."""
        worker = self.free.popleft()
        self.underway[self.actors[worker].do.remote(number)] = worker, number
        self.pieces += 1

    def answered(self, ref: ObjectRef[PieceDone | None], done: PieceDone | None) -> None:
        """A call ended well."""
        worker, number = self._remove(ref)
        if worker in self._dead:
            self._revive(worker)
            return
        self._slots[worker] -= number is not None
        more = (2 if done is not None and done.seconds < _SHORT_S else 1) - self._slots[worker]
        self.free.extend([worker] * more)
        self._slots[worker] += more

    def died(self, ref: ObjectRef[PieceDone | None], error: Exception) -> list[int]:
        """The pieces to do again, as the worker of this call is dead.

        Raises ``RunError`` if too many died in the same piece: the oldest, as a worker does one at a time.
        """
        worker, number = self.underway[ref]
        if number is None:
            raise RunError(f"a worker could not be started: {error}") from error
        if worker not in self._dead:
            self._dead.add(worker)
            self.free = deque(other for other in self.free if other != worker)
            self._slots[worker] = 0
            oldest = next(piece for who, piece in self.underway.values() if who == worker)
            if oldest is not None:
                self._deaths[oldest] += 1
                if self._deaths[oldest] == self._most_deaths:
                    raise RunError(
                        f"workers died {self._most_deaths} times in piece {oldest} (out of memory?); use "
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
        """Once every call of a dead worker has ended, see when Ray has started it again."""
        if all(who != worker for who, _ in self.underway.values()):
            self._dead.discard(worker)
            self._prepare(worker)

    def _prepare(self, worker: int) -> None:
        ready = self.actors[worker].ready.options(max_task_retries=-1)
        self.underway[ready.remote()] = worker, None


class _Worker:
    """One process of the cluster, with the job opened in it."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._stack = ExitStack()  # open as long as this worker lives
        self._opened: Opened | None = None

    def ready(self) -> None:
        """Open the job, unless it is open."""
        self._open()

    def do(self, number: int) -> PieceDone:
        return do_piece(self._assignment, self._open(), number)

    def _open(self) -> Opened:
        if self._opened is None:
            os.environ["OMP_NUM_THREADS"] = str(self._assignment.threads)
            os.chdir(self._assignment.directory)
            self._opened = self._stack.enter_context(open_here(self._assignment.job))
        return self._opened
