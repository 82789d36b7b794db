"""``map_resumable``: a long map over items that saves each finished piece, so that it can be stopped."""

from __future__ import annotations

import re
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, Generic, TypeVar

from surefoot.errors import IncompleteError, PolicyError, RecordError, counted
from surefoot.io.atomic import TEMPORARY_SUFFIX
from surefoot.io.files import write_lines
from surefoot.io.runs import Journal, Run
from surefoot.io.sources import OUT_ENDINGS
from surefoot.io.tables import OnDisk
from surefoot.records import Record, Trace, content_id
from surefoot.work.jobs import Engine, Here, Job, PieceDone, Pieces, Processes, RunPieces, tokens_of
from surefoot.work.progress import Progress, show_progress

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class MapResult:
    """Result of :func:`map_resumable`."""

    written: int
    """Records in the output, including records of earlier starts."""
    failed: int
    """Records whose request failed."""
    problem: str | None
    """What is incomplete, and how to continue."""

    def require_complete(self) -> None:
        """Raise ``IncompleteError`` if requests failed or the budget stopped the work."""
        if self.problem is not None:
            raise IncompleteError(self.problem)


def map_resumable(
    job: Job[R],
    items: Pieces[Any],
    out: str,
    *,
    engine: Engine | None = None,
    on_line: Callable[[bytes], object] | None = None,
    token_budget: int | None = None,
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> MapResult:
    """Map ``job`` over ``items`` into the file ``out``, which has the same bytes on every engine.

    Finished pieces are kept in ``<out>.work`` until all are done, and the same call resumes there. The
    manifest stays in ``<out>.manifest.json`` if the job has ``facts``. If ``out`` is ``-``, pieces go to
    standard output in order, and nothing is kept.

    The work stops before the piece that is expected to exceed the ``token_budget`` over all starts; ``out``
    then holds the finished pieces. The expected cost is the maximum of the pieces so far, so the first piece
    always runs, alone.

    Records of failed requests (:func:`failure_of`) are written, and the pieces are kept; the same call with
    ``retry_failed`` repeats the pieces that have such records. If no piece succeeds, or several in a row fail
    because the server is down, it raises ``PolicyError`` and the failed pieces are not saved.

    ``engine`` is by default this process, which does a single piece in place of ``Processes``, too.
    ``on_line`` receives each line of the output, ``progress`` the number of items done, by default for a bar.

    Raises ``RunError`` if ``<out>.work`` belongs to a job with other settings or inputs, and ``RecordError``
    if ``out`` has an unknown ending.
    """
    if out != "-" and not out.endswith(OUT_ENDINGS):
        raise RecordError(f"--out {out}: unknown ending; choose {', '.join(OUT_ENDINGS)}, or - for a pipe")
    engine = Here() if engine is None or (isinstance(engine, Processes) and len(items) == 1) else engine
    output = _Output(job.record, on_line)
    with ExitStack() as context:
        # models are loaded before any file is created: the settings may be wrong, or the server down
        run_pieces = context.enter_context(engine.start(job, items))
        progress = progress or context.enter_context(show_progress())
        saved: Journal[R] | _Pipe[R]
        if out == "-":
            saved = _Pipe(output)
        else:
            # standard input cannot be read twice to compare it, so the items are part of the settings
            config = {**job.config, "items": _digest(items.items)}
            run = Run.open(Path(f"{out}.work"), command=job.command, config=config, inputs=job.inputs)
            saved = context.enter_context(run).journal("pieces", job.record)
            run.note(job.facts)
        missing = saved.missing(len(items))
        if retry_failed:
            failed = (number for number, records in saved.pieces() if any(map(failure_of, records)))
            missing = sorted({*missing, *failed})
        earlier = saved.pieces() if token_budget is not None else ()
        account = _Account(token_budget, [sum(map(tokens_of, records)) for _, records in earlier])
        saver = _Saver(saved.write_lines, max_failed=engine.in_flight, succeeded=len(missing) < len(items))
        n_left = _run(run_pieces, job, items, missing, account, saver, progress)
        if isinstance(saved, _Pipe):
            saved.flush()
        else:
            output.write(out, saved.lines())
    problem = _describe_problem(output, n_left, len(items), account.tokens, piped=out == "-")
    if problem is None and out != "-":
        folder = Path(f"{out}.work")
        shutil.rmtree(folder / "pieces")  # first: pieces without a manifest would be refused after a kill
        if job.facts:
            (folder / "manifest.json").replace(f"{out}.manifest.json")
        shutil.rmtree(folder)
    return MapResult(written=output.written, failed=output.failures.total(), problem=problem)


def failure_of(record: Record) -> str | None:
    """Why the request for this record failed, if it did; another attempt may succeed."""
    if isinstance(record, Trace):
        return record.error
    texts = (getattr(record, field, None) or "" for field in ("error", "reason", "unscored_reason"))
    return next(filter(_SERVER.search, texts), None)


_SERVER = re.compile(r"(?<!\w)server: ")
"""Precedes an error of a server."""
_MAY_HAVE_FAILED = (b"server: ", b'"error":"')
"""One of them is in the line of every record with a :func:`failure_of`."""
_MAX_FAILED = 8
"""Number of consecutive failed pieces that end the work."""
_BAD_REQUEST = re.compile(r"status (400|413|422)\b")
"""Answers to a request that is itself wrong, such as one that is too long; other requests may succeed."""


def _digest(items: Sequence[object]) -> str:
    """Hash of the items, or of the files that they come from."""
    return items.digest if isinstance(items, OnDisk) else content_id(*items)


def _run(
    run_pieces: RunPieces,
    job: Job[Any],
    items: Pieces[Any],
    missing: Sequence[int],
    account: _Account,
    saver: _Saver,
    progress: Progress,
) -> int:
    """Do the ``missing`` pieces as far as the budget allows; returns how many are left."""
    remaining, total = deque(missing), len(items.items)
    n_done = total - sum(map(items.length, missing))
    progress(job.command, n_done, total)

    def following(underway: int) -> int | None:
        return remaining.popleft() if remaining and not account.exhausted(underway) else None

    counts_of: dict[int, Mapping[str, int]] = {}
    try:
        with closing(run_pieces(following)) as pieces:
            for piece in pieces:
                counts_of[piece.worker] = piece.counts
                saver.take(piece)
                account.add(piece.tokens)
                n_done += items.length(piece.number)
                progress(job.command, n_done, total)
    finally:
        for counts in counts_of.values():
            job.counts.update(counts)
    saver.end()
    return len(remaining)


def _describe_problem(
    output: _Output[Any], n_left: int, n_pieces: int, tokens: int, *, piped: bool
) -> str | None:
    parts = []
    if n_left:
        fix = "nothing is kept of a pipe" if piped else "raise the budget and start the same command again"
        spent = f"{n_pieces - n_left} of {counted(n_pieces, 'piece')} and {counted(tokens, 'token')}"
        parts.append(f"stopped by the budget after {spent}; {fix}")
    if failures := output.failures:
        [(reason, count)] = failures.most_common(1)
        fix = "" if piped else "; the same command with --retry-failed repeats only those"
        failed = f"{failures.total()} of {counted(output.written, 'record')} failed"
        parts.append(f"{failed}, {count} with: {reason}{fix}")
    return "; ".join(parts) or None


class _Output(Generic[R]):
    """Writes records, shows the line of each to the callback and counts failed requests by reason."""

    def __init__(self, record: type[R], on_line: Callable[[bytes], object] | None) -> None:
        self.record, self._on_line = record, on_line
        self.failures: Counter[str] = Counter()
        self.written = 0

    def write(self, out: str, lines: Iterable[bytes]) -> None:
        """Write records to ``out``, a file that no other process writes, or standard output."""
        target = Path(out).resolve()
        unfinished = f".{escape(target.name)}.{'[0-9a-f]' * 16}{TEMPORARY_SUFFIX}"
        for path in target.parent.glob(unfinished) if out != "-" else ():
            path.unlink(missing_ok=True)  # by a process that was killed
        self.written += write_lines(out, map(self._watched, lines))

    def _watched(self, line: bytes) -> bytes:
        if self._on_line:
            self._on_line(line)
        may_have_failed = any(text in line for text in _MAY_HAVE_FAILED)  # parsing all would take longer
        if may_have_failed and (reason := failure_of(self.record.model_validate_json(line))):
            self.failures[reason] += 1
        return line


class _Pipe(Generic[R]):
    """In place of a journal: passes pieces to standard output in the order of their numbers."""

    def __init__(self, output: _Output[R]) -> None:
        self._output, self._waiting, self._next = output, dict[int, Sequence[bytes]](), 0

    def missing(self, count: int) -> list[int]:
        return list(range(count))

    def pieces(self) -> Iterator[tuple[int, list[R]]]:
        return iter(())

    def write_lines(self, number: int, lines: Sequence[bytes]) -> None:
        self._waiting[number] = lines
        while self._next in self._waiting:
            self._output.write("-", self._waiting.pop(self._next))
            self._next += 1

    def flush(self) -> None:
        """Write the remaining pieces, if one between them will not come."""
        for number in sorted(self._waiting):
            self._output.write("-", self._waiting.pop(number))


class _Saver:
    """Saves finished pieces. Failed ones wait until the work ends, and are lost if no piece succeeds.

    A server that goes down fails some requests before it stops answering.
    """

    def __init__(
        self, write: Callable[[int, Sequence[bytes]], object], *, max_failed: int, succeeded: bool
    ) -> None:
        self._write, self._succeeded = write, succeeded
        self._max_failed, self._failed_in_a_row = min(max_failed, _MAX_FAILED), 0
        self._failed: list[PieceDone] = []

    def take(self, piece: PieceDone) -> None:
        """Save a piece or hold it back. Raises ``PolicyError`` after too many failures in a row."""
        if piece.failure is None:
            self._write(piece.number, piece.lines)
            self._succeeded, self._failed_in_a_row = True, 0
            return
        self._failed.append(piece)
        self._failed_in_a_row += not _BAD_REQUEST.search(piece.failure)
        if self._failed_in_a_row >= self._max_failed:
            raise self._all_failed()

    def end(self) -> None:
        """Save the pieces that were held back. Raises ``PolicyError`` if no piece succeeded."""
        if self._failed and not self._succeeded:
            raise self._all_failed()
        for piece in self._failed:
            self._write(piece.number, piece.lines)

    def _all_failed(self) -> PolicyError:
        return PolicyError(
            f"no request succeeded, the last with: {self._failed[-1].failure}; fix that and start the same "
            "command again, finished pieces are kept"
        )


class _Account:
    """Tokens spent, and whether one more piece fits into the budget; ``earlier`` starts cost some already."""

    def __init__(self, budget: int | None, earlier: Sequence[int]) -> None:
        self._budget = budget
        self.tokens, self._pieces, self._max_tokens = sum(earlier), len(earlier), max(earlier, default=0)

    def add(self, tokens: int) -> None:
        """Add one piece."""
        self.tokens += tokens
        self._max_tokens = max(self._max_tokens, tokens)
        self._pieces += 1

    def exhausted(self, in_flight: int) -> bool:
        """Whether one more piece could exceed the budget; the first piece, of unknown cost, runs alone."""
        if self._budget is None:
            return False
        if not self._pieces:
            return in_flight > 0
        return self.tokens + (in_flight + 1) * self._max_tokens > self._budget
