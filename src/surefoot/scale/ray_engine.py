"""Pieces done by actors of a Ray cluster (extra ``ray``)."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from surefoot.errors import RunError
from surefoot.extras import need
from surefoot.scale.engines import Next
from surefoot.scale.jobs import Assignment, PieceDone, do_piece, open_here

if TYPE_CHECKING:
    from ray import ObjectRef

_RETRIES = 3
"""Times that a piece is begun again where its worker or node died."""
_AHEAD = 2
"""Pieces that each worker has waiting or under way, so that none is idle."""


class RayEngine:
    """``workers`` actors, each with a share of a node, on the cluster that ``RAY_ADDRESS`` names or on this
    machine alone.

    What travels is the numbers of pieces: workers read items by their byte ranges and save what they do, so
    the folder of temporary files (``TMPDIR``) and that of the output have to be on a file system that all
    nodes share. Ray starts a worker that died again, on another node if its own is gone, and a piece that was
    under way is done anew: its file is written whole or not at all, and has the same bytes whoever writes it.
    """

    def __init__(self, workers: int, *, cpus: float = 1, gpus: float = 0) -> None:
        self.workers, self.cpus, self.gpus = workers, cpus, gpus

    def run(self, assignment: Assignment, following: Next) -> Generator[PieceDone]:
        """The pieces whose numbers ``following`` gives; see :class:`surefoot.scale.engines.Engine`.

        Raises ``MissingExtraError`` without Ray, and ``RunError`` for a piece whose worker dies again and
        again.
        """
        need("ray", "--engine ray")
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        actor: Any = ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=-1, max_task_retries=_RETRIES
        )(_Worker)
        workers = [actor.remote(assignment) for _ in range(self.workers)]
        underway: dict[ObjectRef[PieceDone], tuple[int, int]] = {}  # worker and piece
        try:
            while True:
                while len(underway) < self.workers * _AHEAD:
                    number = following(len(underway))
                    if number is None:
                        break
                    busy = [worker for worker, _ in underway.values()]
                    worker = min(range(self.workers), key=busy.count)
                    underway[workers[worker].do.remote(number)] = worker, number
                if not underway:
                    return
                [done], _ = ray.wait(list(underway), num_returns=1)
                _, number = underway.pop(done)
                try:
                    piece: PieceDone = ray.get(done)
                except RayTaskError as error:
                    raise error.cause from None
                except RayActorError as error:
                    raise RunError(
                        f"workers died {_RETRIES + 1} times in piece {number} (out of memory?); use fewer "
                        "--workers on a node, and start the same command again"
                    ) from error
                yield piece
        finally:
            for one in workers:
                ray.kill(one)


class _Worker:
    """One process of the cluster, with the job opened in it."""

    def __init__(self, assignment: Assignment) -> None:
        os.environ["OMP_NUM_THREADS"] = str(assignment.threads)
        os.chdir(assignment.directory)
        self._assignment = assignment
        self._stack = ExitStack()  # open as long as this worker lives
        self._opened = self._stack.enter_context(open_here(assignment.job))

    def do(self, number: int) -> PieceDone:
        return do_piece(self._assignment, self._opened, number)
