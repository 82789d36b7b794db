"""``surefoot evaluate``: measure labels, scorers and searches."""

from __future__ import annotations

import typer

from surefoot.cli.evaluate.agents import EvaluateAgentProcessBench, EvaluateRuns, EvaluateWhoAndWhen
from surefoot.cli.evaluate.benchmarks import EvaluatePRMBench, EvaluateProcessBench
from surefoot.cli.evaluate.best_of_n import EvaluateBestOfN
from surefoot.cli.evaluate.calibration import EvaluateCalibration
from surefoot.cli.evaluate.labels import EvaluateLabels
from surefoot.cli.settings import add

app = typer.Typer(help="Measure labels and scorers.", no_args_is_help=True)


@app.callback()
def evaluate() -> None:
    """Measure labels and scorers."""


add(app, "labels", EvaluateLabels)
add(app, "processbench", EvaluateProcessBench)
add(app, "prmbench", EvaluatePRMBench)
add(app, "agent-processbench", EvaluateAgentProcessBench)
add(app, "runs", EvaluateRuns)
add(app, "who-and-when", EvaluateWhoAndWhen)
add(app, "best-of-n", EvaluateBestOfN)
add(app, "calibration", EvaluateCalibration)
