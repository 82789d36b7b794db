"""Long work in pieces, each saved when it is done: a command that was stopped resumes when started again."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from surefoot.cli.options import BudgetSettings
from surefoot.cli.runs import stages
from surefoot.errors import IncompleteError, PolicyError, RecordError
from surefoot.io.tables import OnDisk
from surefoot.records import Record, Trace, content_id
from surefoot.scale.engines import Engine
from surefoot.scale.jobs import Assignment, Job, Opened, Work, isolated
from surefoot.scale.pieces import Pieces

R = TypeVar("R", bound=Record)
T = TypeVar("T")


def in_pieces(
    out: str,
    record: type[R],
    items: Sequence[T],
    job: Job,
    *,
    size: int,
    command: str,
    config: Mapping[str, Any],
    inputs: Mapping[str, Path],
    by_problem: bool = False,
    in_flight: int = 1,
    server: bool = False,
    engine: Engine | None = None,
    budget: BudgetSettings | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    counts: Counter[str] | None = None,
    each: Callable[[Any], None] | None = None,
    retry_failed: bool = False,
) -> Outcome:
    """Map ``job`` over ``items``, ``size`` at a time, into the file ``out``; returns what became of it.

    Finished pieces wait in ``<out>.work`` until all are done. With ``-`` each piece goes to standard output
    at once, in order. With ``by_problem`` a piece is ``size`` problems, whose neighbouring traces stay
    together. The work is done

    - by a ``server``: its work is a coroutine function, and ``in_flight`` pieces, each one problem's
      requests, are under way at once in one event loop;
    - by the processes of an ``engine``, which save their pieces themselves;
    - or here.

    Pieces of which nothing succeeded (``job.failed``) are kept only if others succeed: where none does, or
    after ``_MOST_FAILED`` in a row (of pieces one after another, the first) for which the server was down,
    ``PolicyError`` is raised, and the same command does them again.

    Work stops, and says so, before the piece that is expected to go over the ``budget``; ``out`` then holds
    the finished pieces, and the same command with a larger budget resumes. Expected is the most tokens, and
    the mean time, of a piece so far; so the first piece always runs, alone. ``progress`` gets the command,
    the items done and their total, in place of a bar; ``counts`` is added what the job counts, and ``each``
    is shown every record that is written, those of earlier starts too.

    Records that say that a request failed are written as they are, and the pieces stay in ``<out>.work``.
    The same command with ``retry_failed`` does the pieces with such records again, and no others.

    Raises ``RunError`` if ``<out>.work`` belongs to a command with other settings or inputs, and
    ``RecordError`` before any work if ``out`` has an unknown ending.
    """
    from surefoot.io import Run, write_records
    from surefoot.io.files import write_lines
    from surefoot.io.journal import Journal
    from surefoot.io.sources import ENDINGS

    if out != "-" and not out.endswith(ENDINGS):
        raise RecordError(f"--out {out}: unknown ending; choose {', '.join(ENDINGS)}, or - for a pipe")
    pieces = Pieces(items, size, by_problem=by_problem)
    account = _Account(budget or BudgetSettings())
    counts = Counter() if counts is None else counts
    failures: Counter[str] = Counter()

    def watched(records: Iterable[R]) -> Iterator[R]:
        for one in records:
            if each:
                each(one)
            if reason := failure_of(one):
                failures[reason] += 1
            yield one

    def watched_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
        """Only what has to be looked at is parsed: the lines were valid when they were written."""
        for line in lines:
            if each or _MAY_HAVE_FAILED.search(line):
                deque(watched([record.model_validate_json(line)]), maxlen=0)
            yield line

    with ExitStack() as context:
        # before any file is made: the settings may be wrong, or nobody at the address
        opened = context.enter_context(job.open()) if engine is None or out == "-" else None
        if opened:
            context.callback(counts.update, opened.counts)  # read when the work has ended, well or not
        progress = progress or context.enter_context(stages())
        if opened and out == "-":
            pipe: _InOrder[R] = _InOrder(lambda records: write_records("-", watched(records), record=record))
            bar = _ItemBar(progress, command, pieces, range(len(pieces)))
            finished = _Finished(pipe.write, job.failed, most=in_flight, earlier=False)
            missing = list(range(len(pieces)))
            missing = _do(pieces, missing, job, opened, account, in_flight, bar.done, finished)
            pipe.flush()
            return Outcome.of(pipe.written, failures, len(missing), len(pieces), account, piped=True)
        folder = Path(f"{out}.work")
        # Standard input is no file to compare, so the items themselves say whether the work is the same.
        settings = {**config, "items": _digest(items)}
        with (
            Run.open(folder, command=command, config=settings, inputs=inputs) as run,
            run.journal("pieces", record) if server else nullcontext(run.shards("pieces", record)) as saved,
        ):
            missing = saved.missing(len(pieces))
            if retry_failed:
                again = (number for number, records in saved.pieces() if any(map(failure_of, records)))
                missing = sorted({*missing, *again})
            bar = _ItemBar(progress, command, pieces, missing)
            earlier = len(pieces) - len(missing)
            if budget is not None and budget.tokens is not None:
                account.earlier([job.cost(records) for _, records in saved.pieces()])
            finished = _Finished(saved.write, job.failed, most=in_flight, earlier=earlier > 0)
            if opened:
                missing = _do(pieces, missing, job, opened, account, in_flight, bar.done, finished)
            elif engine:
                assignment = Assignment(
                    job=job,
                    pieces=pieces,
                    folder=run.directory / "shards" / "pieces",
                    record=record,
                    threads=max(1, _cores() // engine.workers),
                )

                def saved_elsewhere(number: int) -> None:
                    run.check()
                    bar.done(number)

                missing = _do_elsewhere(
                    engine, assignment, missing, account, saved_elsewhere, finished, counts
                )
            if isinstance(saved, Journal) or out.endswith(".parquet"):
                written = write_records(Path(out), watched(saved.read()), record=record)
            else:
                written = write_lines(Path(out), watched_lines(saved.lines()))
        outcome = Outcome.of(written, failures, len(missing), len(pieces), account)
        if outcome.complete:
            shutil.rmtree(folder / "shards")  # first: shards without a manifest would be refused after a kill
            shutil.rmtree(folder)
    return outcome


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of work in pieces."""

    written: int
    """Records in the output, those of earlier starts included."""
    failed: int
    """Those of them that say that a request failed."""
    problem: str | None
    """What is not complete, and how to go on."""

    @property
    def complete(self) -> bool:
        """Whether every item was done, and no request failed."""
        return self.problem is None

    @classmethod
    def of(
        cls,
        written: int,
        failures: Counter[str],
        left: int,
        pieces: int,
        account: _Account,
        *,
        piped: bool = False,
    ) -> Outcome:
        """``failures`` are records that failed by reason, ``left`` pieces that a budget did not allow."""
        parts = []
        if left:
            how = (
                "nothing is kept of a pipe" if piped else "raise the budget and start the same command again"
            )
            spent = f"{pieces - left} of {pieces} pieces and {account.tokens} tokens"
            parts.append(f"stopped by the budget after {spent}; {how}")
        if failures:
            [(reason, count)] = failures.most_common(1)
            how = "" if piped else "; the same command with --retry-failed does those alone again"
            parts.append(f"{failures.total()} of {written} records failed, {count} with: {reason}{how}")
        return cls(written=written, failed=failures.total(), problem="; ".join(parts) or None)

    def require_complete(self) -> None:
        """Raise ``IncompleteError`` if something failed or is left to do."""
        if self.problem is not None:
            raise IncompleteError(self.problem)


