"""``surefoot quickstart``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.settings import Command, OptionGroup
from surefoot.cli.terminal import echo, echo_table
from surefoot.quickstart.config import QuickstartConfig

if TYPE_CHECKING:
    from surefoot.quickstart import Summary


class Quickstart(Command):
    """Run the whole pipeline on the built-in lab: sample, label, train, select, compare, report.

    Takes a few minutes on two cores, without network or GPU. If the command is stopped, the same command
    resumes. Ends with `summary.json` and `report.html` in the run directory.

    Example: `surefoot quickstart --out runs/quickstart`
    """

    out: o.OutDirectory = Field(default=Path("runs/quickstart"), description="Run directory.")
    workers: o.Workers = 2
    sizes: Annotated[QuickstartConfig, OptionGroup(omit=("training",))] = QuickstartConfig()

    def run(self) -> None:
        """Start or resume the run, and print its summary."""
        from surefoot.io import Run
        from surefoot.quickstart import Summary, run_quickstart
        from surefoot.work import Processes, progress_bars

        config = self.sizes.model_dump()
        with (
            Run.open(self.out, command="quickstart", config=config) as run,
            Processes(self.workers, threads=1) if self.workers > 1 else nullcontext() as engine,
            progress_bars() as progress,
        ):
            path = run_quickstart(run, self.sizes, progress, engine=engine)
        _print(Summary.model_validate_json(path.read_text()), self.out)


def _print(summary: Summary, out: Path) -> None:
    from surefoot.quickstart.summary import CURVES, rule_table

    sizes = list(summary.prm)
    echo_table(
        "Problems answered correctly, choosing among N samples",
        ["selection", *(f"N={size}" for size in sizes)],
        (
            [title, *(f"{getattr(summary, key)[size].value:.1%}" for size in sizes)]
            for key, title in CURVES.items()
        ),
    )
    echo_table(
        "PRM and ORM by every rule, with 95 % intervals",
        *rule_table(summary),
    )
    for finding in summary.findings:
        echo(f"• {finding}")
    echo(f"\n{summary.seconds['total']:.0f} s of work. Files: {out}, summary.json, report.html")
