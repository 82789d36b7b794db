"""``surefoot label``: ways to label steps, one file each."""

from __future__ import annotations

import typer

from surefoot.cli.label.monte_carlo import monte_carlo

app = typer.Typer(help="Label the steps of traces.", no_args_is_help=True)


@app.callback()
def label() -> None:
    """Label the steps of traces."""


app.command("mc")(monte_carlo)
