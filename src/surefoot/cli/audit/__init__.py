"""``surefoot audit``: the failures that reward models are known for, one file each."""

from __future__ import annotations

import typer

from surefoot.cli.audit.all import every
from surefoot.cli.audit.clean import clean
from surefoot.cli.audit.gaming import gaming
from surefoot.cli.audit.outcome import outcome
from surefoot.cli.audit.over_optimisation import over_optimisation
from surefoot.cli.audit.transfer import transfer

app = typer.Typer(help="Look for the known failures of step scorers.", no_args_is_help=True)


@app.callback()
def audit() -> None:
    """Look for the known failures of step scorers."""


app.command("gaming")(gaming)
app.command("outcome")(outcome)
app.command("clean")(clean)
app.command("transfer")(transfer)
app.command("over-optimisation")(over_optimisation)
app.command("all")(every)
