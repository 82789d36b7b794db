"""``surefoot search dvts``."""

from __future__ import annotations

from typing import Annotated

import typer

from surefoot.cli.search import _options as s
from surefoot.cli.search._options import FileOptions, PolicyOptions, PrmOptions


def dvts(
    files: FileOptions,
    writes: PolicyOptions,
    scores: PrmOptions,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Draws a round, over all trees.")] = 16,
    expand: Annotated[
        int, typer.Option("--expand", min=1, help="Draws a round of each tree; there are n / expand trees.")
    ] = 4,
    lookahead: s.Lookahead = 0,
    penalize_repeats: s.PenalizeRepeats = False,
    rule: s.Rule = "weighted_vote",
) -> None:
    """DVTS: trees that do not compete, each of which keeps its best step (Beeching et al. 2024).

    Example: `surefoot search dvts --problems problems.jsonl --prm prm --n 16 --expand 4 --out results.jsonl`
    """
    from surefoot.cli._shared import checked_options
    from surefoot.cli.search._run import search_file
    from surefoot.search.dvts import DVTS

    with checked_options():
        method = DVTS(n=n, expand=expand, lookahead=lookahead, penalize_repeats=penalize_repeats, rule=rule)
    search_file("search dvts", method, files, writes, scores)
