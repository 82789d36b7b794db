"""``surefoot evaluate``: measure labels, scorers and searches, one file each."""

from __future__ import annotations

import typer

from surefoot.cli.evaluate.best_of_n import best_of_n
from surefoot.cli.evaluate.calibration import calibration
from surefoot.cli.evaluate.labels import labels
from surefoot.cli.evaluate.prmbench import prmbench
from surefoot.cli.evaluate.processbench import processbench

app = typer.Typer(help="Measure labels and scorers.", no_args_is_help=True)


@app.callback()
def evaluate() -> None:
    """Measure labels and scorers."""


app.command("labels")(labels)
app.command("processbench")(processbench)
app.command("prmbench")(prmbench)
app.command("best-of-n")(best_of_n)
app.command("calibration")(calibration)
