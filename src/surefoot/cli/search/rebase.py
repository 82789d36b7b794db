"""``surefoot search rebase``."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from surefoot.cli.search import _options as s
from surefoot.cli.search._options import FileOptions, PolicyOptions, PrmOptions


def rebase(
    files: FileOptions,
    writes: PolicyOptions,
    scores: PrmOptions,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Draws a round, shared by value.")] = 16,
    value_temperature: Annotated[
        float,
        typer.Option(
            "--value-temperature", help="Of the softmax over values: high shares evenly, near 0 to the best."
        ),
    ] = 0.2,
    rounding: Annotated[
        str, typer.Option("--rounding", help="Of the shares: ceil (the authors' code) or round.")
    ] = "ceil",
    rule: s.Rule = "weighted_vote",
) -> None:
    """REBASE: each round's draws are shared among the open prefixes by their values (Wu et al. 2024).

    Example: `surefoot search rebase --problems problems.jsonl --prm prm --n 16 --out results.jsonl`
    """
    from surefoot.cli._shared import checked_options
    from surefoot.cli.search._run import search_file
    from surefoot.search.rebase import Rebase, Rounding

    with checked_options():
        method = Rebase(n=n, temperature=value_temperature, rounding=cast("Rounding", rounding), rule=rule)
    search_file("search rebase", method, files, writes, scores)
