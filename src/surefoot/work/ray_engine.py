"""An engine that runs pieces as tasks of a Ray cluster (extra ``ray``)."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from surefoot.errors import RunError
from surefoot.extras import need
from surefoot.work.engines import Next, RunPieces, available_cores, do_piece_here
from surefoot.work.jobs import Job, PieceDone, Pieces, WorkerTask

if TYPE_CHECKING:
    from ray import ObjectRef


class RayEngine:
    """At most ``workers`` tasks at once, on the cluster that ``RAY_ADDRESS`` names or on this machine.

    Each task has ``cpus`` and ``gpus`` of a node. Tasks receive piece numbers and read their items from
    files, so all nodes must share the folders of the inputs and of temporary files (``TMPDIR``). They return
    their records to this process, which is the only one that writes. Ray reuses a worker process for the next
    task, so the job's models are loaded once per process. It repeats a task whose worker or node died, and
    the work is given up when ``max_deaths`` workers have died in the same piece.
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

        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        run = ray.remote(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            max_retries=self.max_deaths - 1,
            max_calls=0,  # a process with a GPU would otherwise end after one task
        )(_do_piece)
        key, stored = secrets.token_hex(8), ray.put(task)
        running: dict[ObjectRef[PieceDone], int] = {}
        try:
            while True:
                while len(running) < self.workers and (number := following(len(running))) is not None:
                    running[run.remote(key, stored, number)] = number
                if not running:
                    return
                [ref], _ = ray.wait(list(running), num_returns=1)
                number = running.pop(ref)
                try:
                    piece: PieceDone = ray.get(ref)
                except RayTaskError as error:
                    raise error.cause from None
                except RayError as error:
                    raise RunError(
                        f"workers died {self.max_deaths} times in piece {number} (out of memory?); use fewer "
                        "--workers on a node, and start the same command again"
                    ) from error
                yield piece
        finally:
            for ref in running:
                ray.cancel(ref, force=True)


def _do_piece(key: str, task: WorkerTask, number: int) -> PieceDone:
    return do_piece_here(key, lambda: task, number)
