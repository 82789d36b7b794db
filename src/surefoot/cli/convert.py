"""``surefoot convert``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from surefoot.protocols import LabelledTrace
    from surefoot.sources import Neutral, WriteReport

WRITERS = ("records", "math-shepherd", "stepwise", "processbench", "prm800k-steps")


def convert(
    source: Annotated[str, typer.Argument(help="File to read; with --from records a directory.")],
    reader: Annotated[
        str,
        typer.Option(
            "--from",
            help="gsm8k, gsm8k-solutions, math500, math-shepherd, prm800k, prm800k-steps, processbench, "
            "stepwise, or records (problems, traces and labels as this package writes them).",
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", help="Directory for records; file for the other formats.")
    ],
    writer: Annotated[
        str, typer.Option("--to", help="records, math-shepherd, stepwise, processbench or prm800k-steps.")
    ] = "records",
    neutral: Annotated[
        str,
        typer.Option(
            "--neutral", help="What a 0 rating becomes in formats without one: positive, negative, drop."
        ),
    ] = "drop",
    threshold: Annotated[
        float,
        typer.Option("--threshold", help="Value labels above this are positive in formats with signs only."),
    ] = 0.0,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write records as Parquet instead of JSON Lines.")
    ] = False,
) -> None:
    """Convert between public formats and this package's records.

    Example: `surefoot convert phase1_train.jsonl.gz --from prm800k-steps --out prm800k/`

    Example: `surefoot convert prm800k/ --from records --to math-shepherd --neutral positive --out ms.jsonl`
    """
    from surefoot.errors import RecordError
    from surefoot.protocols import LabelledTrace, ProblemTrace
    from surefoot.records import Problem
    from surefoot.sources import read_source
    from surefoot.store import ReadReport

    if writer not in WRITERS:
        raise RecordError(f"--to is {writer!r}; choose from {', '.join(WRITERS)}")
    if reader == "records":
        items: list[Any] = _read_records(Path(source))
    else:
        report = ReadReport()
        items = list(read_source(reader, source, report=report))
        typer.echo(report.summary(), err=True)
    if not items:
        raise RecordError(f"{source}: nothing to convert")
    problems = [item if isinstance(item, Problem) else item.problem for item in items]
    traces = [item.trace for item in items if isinstance(item, LabelledTrace | ProblemTrace)]
    labelled = [item for item in items if isinstance(item, LabelledTrace)]
    if writer == "records":
        _write_records(Path(out), problems, traces, labelled, ".parquet" if parquet else ".jsonl")
    else:
        typer.echo(_write(writer, labelled, out, cast("Neutral", neutral), threshold).summary(), err=True)


def _read_records(folder: Path) -> list[LabelledTrace]:
    from surefoot.cli._shared import labelled, read_all
    from surefoot.errors import RecordError
    from surefoot.records import Problem, StepLabel, Trace

    def find(name: str) -> str:
        for ending in (".jsonl", ".parquet", ".jsonl.gz"):
            if (folder / f"{name}{ending}").exists():
                return str(folder / f"{name}{ending}")
        raise RecordError(f"{folder}: there is no {name}.jsonl or {name}.parquet")

    labels = read_all(find("labels"), StepLabel)
    return labelled(read_all(find("problems"), Problem), read_all(find("traces"), Trace), labels)


def _write_records(
    folder: Path, problems: list[Any], traces: list[Any], labelled: list[LabelledTrace], ending: str
) -> None:
    from surefoot.records import Problem, StepLabel, Trace
    from surefoot.store import write_records

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
    writer: str, items: Iterable[LabelledTrace], out: str, neutral: Neutral, threshold: float
) -> WriteReport:
    from surefoot.sources import (
        write_math_shepherd,
        write_prm800k_steps,
        write_processbench,
        write_stepwise,
    )

    match writer:
        case "math-shepherd":
            return write_math_shepherd(items, out, neutral=neutral, threshold=threshold)
        case "stepwise":
            return write_stepwise(items, out, neutral=neutral, threshold=threshold)
        case "processbench":
            return write_processbench(items, out, neutral=neutral, threshold=threshold)
        case _:
            return write_prm800k_steps(items, out)
