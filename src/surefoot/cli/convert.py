"""``surefoot convert``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

if TYPE_CHECKING:
    from surefoot.formats import WriteReport
    from surefoot.protocols import LabelledTrace


def convert(
    source: Annotated[str, typer.Argument(help="File to read; with --from records a directory.")],
    reader: Annotated[
        str,
        typer.Option(
            "--from",
            help="bigbench-mistake, gsm8k, gsm8k-solutions, label-studio, math500, math-aps, math-shepherd, "
            "prm800k, prm800k-steps, prmbench, prmbench-controls, processbench, stepwise, or records "
            "(problems, traces and labels as this package writes them).",
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", help="Directory for records; file for the other formats.")
    ],
    writer: Annotated[
        str,
        typer.Option(
            "--to",
            help="records, bigbench-mistake, label-studio, math-aps, math-shepherd, prm800k, prm800k-steps, "
            "prmbench, processbench or stepwise.",
        ),
    ] = "records",
    neutral: Annotated[
        str | None,
        typer.Option(
            "--neutral",
            help="What a 0 rating becomes in formats with two signs: good, bad or drop. Needed "
            "where there are such ratings, as published readers disagree.",
        ),
    ] = None,
    threshold: Annotated[
        float,
        typer.Option("--threshold", help="Value labels above this are good in formats with signs only."),
    ] = 0.0,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write records as Parquet instead of JSON Lines.")
    ] = False,
) -> None:
    """Convert between public formats and this package's records.

    Example: `surefoot convert phase1_train.jsonl.gz --from prm800k-steps --out prm800k/`

    Example: `surefoot convert prm800k/ --from records --to math-shepherd --neutral good --out ms.jsonl`
    """
    from surefoot.errors import RecordError
    from surefoot.formats import WRITERS, Neutral, read_source
    from surefoot.io import ReadReport
    from surefoot.protocols import LabelledTrace, ProblemTrace
    from surefoot.records import Problem

    if writer != "records" and writer not in WRITERS:
        raise RecordError(f"--to is {writer!r}; choose from records, {', '.join(WRITERS)}")
    if neutral not in (None, *get_args(Neutral)):
        raise RecordError(f"--neutral is {neutral!r}; choose from {', '.join(get_args(Neutral))}")
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
    if writer != "records" and not labelled:
        raise RecordError(f"{source}: no labelled traces, which is what {writer} holds")
    if writer == "records":
        _write_records(Path(out), problems, traces, labelled, ".parquet" if parquet else ".jsonl")
    else:
        typer.echo(_write(writer, labelled, out, neutral, threshold).summary(), err=True)


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
    writer: str, items: list[LabelledTrace], out: str, neutral: str | None, threshold: float
) -> WriteReport:
    """Raises ``RecordError`` if the format has two signs, there are neutral labels and no policy for them."""
    from surefoot.errors import RecordError
    from surefoot.formats import SIGN_WRITERS, WRITERS

    if writer not in SIGN_WRITERS:
        return WRITERS[writer](items, out)
    neutrals = sum(
        label.kind == "correctness" and label.value == 0 for item in items for label in item.labels
    )
    if neutrals and neutral is None:
        raise RecordError(
            f"{neutrals} labels are neutral (0), which {writer} does not have; say what they become with "
            "--neutral good, bad or drop"
        )
    return SIGN_WRITERS[writer](items, out, neutral=neutral or "drop", threshold=threshold)
