"""``surefoot quickstart``: from problems to a measured reward model in the lab."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from surefoot import quickstart
from surefoot.cli import options as o
from surefoot.cli.runs import print_report
from surefoot.cli.settings import Command, Flag, OptionGroup, command_line
from surefoot.cli.terminal import echo
from surefoot.io import Run
from surefoot.quickstart.config import QuickstartConfig
from surefoot.work import Processes, show_progress


class Quickstart(Command):
    """Run the whole pipeline on the built-in lab: sample, label, train, select, compare, report.

    Takes about two minutes on two idle cores, without network or GPU; with `--full`, the size of the
    published figures, up to an hour. If the command is stopped, the same command resumes. Ends with
    `summary.json` and `report.html` in the run directory.

    Example: `surefoot quickstart --out runs/quickstart`

    Example: `surefoot quickstart --full --out runs/full`
    """

    out: o.OutDirectory = Field(default=Path("runs/quickstart"), description="Run directory.")
    full: Annotated[bool, Flag(common=True)] = False
    """The sizes of the published figures, where no other size is given."""
    tables: Annotated[bool, Flag(transient=True)] = False
    """Also print the findings and the tables of the report."""
    workers: o.Workers = 2
    sizes: Annotated[QuickstartConfig, OptionGroup(omit=("training",))] = QuickstartConfig()

    def run(self) -> None:
        sizes = self.sizes.full() if self.full else self.sizes
        with (
            Run.open(self.out, command="quickstart", config=sizes.model_dump()) as run,
            Processes(self.workers, threads=1) if self.workers > 1 else nullcontext() as engine,
            show_progress() as progress,
        ):
            schedule = quickstart.Schedule(sizes, progress, partial(echo, err=True))
            command = shlex.join(command_line(self))
            summary = quickstart.run_quickstart(run, sizes, schedule, engine=engine, command=command)
            seconds = sum(run.seconds.values())
        tables = quickstart.report_of(summary).printed if self.tables else ()
        print_report(quickstart.first_screen(summary), [quickstart.limits(summary)[1], *tables])
        echo(f"{seconds:.0f} s of work; {self.out / 'report.html'}")
