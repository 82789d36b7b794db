"""``surefoot quickstart``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.quickstart import Summary


def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", help="Run directory.")] = Path("runs/quickstart"),
    seed: o.Seed = 0,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="JSON file with other sizes; see docs/tutorial/1-quickstart.md."),
    ] = None,
) -> None:
    """Do the whole main job on the embedded small world: sample, label, train, choose, compare, report.

    Takes some minutes on two cores, without network or GPU. Stop it whenever you like; the same command
    resumes where it was. Ends with `summary.json` and `report.html` in the run directory.

    Example: `surefoot quickstart --out runs/quickstart`
    """
    from pydantic import ValidationError

    from surefoot.cli._shared import stages
    from surefoot.errors import RunError
    from surefoot.io import Run
    from surefoot.quickstart import QuickstartConfig, Summary, run_quickstart

    try:
        text = config.read_text() if config else "{}"
        sizes = QuickstartConfig.model_validate_json(text).model_copy(update={"seed": seed})
    except (ValidationError, OSError) as error:
        raise RunError(f"--config {config}: {error}") from error
    with Run.open(out, command="quickstart", config=sizes.model_dump()) as run, stages() as progress:
        path = run_quickstart(run, sizes, progress)
    _print(Summary.model_validate_json(path.read_text()), out)


def _print(summary: Summary, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from surefoot.quickstart.report import rule_table
    from surefoot.quickstart.summary import CURVES

    sizes = list(summary.prm)
    table = Table(title="Problems answered correctly, choosing among N samples")
    table.add_column("selection")
    for size in sizes:
        table.add_column(f"N={size}", justify="right")
    for key, title in CURVES.items():
        table.add_row(title, *(f"{getattr(summary, key)[size].value:.1%}" for size in sizes))
    console = Console()
    console.print(table)
    heads, rows = rule_table(summary)
    by_rule = Table(title="PRM and ORM by every rule, with 95 % intervals; level: the difference includes 0")
    for number, head in enumerate(heads):
        by_rule.add_column(head, justify="right" if number else "left")
    for row in rows:
        by_rule.add_row(*row)
    console.print(by_rule)
    for finding in summary.findings:
        console.print(f"• {finding}", highlight=False)
    console.print(
        f"\n{summary.seconds['total']:.0f} s of work. Files: {out}, summary.json, report.html",
        highlight=False,
    )
