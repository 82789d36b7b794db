"""``surefoot train``: reward models, one kind a file."""

from __future__ import annotations

import typer

from surefoot.cli._groups import grouped
from surefoot.cli.train.implicit import implicit
from surefoot.cli.train.orm import orm
from surefoot.cli.train.prm import prm
from surefoot.cli.train.verifier import verifier

app = typer.Typer(help="Train reward models.", no_args_is_help=True)

app.command("prm")(grouped(prm))
app.command("orm")(grouped(orm))
app.command("implicit")(grouped(implicit))
app.command("verifier")(grouped(verifier))
