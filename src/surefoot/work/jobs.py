"""Jobs, work that any process can do, and the engines that do their pieces.

A job is pickled, opened where it runs, and done piece by piece: in this process, in several processes of this
machine, or in a Ray cluster.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from uuid import uuid4

from surefoot.errors import RunError
from surefoot.extras import need
from surefoot.io.files import json_line
from surefoot.io.tables import Joined
from surefoot.records import Record, Usage

R = TypeVar("R", bound=Record)
T = TypeVar("T")

Work = Callable[[Sequence[Any]], Any]
"""Maps items to records, as a function or a coroutine function. The same items give the same records in every
process: seeds come from content."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A job that is ready to run: its models are loaded."""

    work: Work
    policy: Any = None
    """The policy that a coroutine function asks: one behind a server keeps its connections open meanwhile."""
    counts: Counter[str] = field(default_factory=Counter)
    """What ``work`` counts apart from its records, by reason."""

    def during(self) -> AbstractAsyncContextManager[Any]:
        """Keeps the connections of the policy open."""
        connected: Callable[[], AbstractAsyncContextManager[Any]]
        connected = getattr(self.policy, "connected", nullcontext)
        return connected()

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest says of the policy's server, if it was probed."""
        probed = getattr(self.policy, "probed", None)
        return {} if probed is None else {"server": probed.model_dump()}


@dataclass(frozen=True, kw_only=True)
class Job(Generic[R]):
    """A kind of work, and everything that its results depend on apart from the items.

    For other processes it is pickled: ``load``, such as a method of a command's settings, then opens models
    and data where it runs. Without ``load`` the job is ``work``.
    """

    record: type[R]
    command: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings, as plain JSON values."""
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Files that the results depend on, by name; they are compared by content."""
    counts: Counter[str] = field(default_factory=Counter)
    """Sum of the counts of all processes, complete when the work ends."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The facts that this process learned when it opened the job."""
    work: Work | None = None
    policy: Any = None
    load: Callable[[], AbstractContextManager[Opened]] | None = None
    """Loads what the work needs, once per process."""
    failure: Callable[[Sequence[R]], str | None] | None = None
    """The reason if every request of a piece failed, as when a server is down."""
    set_aside: Callable[[Any, str], Sequence[R]] | None = None
    """Records in place of an item that raises, for the reason given, so that other items can continue."""

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """The job, ready to run."""
        work: Any = self.work
        with self.load() if self.load else nullcontext(Opened(work=work, policy=self.policy)) as opened:
            self.facts.update(opened.facts)
            yield opened


def tokens_of(record: Any) -> int:
    """Tokens that a record or its evidence says it cost; 0 if it does not say."""
    usage = getattr(getattr(record, "evidence", record), "usage", None)
    return usage.tokens if isinstance(usage, Usage) else 0


class Pieces(Generic[T]):
    """``items`` cut into numbered pieces of ``size``, each of which is saved when it is finished.

    With ``by_problem`` a piece holds ``size`` runs of neighbouring items of one problem. A piece is read when
    it is asked for. If the items are on disk, pickling sends only their paths.
    """

    def __init__(self, items: Sequence[T], size: int, *, by_problem: bool = False) -> None:
        self.items = items
        if not by_problem:
            last = -len(items) // size * -size  # the first multiple of the size that holds them all
            self._ends: Sequence[int] = range(size, last + size, size)
            return
        ends = accumulate(sum(1 for _ in run) for _, run in groupby(_problem_ids(items)))
        self._ends = array("Q", (end for number, end in enumerate(ends, 1) if number % size == 0))
        if not self._ends or self._ends[-1] < len(items):
            self._ends.append(len(items))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> Sequence[T]:
        return self.items[self._start(number) : self._ends[number]]

    def length(self, number: int) -> int:
        """Number of items in a piece."""
        return min(self._ends[number], len(self.items)) - self._start(number)

    def _start(self, number: int) -> int:
        return self._ends[number - 1] if number else 0


def _problem_ids(items: Sequence[Any]) -> Iterator[str]:
    return items.problem_ids() if isinstance(items, Joined) else (item.problem.id for item in items)


@dataclass(frozen=True, kw_only=True)
class PieceDone:
    """A finished piece, as a worker sends it to the process that saves it."""

    number: int
    lines: Sequence[bytes]
    """Its records as lines of JSON."""
    tokens: int = 0
    failure: str | None = None
    """See :class:`Job`."""
    worker: int = 0
    """Process id."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts of this worker over all its pieces so far."""


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """What is sent to a worker process."""

    job: Job[Any]
    pieces: Pieces[Any]
    threads: int = 1
    """Threads of one worker."""
    directory: Path = field(default_factory=Path.cwd)
    """Where the command was started: paths in its settings may be relative to it."""
    id: str = field(default_factory=lambda: uuid4().hex)
    """Tells two tasks of the same job apart."""


class Worker:
    """A job that is open in this process, with the event loop of its requests; see :func:`open_worker`."""

    def __init__(self, task: WorkerTask, opened: Opened, runner: asyncio.Runner) -> None:
        self.task, self.runner, self._opened = task, runner, opened
        self.asks_servers = inspect.iscoroutinefunction(opened.work)
        """Whether the work is a coroutine function, of which several pieces can be under way."""

    def do(self, number: int) -> PieceDone:
        """Do one piece."""
        piece = self.piece(number)
        if self.asks_servers:
            return self.runner.run(piece)
        try:  # plain functions run outside of an event loop, as they may start one
            piece.send(None)
        except StopIteration as end:
            return cast("PieceDone", end.value)
        raise TypeError("work is a plain function, but awaits")

    async def piece(self, number: int) -> PieceDone:
        """Do one piece; if it raises, item after item, so that only items that raise are set aside.

        Raises the error of the work if the job sets no items aside, or if every item raises.
        """
        job, items = self.task.job, self.task.pieces[number]
        try:
            records = await self._records(items)
        except Exception:
            if job.set_aside is None:
                raise
            n_aside, records = 0, []
            for item in items:
                try:
                    records += await self._records([item])
                except Exception as reason:
                    n_aside += 1
                    records += job.set_aside(item, f"{type(reason).__name__}: {reason}")
            if n_aside == len(items):
                raise
        return PieceDone(
            number=number,
            lines=[json_line(record, index) for index, record in enumerate(records, start=1)],
            tokens=sum(map(tokens_of, records)),
            failure=job.failure(records) if job.failure else None,
            worker=os.getpid(),
            counts=dict(self._opened.counts),
        )

    async def _records(self, items: Sequence[Any]) -> list[Any]:
        records = self._opened.work(items)
        return list(await records if self.asks_servers else records)


@contextmanager
def open_worker(task: WorkerTask) -> Iterator[Worker]:
    """Open the job of a task; connections of its policy stay open meanwhile."""
    with task.job.open() as opened, asyncio.Runner() as runner:
        worker, connections = Worker(task, opened, runner), AsyncExitStack()
        if worker.asks_servers:
            runner.run(connections.enter_async_context(opened.during()))
        try:
            yield worker
        finally:
            runner.run(connections.aclose())


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
