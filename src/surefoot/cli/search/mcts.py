"""``surefoot search mcts``."""

from __future__ import annotations

from typing import Annotated

import typer

from surefoot.cli.search import _options as s
from surefoot.cli.search._options import FileOptions, PolicyOptions, PrmOptions


def mcts(
    files: FileOptions,
    writes: PolicyOptions,
    scores: PrmOptions,
    paths: Annotated[int, typer.Option("--paths", min=1, help="Descents through the tree.")] = 16,
    expand: Annotated[int, typer.Option("--expand", min=1, help="Next steps drawn of a new prefix.")] = 4,
    rollout: Annotated[
        bool, typer.Option("--rollout", help="Below a new prefix write the rest in one piece.")
    ] = False,
    rule: s.Rule = "weighted_vote",
) -> None:
    """Monte Carlo tree search: PUCT with the reward model's scores as values (OpenR, Wang et al. 2024).

    Example: `surefoot search mcts --problems problems.jsonl --prm prm --paths 16 --out results.jsonl`
    """
    from surefoot.cli._shared import checked_options
    from surefoot.cli.search._run import search_file
    from surefoot.search.mcts import MCTS

    with checked_options():
        method = MCTS(paths=paths, expand=expand, rollout=rollout, rule=rule)
    search_file("search mcts", method, files, writes, scores)
