"""The trees of a search in a file of their own, beside the results and as safe from kills."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from surefoot.errors import RecordError

if TYPE_CHECKING:
    from surefoot.search.saved_tree import SavedTree

Keep = Callable[[int, Sequence["SavedTree"]], None]
"""Keeps the trees of the piece with this number."""


@contextmanager
def kept_trees(
    path: str | None, results: str, *, command: str, config: Mapping[str, Any], inputs: Mapping[str, Path]
) -> Iterator[Keep | None]:
    """Gathers trees in ``<path>.work``, and writes all into ``path`` at the end; ``None`` without a path.

    A piece's trees are kept before its ``results`` are, so that none is missing where a command goes on.
    Raises ``RecordError`` for a path of unknown ending and ``RunError`` as ``in_pieces``.
    """
    if path is None:
        yield None
        return
    from surefoot.io import Run, write_records
    from surefoot.io.files import ENDINGS
    from surefoot.search.saved_tree import SavedTree

    if not path.endswith(ENDINGS):
        raise RecordError(f"--trees {path}: unknown ending; choose {', '.join(ENDINGS)}")
    if path == results:
        raise RecordError(f"--trees and --out are both {path}; give two files")
    folder = Path(f"{path}.work")
    with Run.open(folder, command=command, config={**config, "out": results}, inputs=inputs) as run:
        shards = run.shards("trees", SavedTree)
        yield shards.write
        written = write_records(Path(path), shards.read(), record=SavedTree)
    typer.echo(f"{written} trees written", err=True)
    if not Path(f"{results}.work").exists():  # else a budget ended the work, and it will go on
        shutil.rmtree(folder / "shards")  # first: shards without a manifest would be refused after a kill
        shutil.rmtree(folder)
