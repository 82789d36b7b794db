"""``surefoot search best-of-n`` and ``surefoot search majority``: whole solutions."""

from __future__ import annotations

from typing import Annotated

import typer

from surefoot.cli.search import _options as s
from surefoot.cli.search._options import FileOptions, PolicyOptions, PrmOptions

Solutions = Annotated[int, typer.Option("--n", "-n", min=1, help="Solutions of a problem.")]
Batch = Annotated[
    int | None,
    typer.Option("--batch", min=1, help="Draw so many at a time, and stop when the choice is settled."),
]


def best_of_n(
    files: FileOptions,
    writes: PolicyOptions,
    scores: PrmOptions,
    n: Solutions = 16,
    batch: Batch = None,
    rule: s.Rule = "best_of_n",
) -> None:
    """Whole solutions, of which the best-scored is chosen; `--rule weighted_vote`: the answer, by its scores.

    Example: `surefoot search best-of-n --problems problems.jsonl --prm prm --n 16 --out results.jsonl`
    """
    from surefoot.cli._shared import checked_options
    from surefoot.cli.search._run import search_file
    from surefoot.search.best_of_n_search import BestOfNSearch

    with checked_options():
        method = BestOfNSearch(n=n, batch=batch, rule=rule)
    search_file("search best-of-n", method, files, writes, scores)


def majority(files: FileOptions, writes: PolicyOptions, n: Solutions = 16, batch: Batch = None) -> None:
    """Whole solutions, of which one with the most frequent answer is chosen: self-consistency, no scores.

    Example: `surefoot search majority --problems problems.jsonl --n 16 --batch 4 --out results.jsonl`
    """
    from surefoot.cli._shared import checked_options
    from surefoot.cli.search._run import search_file
    from surefoot.search.best_of_n_search import BestOfNSearch

    with checked_options():
        method = BestOfNSearch(n=n, batch=batch, rule="majority", name="majority")
    search_file("search majority", method, files, writes)
