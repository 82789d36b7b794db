"""``surefoot search particle``."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from surefoot.cli.search import _options as s
from surefoot.cli.search._options import FileOptions, PolicyOptions, PrmOptions


def particle(
    files: FileOptions,
    writes: PolicyOptions,
    scores: PrmOptions,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Particles: solutions side by side.")] = 16,
    sweeps: Annotated[
        int, typer.Option("--sweeps", min=1, help="More than one is particle Gibbs: one solution stays.")
    ] = 1,
    resampling: Annotated[
        str, typer.Option("--resampling", help="How particles are drawn anew: multinomial or systematic.")
    ] = "multinomial",
    rule: s.Rule = "best_of_n",
) -> None:
    """Particle filter: after each step solutions are drawn anew by their scores (Puri et al. 2025).

    Example: `surefoot search particle --problems problems.jsonl --prm prm --n 16 --out results.jsonl`
    """
    from surefoot.cli._shared import checked_options
    from surefoot.cli.search._run import search_file
    from surefoot.search.particle import ParticleFilter, Resampling

    with checked_options():
        method = ParticleFilter(n=n, sweeps=sweeps, resampling=cast("Resampling", resampling), rule=rule)
    search_file("search particle", method, files, writes, scores)
