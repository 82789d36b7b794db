"""``surefoot search``: one command for each method."""

from __future__ import annotations

import typer

from surefoot.cli.search import methods, plan
from surefoot.cli.settings import add

app = typer.Typer(help="Search for solutions, guided by step scores.", no_args_is_help=True)

add(app, "best-of-n", methods.SearchBestOfN)
add(app, "majority", methods.SearchMajority)
add(app, "beam", methods.Beam)
add(app, "dvts", methods.Dvts)
add(app, "rebase", methods.REBASE)
add(app, "particle", methods.Particle)
add(app, "mcts", methods.Mcts)
add(app, "resample", methods.SearchResample)
add(app, "revise", methods.SearchRevise)
add(app, "optimal", plan.Optimal)
add(app, "plan", plan.FindPlan)
add(app, "draw", methods.Draw)
