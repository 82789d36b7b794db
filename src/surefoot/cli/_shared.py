"""What several commands need: progress bars, reading with a count of what was skipped, policies by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import typer

from surefoot.errors import PolicyError, RecordError, RunError
from surefoot.records import Problem, Record, StepLabel, Trace

if TYPE_CHECKING:
    from pydantic import BaseModel

    from surefoot.answers import AnswerChecker, AnswerStyle, Grader
    from surefoot.io import Run
    from surefoot.models.kinds.verifier_format import VerifierFormat
    from surefoot.protocols import LabelledTrace, Policy, ProblemTrace

R = TypeVar("R", bound=Record)
M = TypeVar("M", bound="BaseModel")


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """One progress bar a stage, on standard error, with the time that is left."""
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


def choice(option: str, value: str, *choices: str) -> None:
    """Raise ``RunError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise RunError(f"{option} is {value!r}; choose {', '.join(choices[:-1])} or {choices[-1]}")


def read_all(path: str, record: type[R]) -> list[R]:
    """All good records of a file (``-`` = standard input); what was skipped is said on standard error.

    Raises ``RecordError`` if there is no good record.
    """
    from surefoot.io import ReadReport, read_records

    report = ReadReport()
    records = list(read_records(path if path == "-" else Path(path), record, report=report))
    if report.bad or report.bad_count:
        typer.echo(report.summary(), err=True)
    if not records:
        raise RecordError(
            f"{path}: no usable record; expected one {record.__name__} a line, see docs/reference/formats.md"
        )
    return records


def is_held_out(problem_id: str, share: float) -> bool:
    """Whether a problem is among about ``share`` of all problems, chosen by their ids alone."""
    from surefoot.records import content_id

    return int(content_id("held out", problem_id), 16) < share * 2**64


def pair(problems: list[Problem], traces: list[Trace]) -> list[ProblemTrace]:
    """Traces with their problems; traces without steps or problem are left out, counted on standard error."""
    from surefoot.protocols import ProblemTrace

    by_id = {problem.id: problem for problem in problems}
    orphans = [trace for trace in traces if trace.problem_id not in by_id]
    stepless = [trace for trace in traces if trace.problem_id in by_id and not trace.steps]
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
    return [
        ProblemTrace(problem=by_id[trace.problem_id], trace=trace)
        for trace in traces
        if trace.problem_id in by_id and trace.steps
    ]


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


def checker(equality: str) -> AnswerChecker:
    """An answer checker by name. Raises ``AnswerError`` for an unknown one."""
    from surefoot.answers import AnswerChecker

    return AnswerChecker(cast("Literal['math', 'numeric', 'exact']", equality))


@contextmanager
def grader(extract: str, equality: str) -> Iterator[Grader]:
    """The grader of ``--extract`` and ``--equality``; says at the end what could not be compared."""
    from surefoot.answers import Grader

    with checker(equality) as comparing:
        yield Grader(checker=comparing, styles=cast("tuple[AnswerStyle, ...]", tuple(extract.split(","))))
        for reason, count in comparing.failures.items():
            typer.echo(f"{count} answers could not be compared: {reason}", err=True)


def open_policy(
    name: str,
    *,
    base_url: str | None,
    chat: bool,
    concurrency: int,
    batch_size: int,
    device: str,
    dialect: str = "openai",
    timeout: float = 120.0,
    extra_body: Mapping[str, Any] | None = None,
) -> Policy:
    """``lab``, a checkpoint directory or hub name, or with ``base_url`` a server's model.

    ``extra_body`` goes into every request to a server. Raises ``PolicyError`` for an unknown dialect, or one
    other than ``openai`` without ``base_url``.
    """
    if base_url:
        from surefoot.policies.openai import OpenAIPolicy

        return OpenAIPolicy(
            model=name,
            base_url=base_url,
            mode="chat" if chat else "completions",
            dialect=cast("Literal['openai', 'vllm']", dialect),
            concurrency=concurrency,
            timeout_s=timeout,
            extra_body=extra_body,
        )
    if dialect != "openai":
        raise PolicyError(f"--dialect {dialect} is for a server; give its address with --base-url")
    from surefoot.lab.checkpoints import POLICY
    from surefoot.policies.transformers import TransformersPolicy

    return TransformersPolicy.from_pretrained(
        POLICY if name == "lab" else name, batch_size=batch_size, device=device
    )


def verifier_format(path: str | None) -> VerifierFormat:
    """The texts of ``--format``, ThinkPRM's without. Raises ``RunError`` for a file that is none."""
    from surefoot.models.kinds.verifier_format import VerifierFormat

    return VerifierFormat() if path is None else settings_file("--format", path, VerifierFormat)


def settings_file(option: str, path: str | Path, kind: type[M]) -> M:
    """Settings from the JSON file of an option. Raises ``RunError``, which names option, file and field."""
    from pydantic import ValidationError

    try:
        return kind.model_validate_json(Path(path).read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise RunError(f"{option} {path}: {where + ': ' if where else ''}{said}") from error


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
