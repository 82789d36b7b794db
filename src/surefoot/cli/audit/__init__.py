"""``surefoot audit``: the failures that reward models are known for."""

from __future__ import annotations

import typer

from surefoot.cli.audit import commands as c
from surefoot.cli.settings import add

app = typer.Typer(help="Look for the known failures of step scorers.", no_args_is_help=True)


@app.callback()
def audit() -> None:
    """Look for the known failures of step scorers."""


add(app, "gaming", c.AuditGaming)
add(app, "outcome", c.AuditOutcome)
add(app, "clean", c.AuditClean)
add(app, "transfer", c.AuditTransfer)
add(app, "over-optimisation", c.AuditOverOptimisation)
add(app, "agent", c.AuditAgent)
add(app, "all", c.AuditAll)