def failure_of(record: Record) -> str | None:
    """Why a request for this record failed, if one did; then it may succeed another time."""
    if isinstance(record, Trace):
        return record.error
    for field in ("error", "reason", "unscored_reason"):
        if _SERVER.search(text := getattr(record, field, None) or ""):
            return text
    return None


_SERVER = re.compile(r"(?<!\w)server: ")
"""Begins what a server said, or failed to say."""
_MAY_HAVE_FAILED = re.compile(rb'server: |"error":"')
"""In the line of every record with a :func:`failure_of`."""
_MOST_FAILED = 8
"""Pieces that fail one after another and so end the work."""
_OWN_FAULT = re.compile(r"status (400|413|422)\b")
"""Answers to a request that is wrong in itself, too long for one: they say nothing of other requests."""


def connections(policy: object) -> Callable[[], AbstractAsyncContextManager[object]]:
    """What holds the connections of a policy behind a server; nothing for another."""
    from surefoot.policies.openai import OpenAIPolicy

    return policy.connected if isinstance(policy, OpenAIPolicy) else nullcontext


def all_failed(reason: str | None) -> PolicyError:
    """The error of work of which no request succeeded."""
    return PolicyError(
        f"no request succeeded, the last with: {reason}; fix that and start the same command again, "
        "finished pieces are kept"
    )


