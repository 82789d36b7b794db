"""``surefoot label``: ways to label steps, one file each."""

from __future__ import annotations

import typer

from surefoot.cli.label.advantage import advantage
from surefoot.cli.label.consensus import consensus
from surefoot.cli.label.critiques import critiques
from surefoot.cli.label.expert import expert
from surefoot.cli.label.judge import judge
from surefoot.cli.label.monte_carlo import monte_carlo
from surefoot.cli.label.tree import tree
from surefoot.cli.label.verify import verify

app = typer.Typer(help="Label the steps of traces.", no_args_is_help=True)


@app.callback()
def label() -> None:
    """Label the steps of traces."""


app.command("mc")(monte_carlo)
app.command("tree")(tree)
app.command("judge")(judge)
app.command("verify")(verify)
app.command("expert")(expert)
app.command("consensus")(consensus)
app.command("advantage")(advantage)
app.command("critiques")(critiques)
