"""The command line. Commands import what they need when they run, so that ``--help`` is quick."""

from __future__ import annotations

import sys

import typer

from surefoot.cli import convert, label, quickstart, sample, score, select, train
from surefoot.errors import SurefootError

app = typer.Typer(
    help="Process supervision: label steps, train reward models on them, choose better answers with them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)
app.command("quickstart")(quickstart.quickstart)
app.command("sample")(sample.sample)
app.add_typer(label.app, name="label")
app.add_typer(train.app, name="train")
app.command("score")(score.score)
app.command("select")(select.select)
app.command("convert")(convert.convert)


def main() -> None:
    """Run the command line. An error of the package is one sentence and exit status 1, not a traceback."""
    try:
        app()
    except SurefootError as error:
        print(f"surefoot: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    except KeyboardInterrupt:
        print("surefoot: interrupted; start the same command again to go on", file=sys.stderr)
        raise SystemExit(130) from None
