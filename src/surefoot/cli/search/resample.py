"""``surefoot search resample``."""

from __future__ import annotations

from typing import Annotated

import typer

from surefoot.cli.search import _options as s
from surefoot.cli.search._options import FileOptions, PolicyOptions, PrmOptions


def resample(
    files: FileOptions,
    writes: PolicyOptions,
    scores: PrmOptions,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Solutions.")] = 1,
    threshold: Annotated[
        float, typer.Option("--threshold", help="A step whose own score is below this is drawn again.")
    ] = 0.7,
    retries: Annotated[int, typer.Option("--retries", min=0, help="Times that a step is drawn again.")] = 3,
    budget: Annotated[
        int | None, typer.Option("--budget", min=0, help="Times in all that a problem's steps are.")
    ] = None,
    rule: s.Rule = "weighted_vote",
) -> None:
    """Accept a step or draw it again, while its score is too low (after Liao et al. 2025).

    Example: `surefoot search resample --problems problems.jsonl --prm prm --retries 3 --out results.jsonl`
    """
    from surefoot.cli._shared import checked_options
    from surefoot.cli.search._run import search_file
    from surefoot.search.resample import StepResampling

    with checked_options():
        method = StepResampling(n=n, threshold=threshold, retries=retries, budget=budget, rule=rule)
    search_file("search resample", method, files, writes, scores)
