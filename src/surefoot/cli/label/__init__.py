"""``surefoot label``: ways to label steps."""

from __future__ import annotations

import typer

from surefoot.cli.label.models import Critiques, Judge
from surefoot.cli.label.mutants import Mutants
from surefoot.cli.label.rollouts import MonteCarlo, Tree
from surefoot.cli.label.rules import Advantage, LabelConsensus, LabelExpert, RelativeProgress, Verify
from surefoot.cli.settings import add

app = typer.Typer(help="Label the steps of traces.", no_args_is_help=True)

add(app, "mc", MonteCarlo)
add(app, "tree", Tree)
add(app, "judge", Judge)
add(app, "verify", Verify)
add(app, "mutants", Mutants)
add(app, "expert", LabelExpert)
add(app, "consensus", LabelConsensus)
add(app, "advantage", Advantage)
add(app, "progress", RelativeProgress)
add(app, "critiques", Critiques)
