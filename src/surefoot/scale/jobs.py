"""Work that any process can do: it is pickled, opened there, and done piece by piece."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from surefoot.io import write_records
from surefoot.records import Record
from surefoot.scale.pieces import Pieces

Work = Callable[[Sequence[Any]], Any]
"""Items to records, or a coroutine function of the same. The same items give the same records in every
process: seeds come from content."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A job that is ready: its models are loaded."""

    work: Work
    during: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    """Holds the connections of a coroutine's ``work`` to a server while pieces are done."""
    counts: Counter[str] = field(default_factory=Counter)
    """What ``work`` counts beside its records, by reason."""


class Job(Protocol):
    """What to do: small enough to travel, it loads models and data where the work is done."""

    def open(self) -> AbstractContextManager[Opened]:
        """Get ready, once in each process."""
        ...

    def set_aside(self, item: Any, reason: str) -> Sequence[Record] | None:
        """The records of an item that could not be done, so that it does not stop the rest; or ``None``."""
        ...

    def failed(self, records: Sequence[Any]) -> str | None:
        """Why nothing of a piece succeeded, as when a server is down; such a piece is not saved at once."""
        ...

    def cost(self, records: Sequence[Any]) -> int:
        """Tokens that a piece cost."""
        ...


@dataclass(frozen=True, kw_only=True)
class FunctionJob:
    """A job of functions that are ready. It cannot travel, unless they can."""

    work: Work
    during: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    failure: Callable[[Sequence[Any]], str | None] | None = None
    tokens: Callable[[Sequence[Any]], int] | None = None

    @contextmanager
    def open(self) -> Iterator[Opened]:
        yield Opened(work=self.work, during=self.during)

    def set_aside(self, _item: Any, _reason: str) -> None:
        return None

    def failed(self, records: Sequence[Any]) -> str | None:
        return self.failure(records) if self.failure else None

    def cost(self, records: Sequence[Any]) -> int:
        return self.tokens(records) if self.tokens else 0


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a worker process is given: the job, and where its pieces come from and go to."""

    job: Job
    pieces: Pieces[Any]
    folder: Path
    """Each finished piece becomes ``000012.jsonl`` here, whole or not at all."""
    record: type[Record]
    threads: int = 1
    """Threads of one worker."""
    directory: Path = field(default_factory=Path.cwd)
    """Where the command was started: the paths of its settings may be relative to it."""


@dataclass(frozen=True, kw_only=True)
class PieceDone:
    """What a worker says of a piece. Its records stay in the piece's file, unless it failed."""

    number: int
    tokens: int
    failure: str | None = None
    records: tuple[Any, ...] = ()
    worker: int = 0
    """Who did it."""
    seconds: float = 0.0
    """That it took there."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What this worker has counted so far, in all its pieces."""


def piece_path(folder: Path, number: int) -> Path:
    """Where a finished piece lies."""
    return folder / f"{number:06d}.jsonl"


@contextmanager
def open_here(job: Job) -> Iterator[Opened]:
    """The job with its work as a plain function, whatever it was; items that raise are set aside."""
    with job.open() as opened, asyncio.Runner() as runner:
        if not inspect.iscoroutinefunction(opened.work):
            yield replace(opened, work=partial(isolated, job, opened.work))
            return
        connected = opened.during()
        runner.run(_entered(connected))
        try:
            yield replace(opened, work=partial(isolated, job, lambda items: runner.run(opened.work(items))))
        finally:
            runner.run(_left(connected))


def isolated(job: Job, work: Work, items: Sequence[Any]) -> list[Any]:
    """``work`` on a piece; if it raises, on item after item, so that only those that raise are set aside.

    Raises what ``work`` raised where the job cannot set items aside, or where every item raises.
    """
    try:
        return list(work(items))
    except Exception as error:
        aside, records = 0, list[Any]()
        for item in items:
            try:
                records += work([item])
            except Exception as reason:
                instead = job.set_aside(item, f"{type(reason).__name__}: {reason}")
                if instead is None:
                    raise error from None
                aside, records = aside + 1, [*records, *instead]
        if aside == len(items):
            raise
        return records


def do_piece(assignment: Assignment, opened: Opened, number: int) -> PieceDone:
    """Do one piece and save it, unless nothing of it succeeded. ``opened`` is of :func:`open_here`."""
    start = time.monotonic()
    records = opened.work(assignment.pieces[number])
    failure = assignment.job.failed(records)
    if failure is None:
        write_records(piece_path(assignment.folder, number), records, record=assignment.record)
    return PieceDone(
        number=number,
        tokens=assignment.job.cost(records),
        failure=failure,
        records=tuple(records) if failure is not None else (),
        worker=os.getpid(),
        seconds=time.monotonic() - start,
        counts=dict(opened.counts),
    )


async def _entered(connected: AbstractAsyncContextManager[object]) -> None:
    await connected.__aenter__()


async def _left(connected: AbstractAsyncContextManager[object]) -> None:
    await connected.__aexit__(None, None, None)
