"""``surefoot search draw``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def draw(
    trees: Annotated[str, typer.Argument(help="File of trees, as --trees writes them; - is standard input.")],
    problem: Annotated[
        str | None, typer.Option("--problem", help="Id of the problem; else the first of the file.")
    ] = None,
    out: Annotated[
        str, typer.Option("--out", "-o", help="File to write: .svg, .txt, or - for text on standard output.")
    ] = "-",
    width: Annotated[int, typer.Option("--width", min=40, help="Columns of the text.")] = 110,
    box: Annotated[int, typer.Option("--box", min=60, help="Width of a step in the SVG, in pixels.")] = 220,
) -> None:
    """Draw the tree of one problem, as text or SVG, with its values and the solution that was chosen.

    Example: `surefoot search draw trees.jsonl --out tree.svg`
    """
    from surefoot.cli._shared import read_all
    from surefoot.errors import RecordError
    from surefoot.search.drawing import draw_svg, draw_text
    from surefoot.search.saved_tree import SavedTree

    if out != "-" and Path(out).suffix not in (".svg", ".txt"):
        raise RecordError(
            f"--out {out}: unknown ending; choose .svg or .txt, or - for text on standard output"
        )
    saved = read_all(trees, SavedTree)
    found = [tree for tree in saved if problem in (None, tree.problem_id)]
    if not found:
        known = ", ".join(tree.problem_id for tree in saved[:5])
        raise RecordError(
            f"--problem {problem}: {trees} has no such tree; it has {len(saved)}, such as {known}"
        )
    if problem is None and len(saved) > 1:
        typer.echo(f"the first of {len(saved)} trees; --problem names another", err=True)
    drawn = draw_svg(found[0], box=box) if out.endswith(".svg") else draw_text(found[0], width=width)
    if out == "-":
        sys.stdout.buffer.write(drawn.encode("utf-8"))
        sys.stdout.flush()
    else:
        Path(out).write_bytes(drawn.encode("utf-8"))
