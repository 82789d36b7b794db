"""``surefoot convert``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from surefoot.cli.settings import Command, Flag
from surefoot.labels import Neutral

if TYPE_CHECKING:
    from surefoot.formats import WriteReport
    from surefoot.protocols import LabelledTrace


class Convert(Command):
    """Convert between public formats and this package's records.

    Records are a directory with `problems`, `traces` and `labels`. Rows that cannot be read are counted on
    standard error with their line.

    Example: `surefoot convert phase1_train.jsonl.gz --from prm800k-steps --out prm800k/`

    Example: `surefoot convert prm800k/ --from records --to math-shepherd --neutral good --out ms.jsonl`
    """

    source: Annotated[str, Flag(argument=True)] = Field(
        description="File to read; with `--from records` a directory."
    )
    reader: Annotated[str, Flag(name="--from")] = Field(
        description="bigbench-mistake, gsm8k, gsm8k-solutions, label-studio, math500, math-aps, "
        "math-shepherd, prm800k, prm800k-steps, prmbench, prmbench-controls, processbench, "
        "stepwise, or records (problems, traces and labels as this package writes them)."
    )
    writer: Annotated[str, Flag(name="--to")] = Field(
        default="records",
        description="records, label-studio, math-aps, math-shepherd, prm800k, prm800k-steps, "
        "processbench or stepwise.",
    )
    out: Annotated[str, Flag(short="-o", output=True)] = Field(
        description="Directory for records; file for the other formats."
    )
    neutral: Neutral | None = Field(
        default=None,
        description="What a label of 0 becomes in formats that have two signs. Needed if there are such "
        "labels, since published readers disagree.",
    )
    threshold: float = Field(
        default=0.0, description="Value labels above this are good in formats that have signs only."
    )
    parquet: bool = Field(default=False, description="Write records as Parquet instead of JSON Lines.")

    def outputs(self) -> list[Path]:
        """The files of the directory, or the file."""
        if self.writer != "records":
            return super().outputs()
        ending = ".parquet" if self.parquet else ".jsonl"
        return [Path(self.out) / f"{name}{ending}" for name in ("problems", "traces", "labels")]

    def run(self) -> None:
        """Read, convert and write."""
        from surefoot.errors import RecordError
        from surefoot.formats import WRITERS, read_source
        from surefoot.io import ReadReport
        from surefoot.protocols import LabelledTrace, ProblemTrace
        from surefoot.records import Problem

        if self.writer != "records" and self.writer not in WRITERS:
            raise RecordError(f"--to is {self.writer!r}; choose from records, {', '.join(WRITERS)}")
        if self.reader == "records":
            items: Sequence[Any] = _read_records(Path(self.source))
        else:
            report = ReadReport()
            items = list(read_source(self.reader, self.source, report=report))
            report.require_some(f"is it a file of {self.reader}? surefoot import reads other shapes")
            typer.echo(report.summary(), err=True)
        if not items:
            raise RecordError(f"{self.source}: nothing to convert")
        problems = [item if isinstance(item, Problem) else item.problem for item in items]
        traces = [item.trace for item in items if isinstance(item, LabelledTrace | ProblemTrace)]
        labelled = [item for item in items if isinstance(item, LabelledTrace)]
        if self.writer == "records":
            _write_records(
                Path(self.out), problems, traces, labelled, ".parquet" if self.parquet else ".jsonl"
            )
            return
        if not labelled:
            raise RecordError(f"{self.source}: no labelled traces, which is what {self.writer} holds")
        report_of = _write(self.writer, labelled, self.out, self.neutral, self.threshold)
        typer.echo(report_of.summary(), err=True)
        if not report_of.written:
            raise RecordError(f"{self.out}: no row could be written; {report_of.summary()}")


def _read_records(folder: Path) -> Sequence[LabelledTrace]:
    from surefoot.cli.runs import labelled, read_table
    from surefoot.errors import RecordError
    from surefoot.records import Problem, StepLabel, Trace

    def find(name: str) -> str:
        for ending in (".jsonl", ".parquet", ".jsonl.gz"):
            if (folder / f"{name}{ending}").exists():
                return str(folder / f"{name}{ending}")
        raise RecordError(f"{folder}: there is no {name}.jsonl or {name}.parquet")

    labels = read_table(find("labels"), StepLabel)
    return labelled(read_table(find("problems"), Problem), read_table(find("traces"), Trace), labels)


def _write_records(
    folder: Path,
    problems: Sequence[Any],
    traces: Sequence[Any],
    labelled: Sequence[LabelledTrace],
    ending: str,
) -> None:
    from surefoot.io import write_records
    from surefoot.records import Problem, StepLabel, Trace

    folder.mkdir(parents=True, exist_ok=True)
    unique = list({problem.id: problem for problem in problems}.values())
    counts = {"problems": write_records(folder / f"problems{ending}", unique, record=Problem)}
    if traces:
        counts["traces"] = write_records(folder / f"traces{ending}", traces, record=Trace)
    if labelled:
        labels = [label for item in labelled for label in item.labels]
        counts["labels"] = write_records(folder / f"labels{ending}", labels, record=StepLabel)
    typer.echo(f"{folder}: " + ", ".join(f"{count} {name}" for name, count in counts.items()), err=True)


def _write(
    writer: str, items: Sequence[LabelledTrace], out: str, neutral: str | None, threshold: float
) -> WriteReport:
    """Raises ``RecordError`` for neutral labels without ``neutral``, if the format has two signs."""
    from surefoot.errors import RecordError
    from surefoot.formats import SIGN_WRITERS, WRITERS
    from surefoot.labels import is_neutral

    if writer not in SIGN_WRITERS:
        return WRITERS[writer](items, out)
    neutrals = sum(is_neutral(label) for item in items for label in item.labels)
    if neutrals and neutral is None:
        raise RecordError(
            f"{neutrals} labels are neutral (0), which {writer} does not have; say what they become with "
            "--neutral good, bad or drop"
        )
    return SIGN_WRITERS[writer](items, out, neutral=neutral or "drop", threshold=threshold)
