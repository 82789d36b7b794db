"""``surefoot evaluate``: measure labels, scorers and searches, one file each."""

from __future__ import annotations

import typer

from surefoot.cli.evaluate.labels import labels

app = typer.Typer(help="Measure labels and scorers.", no_args_is_help=True)


@app.callback()
def evaluate() -> None:
    """Measure labels and scorers."""


app.command("labels")(labels)
