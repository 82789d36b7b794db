"""``surefoot search``: one file a method."""

from __future__ import annotations

import typer

from surefoot.cli._groups import grouped
from surefoot.cli.search.beam import beam
from surefoot.cli.search.best_of_n import best_of_n, majority
from surefoot.cli.search.draw import draw
from surefoot.cli.search.dvts import dvts
from surefoot.cli.search.mcts import mcts
from surefoot.cli.search.optimal import optimal, plan
from surefoot.cli.search.particle import particle
from surefoot.cli.search.rebase import rebase
from surefoot.cli.search.resample import resample

app = typer.Typer(help="Search for solutions, guided by step scores.", no_args_is_help=True)

app.command("best-of-n")(grouped(best_of_n))
app.command("majority")(grouped(majority))
app.command("beam")(grouped(beam))
app.command("dvts")(grouped(dvts))
app.command("rebase")(grouped(rebase))
app.command("particle")(grouped(particle))
app.command("mcts")(grouped(mcts))
app.command("resample")(grouped(resample))
app.command("optimal")(grouped(optimal))
app.command("plan")(grouped(plan))
app.command("draw")(draw)
