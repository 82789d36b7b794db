"""Long work on files, in pieces: a command that was killed goes on where it was when started again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import typer

from surefoot.cli._shared import stages
from surefoot.cli.options import BudgetSettings
from surefoot.errors import RecordError
from surefoot.records import Record, content_id

R = TypeVar("R", bound=Record)
T = TypeVar("T")


def in_pieces(
    out: str,
    record: type[R],
    items: Sequence[T],
    work: Callable[[Sequence[T]], Sequence[R]],
    *,
    size: int,
    command: str,
    config: Mapping[str, Any],
    inputs: Mapping[str, Path],
    budget: BudgetSettings | None = None,
    cost: Callable[[Sequence[R]], int] = lambda _: 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> int:
    """Map ``work`` over ``items``, ``size`` at a time, into the file ``out``; returns the records written.

    Finished pieces wait in ``<out>.work`` until all are done. With ``-`` each piece goes to standard output
    at once. ``cost`` gives the tokens that a piece's records cost. Work stops, and says so, before the piece
    that is expected to go over the ``budget``; ``out`` then holds the finished pieces, and the same command
    with a larger budget goes on. The expectation is the mean over the pieces so far, so the first piece
    always runs. ``progress`` is told the command, the pieces done and those in all, in place of a bar for
    them. Raises ``RunError`` if ``<out>.work`` belongs to a command with other settings or inputs,
    and ``RecordError`` before any work if ``out`` has an unknown ending.
    """
    from surefoot.io import Run, write_records
    from surefoot.io.files import ENDINGS

    if out != "-" and not out.endswith(ENDINGS):
        raise RecordError(f"--out {out}: unknown ending; choose {', '.join(ENDINGS)}, or - for a pipe")
    pieces = [items[start : start + size] for start in range(0, len(items), size)]
    account = _Account(budget or BudgetSettings())
    with nullcontext(progress) if progress else stages() as progress:
        if out == "-":
            written = 0
            for number, piece in enumerate(pieces):
                if account.exhausted():
                    account.report(number, len(pieces), len(items), "nothing is kept of a pipe")
                    break
                records = work(piece)
                account.add(cost(records))
                written += write_records("-", records, record=record)
                progress(command, number + 1, len(pieces))
            return written
        folder = Path(f"{out}.work")
        # Standard input is no file to compare, so the items themselves say whether the work is the same.
        settings = {**config, "items": content_id(*items)}
        with Run.open(folder, command=command, config=settings, inputs=inputs) as run:
            shards = run.shards("pieces", record)
            missing = shards.missing(len(pieces))
            progress(command, len(pieces) - len(missing), len(pieces))
            if budget is not None and budget.tokens is not None and len(missing) < len(pieces):
                account.earlier(cost(list(shards.read())), len(pieces) - len(missing))
            while missing and not account.exhausted():
                records = work(pieces[missing[0]])
                shards.write(missing.pop(0), records)
                account.add(cost(records))
                progress(command, len(pieces) - len(missing), len(pieces))
            written = write_records(Path(out), shards.read(), record=record)
        if missing:
            account.report(
                len(pieces) - len(missing),
                len(pieces),
                len(items),
                "raise the budget and start the same command again to resume",
            )
            return written
        shutil.rmtree(folder / "shards")  # first: shards without a manifest would be refused after a kill
        shutil.rmtree(folder)
    return written


def file_inputs(**paths: str | None) -> dict[str, Path]:
    """The files among ``paths``; an option not given has none, standard input no content to compare."""
    return {name: Path(path) for name, path in paths.items() if path not in (None, "-")}


class _Account:
    """What was spent, and whether one more piece like those so far fits into the budget."""

    def __init__(self, budget: BudgetSettings) -> None:
        self._budget = budget
        self._tokens, self._pieces = 0, 0
        self._started, self._pieces_now = time.monotonic(), 0

    def earlier(self, tokens: int, pieces: int) -> None:
        self._tokens, self._pieces = tokens, pieces

    def add(self, tokens: int) -> None:
        self._tokens += tokens
        self._pieces += 1
        self._pieces_now += 1

    def exhausted(self) -> bool:
        tokens, minutes = self._budget.tokens, self._budget.minutes
        if tokens is not None and self._pieces and self._tokens * (1 + 1 / self._pieces) > tokens:
            return True
        spent = (time.monotonic() - self._started) / 60
        return bool(minutes is not None and self._pieces_now and spent * (1 + 1 / self._pieces_now) > minutes)

    def report(self, done: int, pieces: int, items: int, advice: str) -> None:
        typer.echo(
            f"stopped by the budget after {done} of {pieces} pieces ({items} items in all), "
            f"{self._tokens} tokens; {advice}",
            err=True,
        )
