"""Inputs of commands: files are read, and skipped records are counted on standard error."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from surefoot.cli.settings import Command, command_line
from surefoot.cli.terminal import echo, echo_table
from surefoot.errors import RecordError, RunError
from surefoot.records import Problem, Record, StepLabel, Trace, Usage

if TYPE_CHECKING:
    from surefoot.evaluation.frame import Origin
    from surefoot.evaluation.report import Table
    from surefoot.io import Run
    from surefoot.io.joins import JoinedTraces, LabelledTraces, LeftOut
    from surefoot.io.tables import RecordTable
    from surefoot.work import Job, MapResult, Rates

R = TypeVar("R", bound=Record)
T = TypeVar("T")

CHARACTERS_PER_TOKEN = 3.5
"""For texts without token counts."""


def print_table(table: Table) -> None:
    """Print a table of a report."""
    from surefoot.stats import format_cell

    rows = ([format_cell(cell, table.spec) for cell in row] for row in table.rows)
    echo_table(table.caption, table.headers, rows)


def origin_of(command: Command, json_name: str) -> Origin:
    """Header of a report: the files and models that the options name, the command, and the day."""
    from datetime import UTC, datetime

    from surefoot.evaluation.frame import Origin

    def named(*options: str) -> str:
        values = [value for option in options if (value := getattr(command, option, None))]
        texts = [text for value in values for text in ([value] if isinstance(value, str) else value)]
        return ", ".join(dict.fromkeys(Path(text).name for text in texts))

    return Origin(
        data=named("data", "domain", "processbench", "pool", "problems", "traces", "labels", "truth"),
        model=named("scorers", "sources", "verifier"),
        command=shlex.join(word for word in command_line(command) if word != "--tables"),
        json=json_name,
        date=datetime.now(UTC).date().isoformat(),
    )


def connections(policy: object) -> Callable[[], AbstractAsyncContextManager[object]]:
    """A context that keeps a server's connections open; an empty one for a policy in this process."""
    from surefoot.policies.openai import OpenAIPolicy

    return policy.connected if isinstance(policy, OpenAIPolicy) else nullcontext


def server_facts(policy: object) -> dict[str, Any]:
    """What the manifest says of a policy's server, if it was probed."""
    from surefoot.policies.openai import OpenAIPolicy

    probed = policy.probed if isinstance(policy, OpenAIPolicy) else None
    return {} if probed is None else {"server": probed.model_dump()}