def _digest(items: Sequence[object]) -> str:
    """What says whether ``items`` are the same: the files they come from, or they themselves."""
    return items.digest if isinstance(items, OnDisk) else content_id(*items)


def _do(
    pieces: Pieces[T],
    missing: list[int],
    job: Job,
    opened: Opened,
    account: _Account,
    in_flight: int,
    progress: Callable[[int], None],
    finished: _Finished[Any],
) -> list[int]:
    """Do the ``missing`` pieces as far as the budget goes; returns the numbers of those left."""
    left = deque(missing)

    def take(number: int, records: Sequence[Any]) -> None:
        finished.take(number, records)
        account.add(job.cost(records))
        progress(number)

    async def concurrently() -> None:
        async with opened.during():
            await in_turns(opened.work)

    async def in_turns(work: Work) -> None:
        running: dict[asyncio.Task[Sequence[Any]], int] = {}
        try:
            while True:
                while left and len(running) < in_flight and not account.exhausted(len(running)):
                    number = left.popleft()
                    running[asyncio.create_task(work(pieces[number]))] = number
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    take(running.pop(task), task.result())
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    if inspect.iscoroutinefunction(opened.work):
        asyncio.run(concurrently())
    else:
        while left and not account.exhausted(0):
            number = left.popleft()
            take(number, isolated(job, opened.work, pieces[number]))
    finished.end()
    return list(left)


def _do_elsewhere(
    engine: Engine,
    assignment: Assignment,
    missing: list[int],
    account: _Account,
    progress: Callable[[int], None],
    finished: _Finished[Any],
    counts: Counter[str],
) -> list[int]:
    """The same by worker processes, which save what succeeded."""
    left = deque(missing)

    def following(underway: int) -> int | None:
        return left.popleft() if left and not account.exhausted(underway) else None

    of_worker: dict[int, Mapping[str, int]] = {}
    with closing(engine.run(assignment, following)) as pieces:
        for piece in pieces:
            if piece.failure is None:
                finished.saved()
            else:
                finished.take(piece.number, piece.records)
            account.add(piece.tokens)
            progress(piece.number)
            of_worker[piece.worker] = piece.counts
    for some in of_worker.values():
        counts.update(some)
    finished.end()
    return list(left)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Finished(Generic[R]):
    """Keeps finished pieces.

    Those that failed wait: until another one succeeds if the requests were wrong in themselves, else until
    the work ends well, for a server that goes down fails some requests before it answers the last.
    """

    def __init__(
        self,
        write: Callable[[int, Sequence[R]], object],
        failed: Callable[[Sequence[R]], str | None],
        *,
        most: int,
        earlier: bool,
    ) -> None:
        self._write, self._failed, self._succeeded = write, failed, earlier
        self._most, self._down = min(most, _MOST_FAILED), 0
        self._wrong: list[tuple[int, Sequence[R]]] = []
        self._unanswered: list[tuple[int, Sequence[R]]] = []
        self._reason: str | None = None

    def take(self, number: int, records: Sequence[R]) -> None:
        """One more. Raises ``PolicyError`` after too many failures in a row."""
        reason = self._failed(records)
        if reason is None:
            self._write(number, records)
            self.saved()
            return
        self._reason = reason
        if _OWN_FAULT.search(reason):
            self._wrong.append((number, records))
            return
        self._unanswered.append((number, records))
        self._down += 1
        if self._down >= self._most:
            raise all_failed(reason)

    def saved(self) -> None:
        """One more that succeeded and is saved."""
        self._succeeded, self._down = True, 0
        self._keep(self._wrong)

    def end(self) -> None:
        """No more will come. Raises ``PolicyError`` if all failed."""
        if (self._wrong or self._unanswered) and not self._succeeded:
            raise all_failed(self._reason)
        self._keep(self._wrong)
        self._keep(self._unanswered)

    def _keep(self, waiting: list[tuple[int, Sequence[R]]]) -> None:
        for number, records in waiting:
            self._write(number, records)
        waiting.clear()


