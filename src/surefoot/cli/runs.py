"""What a command does around its work: reads files, counts what it skips, and shows progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from surefoot.errors import RecordError, RunError
from surefoot.records import Problem, Record, StepLabel, Trace

if TYPE_CHECKING:
    from surefoot.evaluation.report import Table
    from surefoot.io import Run
    from surefoot.protocols import LabelledTrace, ProblemTrace

R = TypeVar("R", bound=Record)


def print_table(table: Table) -> None:
    """A table of a report on standard output; the first column is text, the others align right."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    from surefoot.stats import format_cell

    printed = RichTable(title=table.caption, title_justify="left")
    for number, heading in enumerate(table.headers):
        printed.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        printed.add_row(*(Text(format_cell(cell, table.spec)) for cell in row))
    Console(highlight=False).print(printed)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """One progress bar per stage, on standard error, with the remaining time."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, int] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)  # type: ignore[arg-type]

        yield update


@contextmanager
def checked_options() -> Iterator[None]:
    """Turn a value that a settings class refuses into ``RunError``, which names the option."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        named = [part for part in first["loc"] if isinstance(part, str)]  # not the place in a list
        option = f"--{named[-1]}".replace("_", "-") + ": " if named else ""
        raise RunError(f"{option}{first['msg'].removeprefix('Value error, ')}") from error
    except ValueError as error:
        raise RunError(str(error)) from error


def read_all(path: str, record: type[R]) -> list[R]:
    """All valid records of a file (``-`` = standard input); skipped lines are counted on standard error.

    Problems and traces may be in any form that ``surefoot import`` reads, which is then shown. A trace that
    comes twice is kept once and counted: twice, it would change every estimate over samples. Raises
    ``RecordError`` if there is no valid record, and for two different traces of one id.
    """
    from surefoot.io import ReadReport, read_records
    from surefoot.io.files import ENDINGS, needs

    report, records = ReadReport(), list[R]()
    if path == "-" or path.endswith(ENDINGS) or record not in (Problem, Trace):
        records = list(read_records(path if path == "-" else Path(path), record, report=report))
    if not records and path != "-" and (made := _imported(path, record)):
        return made
    report.require_some(needs(record))
    if report.bad_count:
        typer.echo(report.summary(), err=True)
    return _once(path, records)


def _once(path: str, records: list[R]) -> list[R]:
    """The records; of equal traces the first. Raises ``RecordError`` for two different traces of one id."""
    first: dict[str, Trace] = {}
    kept: list[R] = []
    for record in records:
        if isinstance(record, Trace):
            if first.setdefault(record.id, record) != record:
                raise RecordError(
                    f"{path}: two different traces have the id {record.id!r}; give each its own"
                )
            if first[record.id] is not record:
                continue
        kept.append(record)
    if repeated := len(records) - len(kept):
        fix = "samples of equal text need a 'sample' number each"
        typer.echo(f"{path}: {repeated} traces come again and are left out; {fix}", err=True)
    return kept


def _imported(path: str, record: type[R]) -> list[R]:
    """Problems or traces of a file in another form; empty if it has none, or they are not asked for."""
    from surefoot.formats import RECORDS, ImportContext, ImportSettings, detect_format, import_traces
    from surefoot.io import ReadReport

    if record not in (Problem, Trace):
        return []
    said: list[str] = []
    context = ImportContext(settings=ImportSettings(), report=ReadReport(), say=said.append)
    name = detect_format(path, context.settings)
    if name == RECORDS:
        return []
    found = list(import_traces(path, name, context))
    chosen = (one.problem if record is Problem else one.trace for one in found)
    made = {one.id: one for one in chosen if isinstance(one, record)}
    if made:
        typer.echo(f"{path} is read as {name}" + "".join(f"; {one}" for one in said), err=True)
        if context.report.bad_count:
            typer.echo(context.report.summary(), err=True)
    return list(made.values())