@contextmanager
def checked_options() -> Iterator[None]:
    """Convert the error of an invalid setting to ``RunError``, naming the option."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        named = [part for part in first["loc"] if isinstance(part, str)]  # without list indices
        option = f"--{named[-1]}".replace("_", "-") + ": " if named else ""
        raise RunError(f"{option}{first['msg'].removeprefix('Value error, ')}") from error
    except ValueError as error:
        raise RunError(str(error)) from error


def read_table(path: str, record: type[R]) -> RecordTable[R]:
    """The valid records of a file (``-`` = standard input), on disk; bad lines are counted on standard error.

    ``path`` may be a pattern, a folder of shards or a URL. Problems and traces may be in any format that
    ``surefoot import`` reads; the format is then shown. Duplicates are left out and counted. Raises
    ``RecordError`` for a file without valid records, two different records with one id, and different scores
    of one trace by one scorer.
    """
    from surefoot.io import ReadReport, read_records
    from surefoot.io.files import needs
    from surefoot.io.sources import ENDINGS, files_of, shown
    from surefoot.io.tables import open_table

    report = ReadReport()
    table: RecordTable[R] | None = None
    source, path = path, shown(path)
    files = [] if source == "-" else files_of(source)
    if len(files) == 1 and files[0].name.endswith(".jsonl"):
        table = open_table(files[0], record, report=report)
    elif all(file.name.endswith(ENDINGS) for file in files) or record not in (Problem, Trace):
        table = open_table(path, record, records=read_records(source, record, report=report))
    if not table:
        if path != "-" and (imported := _imported(source, record)):
            return imported
        report.require_some(needs(record))
        raise RecordError(f"{path}: nothing to read; {needs(record)}")
    if report.bad_count:
        echo(report.summary(), err=True)
    if table.repeated and record is Trace:
        fix = "samples of equal text need a 'sample' number each"
        echo(f"{path}: {table.repeated} traces come again and are left out; {fix}", err=True)
    elif table.repeated:
        what = {Problem: "problems", StepLabel: "labels"}.get(record, "scores")
        echo(f"{path}: {table.repeated} {what} come again and are left out", err=True)
    return table


def _imported(path: str, record: type[R]) -> RecordTable[R] | None:
    """Problems or traces of a file in another form; ``None`` if it has none, or they are not asked for."""
    from surefoot.formats import RECORDS, ImportContext, ImportSettings, detect_format, import_traces
    from surefoot.io import ReadReport
    from surefoot.io.sources import shown
    from surefoot.io.tables import open_table

    if record not in (Problem, Trace):
        return None
    notes: list[str] = []
    context = ImportContext(settings=ImportSettings(), report=ReadReport(), say=notes.append)
    name = detect_format(path, context.settings)
    if name == RECORDS:
        return None
    imported = import_traces(path, name, context)
    items = (item.problem if record is Problem else item.trace for item in imported)
    path = shown(path)
    table = open_table(path, record, records=(item for item in items if isinstance(item, record)))
    if table:
        echo(f"{path} is read as {name}" + "".join(f"; {note}" for note in notes), err=True)
        if context.report.bad_count:
            echo(context.report.summary(), err=True)
    return table or None


def is_held_out(problem_id: str, share: float) -> bool:
    """Whether a problem is held out: about ``share`` of all problems, selected by a hash of the id."""
    from surefoot.records import content_id

    return int(content_id("held out", problem_id), 16) < share * 2**64


def pair(problems: Sequence[Problem], traces: Sequence[Trace]) -> JoinedTraces:
    """Traces with their problems. Traces without steps are cut as ``segment_trace`` does by default.

    Empty traces and traces without a problem are skipped and counted on standard error. Raises
    ``RecordError`` if no trace remains.
    """
    from surefoot.io.joins import join_traces
    from surefoot.segment import cut_trace

    items, left_out = join_traces(
        as_table(problems, "problems", Problem), as_table(traces, "traces", Trace), cut_trace
    )
    if left_out.cut:
        echo(
            f"{left_out.cut} traces without steps were cut into {left_out.new_steps}, at blank lines or "
            "else at line ends; surefoot segment cuts in other ways",
            err=True,
        )
    if not items:
        raise _none_usable(problems, left_out)
    if left_out.first_orphan:
        echo(
            f"{left_out.orphans} traces skipped: their 'problem_id' is in no problem, first "
            f"{left_out.first_orphan[0]}",
            err=True,
        )
    if left_out.stepless:
        echo(
            f"{left_out.stepless} traces without steps skipped (empty text?), first "
            f"{left_out.first_stepless}",
            err=True,
        )
    return items


def as_table(records: Sequence[R], name: str, record: type[R]) -> RecordTable[R]:
    """``records`` as a table; written to disk if they are not one yet."""
    from surefoot.io.tables import RecordTable, open_table

    return records if isinstance(records, RecordTable) else open_table(name, record, records=records)


def _none_usable(problems: Sequence[Problem], left_out: LeftOut) -> RecordError:
    if left_out.first_orphan:
        trace, problem = left_out.first_orphan
        return RecordError(
            f"none of the {left_out.orphans + left_out.stepless} traces is usable; the first, {trace}, has "
            f"'problem_id' {problem!r}, which is none of the problems' ids (such as {problems[0].id!r}); "
            "give the file of problems that the traces were made from"
        )
    return RecordError(
        f"none of the {left_out.stepless} traces is usable; the first, {left_out.first_stepless}, has no "
        "text to cut into steps; give traces with a 'text' or with assistant 'messages'"
    )


def labelled(
    problems: Sequence[Problem], traces: Sequence[Trace], labels: Sequence[StepLabel]
) -> LabelledTraces:
    """Traces with their problems and labels; labels of unknown traces are counted on standard error."""
    items = pair(problems, traces).labelled(as_table(labels, "labels", StepLabel))
    if strays := items.strays:
        echo(f"{strays} labels skipped: their 'trace_id' is in no usable trace", err=True)
    return items


def require_one_process(command: str) -> None:
    """Raise ``RunError`` if several processes were started for a command that works in one."""
    if (count := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise RunError(
            f"{command} works in one process, and {count} were started: run it without torchrun or "
            "accelerate launch"
        )


@contextmanager
def one_writer(
    out: Path, command: str, settings: Mapping[str, Any], inputs: Mapping[str, Path]
) -> Iterator[Run | None]:
    """The run directory, opened by the first of several processes; ``None`` in the others."""
    from surefoot.io import Run

    if int(os.environ.get("RANK", "0")) > 0:
        yield None
        return
    with Run.open(out, command=command, config=settings, inputs=inputs) as run:
        yield run


def file_inputs(**sources: str | None) -> dict[str, Path]:
    """The files that options name, each shard with its own name; standard input is left out.

    Raises ``OSError`` for a file that does not exist.
    """
    from surefoot.io.sources import files_of

    inputs: dict[str, Path] = {}
    for name, source in sources.items():
        if source is None or source == "-":
            continue
        files = files_of(source)
        for file in files:
            file.stat()
        inputs |= {name: files[0]} if len(files) == 1 else {f"{name}/{file.name}": file for file in files}
    return inputs


def map_pieces(
    command: Any, job: Job[R], items: Sequence[Any], size: int, *, out: str | None = None, **options: Any
) -> MapResult:
    """``map_resumable`` as the settings of ``command`` say: engine, token budget, failed work, output.

    A piece of work is ``size`` items. With a policy behind a server it is one item, or the neighbouring
    traces of one problem, which share rollouts, and many pieces run concurrently.
    """
    from surefoot.cli.options import open_engine
    from surefoot.io.joins import Joined
    from surefoot.policies.devices import LOADING
    from surefoot.work import Here, Pieces, map_resumable

    policy = getattr(command, "policy", None)
    server = policy is not None and bool(policy.base_url)
    if policy is not None and server:
        options.setdefault("engine", Here(policy.in_flight))
    elif "engine" not in options:
        where = getattr(command, "engine", "local"), getattr(command, "workers", 1)
        options["engine"] = open_engine(*where, getattr(command, "loading", LOADING))
    return map_resumable(
        job,
        Pieces(items, 1 if server else size, by_problem=server and isinstance(items, Joined)),
        command.out if out is None else out,
        token_budget=getattr(command, "token_budget", None),
        retry_failed=getattr(command, "retry_failed", False),
        **options,
    )


def predict_usage(
    items: Sequence[T],
    text_of: Callable[[T], str],
    *,
    replies: int,
    max_tokens: int,
    prompts: int | None = None,
) -> Usage:
    """Tokens for ``replies`` of at most ``max_tokens`` tokens per item, from the lengths of 1000 items.

    ``prompts`` is the number of times that an item's prompt is read, by default once per reply.
    """
    stride = max(1, len(items) // 1000)
    lengths = [len(text_of(items[at])) for at in range(0, len(items), stride)]
    calls = len(items) * (replies if prompts is None else prompts)
    return Usage(
        prompt_tokens=round(calls * sum(lengths) / len(lengths) / CHARACTERS_PER_TOKEN),
        completion_tokens=len(items) * replies * max_tokens,
        calls=calls,
    )


def say_prediction(what: str, usage: Usage, rates: Rates) -> None:
    """Show the tokens of ``what``, and the hours if the rates were given."""
    from surefoot.work.cost import predict_hours

    written = f", at most {usage.completion_tokens:,} written" if usage.completion_tokens else ""
    echo(
        f"{what}: about {usage.prompt_tokens:,} tokens read ({CHARACTERS_PER_TOKEN} characters each)"
        f"{written}, in {usage.calls:,} requests"
    )
    hours = predict_hours(usage, rates)
    if hours is not None:
        echo(f"{hours:,.2f} hours")
