"""``surefoot label mutants``: programs with one known fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo


class Mutants(Command):
    """Make programs with one known fault from reference solutions, with exact labels.

    Writes `traces.jsonl` and `labels.jsonl` into the directory: the step with the fault is -1, those before
    it are +1. Programs run in a sandbox; those that pass all hidden tests are counted and left out.

    Example: `surefoot label mutants problems.jsonl --per-problem 10 --out mutants/`
    """

    problems: Annotated[str, Flag(argument=True, transient=True)] = Field(
        description="File of problem records with tests and reference solutions, or `-` for standard input."
    )
    out: o.OutDirectory = Field(description="Directory for traces and labels.")
    per_problem: int = Field(default=10, ge=1, description="Most mutants of one problem, chosen at random.")
    segment: o.Segment = "python"
    sandbox: o.SandboxName = "bubblewrap"
    seed: o.Seed = 0

    def outputs(self) -> list[Path]:
        """Both files."""
        return [self.out / "traces.jsonl", self.out / "labels.jsonl"]

    def run(self) -> None:
        """Mutate, run the tests, write."""
        from surefoot.cli.runs import read_table
        from surefoot.errors import LabelError
        from surefoot.io.files import record_writer
        from surefoot.labelling.mutation import MutantReport, labelled_mutants
        from surefoot.protocols import LabelledTrace
        from surefoot.records import Problem, StepLabel, Trace
        from surefoot.sandbox import open_sandbox
        from surefoot.segment import segmenter

        problems = read_table(self.problems, Problem)
        report = MutantReport()
        self.out.mkdir(parents=True, exist_ok=True)
        with open_sandbox(self.sandbox) as sandbox:
            mutants: Iterator[LabelledTrace] = labelled_mutants(
                problems,
                sandbox,
                per_problem=self.per_problem,
                seed=self.seed,
                segmenter=segmenter(self.segment),
                report=report,
            )
            with (
                record_writer(self.out / "traces.jsonl", Trace) as traces,
                record_writer(self.out / "labels.jsonl", StepLabel) as labels,
            ):
                for mutant in mutants:
                    traces.write(mutant.trace)
                    for label in mutant.labels:
                        labels.write(label)
        echo(report.summary(), err=True)
        if not report.usable:
            raise LabelError(f"no mutant could be made: {report.summary()}")