class _InOrder(Generic[R]):
    """Passes pieces on in the order of their numbers, each as soon as all before it are there."""

    def __init__(self, write: Callable[[Sequence[R]], int]) -> None:
        self._pass_on, self._waiting, self._next = write, dict[int, Sequence[R]](), 0
        self.written = 0

    def write(self, number: int, records: Sequence[R]) -> None:
        """One more piece."""
        self._waiting[number] = records
        while self._next in self._waiting:
            self.written += self._pass_on(self._waiting.pop(self._next))
            self._next += 1

    def flush(self) -> None:
        """What is left, where a piece in between will not come."""
        for number in sorted(self._waiting):
            self.written += self._pass_on(self._waiting.pop(number))


class _ItemBar:
    """Items done, from finished pieces."""

    def __init__(
        self,
        progress: Callable[[str, int, int], None],
        command: str,
        pieces: Pieces[Any],
        missing: Sequence[int],
    ) -> None:
        self._progress, self._command, self._pieces = progress, command, pieces
        self._total = sum(map(pieces.length, range(len(pieces))))
        self._done = self._total - sum(map(pieces.length, missing))
        progress(command, self._done, self._total)

    def done(self, number: int) -> None:
        """One more piece."""
        self._done += self._pieces.length(number)
        self._progress(self._command, self._done, self._total)


class _Account:
    """What was spent, and whether one more piece like those so far fits into the budget."""

    def __init__(self, budget: BudgetSettings) -> None:
        self._budget = budget
        self.tokens, self._pieces, self._most = 0, 0, 0
        self._started, self._pieces_now = time.monotonic(), 0

    def earlier(self, tokens: Sequence[int]) -> None:
        """Tokens of each piece that is there already."""
        self.tokens, self._pieces, self._most = sum(tokens), len(tokens), max(tokens, default=0)

    def add(self, tokens: int) -> None:
        """Tokens of one more piece."""
        self.tokens += tokens
        self._most = max(self._most, tokens)
        self._pieces += 1
        self._pieces_now += 1

    def exhausted(self, in_flight: int) -> bool:
        """Whether a piece beside ``in_flight`` others would go over; before the first ends, nobody knows."""
        tokens, minutes = self._budget.tokens, self._budget.minutes
        if tokens is not None:
            if not self._pieces:
                return in_flight > 0
            if self.tokens + (in_flight + 1) * self._most > tokens:
                return True
        if minutes is None:
            return False
        if not self._pieces_now:
            return in_flight > 0
        spent = (time.monotonic() - self._started) / 60
        return spent * (1 + (in_flight + 1) / self._pieces_now) > minutes
