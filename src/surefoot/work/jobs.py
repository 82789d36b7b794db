"""Jobs: work that any process can do. A job is pickled, opened where it runs, and done piece by piece."""

from __future__ import annotations

import asyncio
import inspect
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from uuid import uuid4

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
