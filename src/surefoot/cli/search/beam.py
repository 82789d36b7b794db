"""``surefoot search beam``."""

from __future__ import annotations

from typing import Annotated

import typer

from surefoot.cli.search import _options as s
from surefoot.cli.search._options import FileOptions, PolicyOptions, PrmOptions


def beam(
    files: FileOptions,
    writes: PolicyOptions,
    scores: PrmOptions,
    width: Annotated[int, typer.Option("--width", min=1, help="Prefixes kept after each round.")] = 4,
    expand: Annotated[int, typer.Option("--expand", min=1, help="Next steps drawn of each.")] = 4,
    lookahead: s.Lookahead = 0,
    retire_finished: Annotated[
        bool,
        typer.Option(
            "--retire-finished",
            help="Finished solutions leave their places; go on until all have ended.",
        ),
    ] = False,
    penalize_repeats: s.PenalizeRepeats = False,
    rule: s.Rule = "weighted_vote",
) -> None:
    """Beam search: draw next steps, keep the best prefixes, go on with them (Snell et al. 2024).

    With `--lookahead` a prefix is judged by the score at the end of so many further greedy steps.

    Example: `surefoot search beam --problems problems.jsonl --prm prm --width 4 --expand 4
    --out results.jsonl --trees trees.jsonl`
    """
    from surefoot.cli._shared import checked_options
    from surefoot.cli.search._run import search_file
    from surefoot.search.beam import BeamSearch

    with checked_options():
        method = BeamSearch(
            width=width,
            expand=expand,
            lookahead=lookahead,
            retire_finished=retire_finished,
            penalize_repeats=penalize_repeats,
            rule=rule,
        )
    search_file("search beam", method, files, writes, scores)