def is_held_out(problem_id: str, share: float) -> bool:
    """Whether a problem is among about ``share`` of all problems, chosen by their ids alone."""
    from surefoot.records import content_id

    return int(content_id("held out", problem_id), 16) < share * 2**64


def pair(problems: list[Problem], traces: list[Trace]) -> list[ProblemTrace]:
    """Traces with their problems; those that have no steps yet are cut, as ``segment_trace`` cuts by default.

    Traces that are empty, or without a problem, are left out and counted on standard error. Raises
    ``RecordError`` if no trace is left.
    """
    from surefoot.protocols import ProblemTrace

    by_id = {problem.id: problem for problem in problems}
    orphans = [trace for trace in traces if trace.problem_id not in by_id]
    traces = with_steps([trace for trace in traces if trace.problem_id in by_id])
    stepless = [trace for trace in traces if not trace.steps]
    if not any(trace.steps for trace in traces):
        raise _none_usable(problems, orphans, stepless)
    if orphans:
        typer.echo(
            f"{len(orphans)} traces skipped: their 'problem_id' is in no problem, first {orphans[0].id}",
            err=True,
        )
    if stepless:
        typer.echo(
            f"{len(stepless)} traces skipped: they have no steps (empty text?), first {stepless[0].id}",
            err=True,
        )
    return [ProblemTrace(problem=by_id[trace.problem_id], trace=trace) for trace in traces if trace.steps]


def with_steps(traces: list[Trace]) -> list[Trace]:
    """The traces, those without steps cut by ``cut_trace``; how many is shown."""
    from surefoot.segment import cut_trace

    made = [trace if trace.steps else cut_trace(trace) for trace in traces]
    new = [after for before, after in zip(traces, made, strict=True) if after.steps and not before.steps]
    if new:
        steps = sum(len(trace.steps) for trace in new)
        typer.echo(
            f"{len(new)} traces had no steps and were cut into {steps}, at blank lines or else at line ends; "
            "surefoot segment cuts in other ways",
            err=True,
        )
    return made


def _none_usable(problems: list[Problem], orphans: list[Trace], stepless: list[Trace]) -> RecordError:
    if orphans:
        return RecordError(
            f"none of the {len(orphans) + len(stepless)} traces is usable; the first, {orphans[0].id}, has "
            f"'problem_id' {orphans[0].problem_id!r}, which is none of the problems' ids (such as "
            f"{problems[0].id!r}); give the file of problems that the traces were made from"
        )
    return RecordError(
        f"none of the {len(stepless)} traces is usable; the first, {stepless[0].id}, has no text to cut into "
        "steps; give traces with a 'text' or with assistant 'messages'"
    )


def labelled(problems: list[Problem], traces: list[Trace], labels: list[StepLabel]) -> list[LabelledTrace]:
    """Traces with their problems and labels; labels of unknown traces are counted on standard error."""
    from surefoot.protocols import LabelledTrace

    of_trace: dict[str, list[StepLabel]] = {}
    for label in labels:
        of_trace.setdefault(label.trace_id, []).append(label)
    items = pair(problems, traces)
    known = {item.trace.id for item in items}
    if orphans := sum(len(rows) for trace, rows in of_trace.items() if trace not in known):
        typer.echo(f"{orphans} labels skipped: their 'trace_id' is in no usable trace", err=True)
    return [
        LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(of_trace.get(item.trace.id, ())))
        for item in items
    ]


@contextmanager
def one_writer(
    out: Path, command: str, settings: Mapping[str, Any], inputs: Mapping[str, Path]
) -> Iterator[Run | None]:
    """The run directory, held by the first of several processes; ``None`` in the others."""
    from surefoot.io import Run

    if int(os.environ.get("RANK", "0")) > 0:
        yield None
        return
    with Run.open(out, command=command, config=settings, inputs=inputs) as run:
        yield run


def file_inputs(**paths: str | None) -> dict[str, Path]:
    """The files among ``paths``; an option not given has none, standard input no content to compare."""
    return {name: Path(path) for name, path in paths.items() if path not in (None, "-")}
