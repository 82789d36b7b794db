"""``surefoot evaluate``: measure labels, scorers and searches."""

from __future__ import annotations

import typer

from surefoot.cli.evaluate.benchmarks import PRMBench, ProcessBench
from surefoot.cli.evaluate.best_of_n import BestOfN
from surefoot.cli.evaluate.calibration import Calibration
from surefoot.cli.evaluate.labels import Labels
from surefoot.cli.settings import add

app = typer.Typer(help="Measure labels and scorers.", no_args_is_help=True)


@app.callback()
def evaluate() -> None:
    """Measure labels and scorers."""


add(app, "labels", Labels)
add(app, "processbench", ProcessBench)
add(app, "prmbench", PRMBench)
add(app, "best-of-n", BestOfN)
add(app, "calibration", Calibration)
