"""Long work on files, in pieces: a command that was killed goes on where it was when started again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from surefoot.cli._shared import stages
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
) -> int:
    """Map ``work`` over ``items``, ``size`` at a time, into the file ``out``; returns the records written.

    Finished pieces wait in ``<out>.work`` until all are done. With ``-`` each piece goes to standard output
    at once. Raises ``RunError`` if ``<out>.work`` belongs to a command with other settings or inputs, and
    ``RecordError`` before any work if ``out`` has an unknown ending.
    """
    from surefoot.store import Run, write_records
    from surefoot.store.files import ENDINGS

    if out != "-" and not out.endswith(ENDINGS):
        raise RecordError(f"--out {out}: unknown ending; choose {', '.join(ENDINGS)}, or - for a pipe")
    pieces = [items[start : start + size] for start in range(0, len(items), size)]
    with stages() as progress:
        if out == "-":
            written = 0
            for number, piece in enumerate(pieces):
                written += write_records("-", work(piece), record=record)
                progress(command, number + 1, len(pieces))
            return written
        folder = Path(f"{out}.work")
        # Standard input is no file to compare, so the items themselves say whether the work is the same.
        settings = {**config, "items": content_id(*items)}
        with Run.open(folder, command=command, config=settings, inputs=inputs) as run:
            shards = run.shards("pieces", record)
            missing = shards.missing(len(pieces))
            progress(command, len(pieces) - len(missing), len(pieces))
            for number in missing:
                shards.write(number, work(pieces[number]))
                progress(command, number + 1, len(pieces))
            written = write_records(Path(out), shards.read(), record=record)
        shutil.rmtree(folder / "shards")  # first: shards without a manifest would be refused after a kill
        shutil.rmtree(folder)
    return written


def file_inputs(**paths: str) -> dict[str, Path]:
    """The files among ``paths``; standard input has no content to compare."""
    return {name: Path(path) for name, path in paths.items() if path != "-"}
