"""The command line. Commands import what they need when they run, so that ``--help`` is quick."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from surefoot.cli import (
    audit,
    convert,
    evaluate,
    execute,
    imitate,
    import_export,
    label,
    quickstart,
    rl,
    sample,
    score,
    search,
    select,
    serve,
    serve_config,
    train,
)
from surefoot.cli.endings import TERMINATED
from surefoot.cli.settings import add
from surefoot.cli.terminal import echo
from surefoot.errors import IncompleteError, SurefootError
from surefoot.extras import sentence

INCOMPLETE = 3
"""Exit status of work that came to its end and is not complete: the output holds what succeeded."""
INTERRUPTED = 130
"""Exit status that typer makes of an interrupt from the keyboard."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from surefoot import __version__

        echo(f"surefoot {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Process supervision: label steps, train reward models on them, choose better answers with them."""


add(app, "quickstart", quickstart.Quickstart)
add(app, "import", import_export.Import)
add(app, "segment", import_export.SegmentTraces)
add(app, "sample", sample.Sample)
app.add_typer(label.app, name="label")
app.add_typer(train.app, name="train")
add(app, "rl", rl.RL)
add(app, "imitate", imitate.Imitate)
add(app, "expert-iteration", imitate.ExpertIteration)
add(app, "score", score.Score)
add(app, "execute", execute.Execute)
add(app, "select", select.Select)
app.add_typer(search.app, name="search")
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(audit.app, name="audit")
add(app, "export", import_export.Export)
add(app, "convert", convert.Convert)
app.add_typer(serve.app, name="serve")
add(app, "serve-config", serve_config.ServeConfig)


def main() -> None:
    """Run the command line. An error of the package, or of a file, is one sentence and a status of 1 or 3."""
    # one bar a stage is enough: transformers would draw its own for every model that it loads
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app()
    except (SurefootError, OSError) as error:
        echo(f"surefoot: {' '.join(str(error).split())}", err=True)
        raise SystemExit(INCOMPLETE if isinstance(error, IncompleteError) else 1) from error
    except ModuleNotFoundError as error:
        if (missing := sentence(error.name or "")) is None:
            raise
        echo(f"surefoot: this command needs {missing}", err=True)
        raise SystemExit(1) from error
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            echo("surefoot: interrupted; start the same command again to resume", err=True)
        raise
