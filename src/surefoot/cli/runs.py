"""Inputs of commands: files are read, and skipped records are counted on standard error."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from surefoot import formats, stats
from surefoot.cli.options import JudgeSettings, PolicySettings, lab_policy
from surefoot.cli.settings import Command, Flag, command_line, options_of
from surefoot.cli.terminal import echo, echo_table, echo_wrapped, note, note_count
from surefoot.errors import RecordError, ScoreError, SurefootError, counted
from surefoot.formats.rows import trace_memory
from surefoot.io import ReadReport, Run, atomic_file, read_records
from surefoot.io.files import RecordWriter, blocks, needs, record_writer
from surefoot.io.lineage import model_hashes, portable, write_outputs
from surefoot.io.runs import make_manifest
from surefoot.io.sources import ENDINGS, files_of, names_files
from surefoot.io.tables import Joined, JoinedTraces, LabelledTraces, RecordTable, join_traces, open_table
from surefoot.lab.checkpoints import PRM
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace, Usage, content_id
from surefoot.segment import cut_trace
from surefoot.work import Engine, Here, Job, MapResult, Pieces, Progress, map_resumable

if TYPE_CHECKING:
    from surefoot.evaluation.columns import StepLayout
    from surefoot.evaluation.report import FirstScreen, Origin, Table
    from surefoot.evaluation.step_scores import TraceScores

R = TypeVar("R", bound=Record)
T = TypeVar("T")

CHARACTERS_PER_TOKEN = 3.5
"""For texts without token counts."""


def print_report(first: FirstScreen, parts: Iterable[str | Table]) -> None:
    """Print the first screen of a report, then paragraphs and tables."""
    for line in first.lines():
        echo_wrapped(line, indent="  ")
    for part in parts:
        if isinstance(part, str):
            echo_wrapped(part)
        else:
            rows = ([stats.format_cell(cell, part.spec) for cell in row] for row in part.rows)
            echo_table(part.caption, part.headers, rows)


def origin_of(command: Command, json_name: str) -> Origin:
    """Header of a report: the files and models that the options name, the command, and the day."""

    from surefoot.evaluation.report import Origin

    def named(flags: Callable[[Flag], bool]) -> str:
        values = [
            getattr(command, option.path[0]) or ()
            for option in options_of(type(command))
            if flags(option.flag)
        ]
        texts = [text for value in values for text in ([value] if isinstance(value, str) else value)]
        return ", ".join(dict.fromkeys(Path(text).name for text in texts))

    return Origin(
        data=named(lambda flag: flag.file and not flag.scorer),
        model=named(lambda flag: flag.scorer),
        command=shlex.join(word for word in command_line(command) if word != "--tables"),
        json=json_name,
        date=datetime.now(UTC).date().isoformat(),
    )


def read_table(path: str, record: type[R], *, change: Callable[[R], R] | None = None) -> RecordTable[R]:
    """The valid records of a file (``-`` = standard input), on disk; bad lines are counted on standard error.

    ``change`` is applied to each record before it is stored. Each is then parsed only once.

    ``path`` may be a pattern or a folder of shards. Problems and traces may be in any format that
    ``surefoot import`` reads; the format is then shown. Duplicates are left out and counted. Raises
    ``RecordError`` for a file without valid records, two different records with one id, and different scores
    of one trace by one scorer.
    """
    report = ReadReport()
    table: RecordTable[R] | None = None
    files = [] if path == "-" else files_of(path)

    def changed(records: Iterator[R]) -> Iterator[R]:
        if change is None:
            return records
        read = blocks(records, lambda record: trace_memory(record) if isinstance(record, Trace) else 0)
        return chain.from_iterable(list(map(change, block)) for block in read)

    if len(files) == 1 and files[0].name.endswith(".jsonl") and change is None:
        table = open_table(files[0], record, report=report)
    elif all(file.name.endswith(ENDINGS) for file in files) or record not in (Problem, Trace):
        table = open_table(path, record, records=changed(read_records(path, record, report=report)))
    if not table:
        if path != "-" and (imported := _imported(path, record, changed)):
            return imported
        report.require_some(needs(record))
        raise RecordError(f"{path}: nothing to read; {needs(record)}")
    show_skipped(report)
    if table.repeated and record is Trace:
        fix = "samples of equal text need a 'sample' number each"
        note(f"{path}: {counted(table.repeated, 'trace comes', 'traces come')} again: left out; {fix}")
    elif table.repeated:
        what = {Problem: "problem", StepLabel: "label"}.get(record, "score")
        note(f"{path}: {counted(table.repeated, f'{what} comes', f'{what}s come')} again: left out")
    return table


def read_step_scores(path: str, layout: StepLayout) -> TraceScores:
    """Scores of one scorer, or labels as scores, aligned with the steps of traces.

    Raises ``ScoreError`` for scores of several scorers, or of other steps.
    """
    from surefoot.evaluation.columns import LabelFile, holds_labels
    from surefoot.evaluation.step_scores import label_scores, trace_scores

    try:
        if path == "-":
            return trace_scores(read_table(path, StepScores), layout)
        if holds_labels(path):
            labels = LabelFile(path)
            scores = label_scores(labels, layout)
            note_left_out(labels)
            return scores
        report = ReadReport()
        scores = trace_scores(read_records(path, StepScores, report=report), layout)
    except ScoreError as error:
        raise ScoreError(f"{path}: {error}") from error
    if scores.repeated:
        return trace_scores(read_table(path, StepScores), layout)
    show_skipped(report)
    return scores


def show_skipped(report: ReadReport) -> None:
    """Report invalid rows on standard error."""
    if report.bad_count:
        note(report.summary())


def note_left_out(*sources: Any) -> None:
    """Show how many lines and labels of the label files among ``sources`` were left out."""
    from surefoot.evaluation.columns import LabelFile

    for source in [source for source in sources if isinstance(source, LabelFile)]:
        show_skipped(source.report)
        if source.repeated:
            note(f"{source.path}: {counted(source.repeated, 'label comes', 'labels come')} again: left out")


def _imported(
    path: str, record: type[R], changed: Callable[[Iterator[R]], Iterator[R]]
) -> RecordTable[R] | None:
    """Problems or traces of a file in another form; ``None`` if it has none, or they are not asked for."""
    if record not in (Problem, Trace):
        return None
    notes: list[str] = []
    settings = formats.ImportSettings()
    context = formats.ImportContext(settings=settings, report=ReadReport(), say=notes.append, failed=[])
    name = formats.detect_format(path, context.settings)
    if name == formats.RECORDS:
        return None
    imported = formats.import_traces(path, name, context)
    items = (item.problem if record is Problem else item.trace for item in imported)
    table = open_table(path, record, records=changed(item for item in items if isinstance(item, record)))
    if table:
        note(f"{path} is read as {name}" + "".join(f"; {note}" for note in notes))
        # problems and traces are often read from one file, whose account comes with the traces
        account = context.account() if record is Trace else [context.report.summary()]
        for text in account if record is Trace or context.report.bad_count else ():
            note(text)
    return table or None


def is_held_out(problem_id: str, share: float) -> bool:
    """Whether a problem is held out: about ``share`` of all problems, selected by a hash of the id."""
    return int(content_id("held out", problem_id), 16) < share * 2**64


def trained_on(models: Iterable[str], problems: Iterable[Problem]) -> list[str]:
    """A warning for each model that was trained on some of the problems, as far as it says."""
    from surefoot.models.loading import training_problems

    by_model = {name: hashes for name in models if (hashes := training_problems(name))}
    texts = {content_id(problem.text) for problem in problems} if by_model else set()
    return [
        f"{name} was trained on {len(texts & hashes)} of {counted(len(texts), 'problem')}: scores too good"
        for name, hashes in by_model.items()
        if texts & hashes
    ]


def pair(problems: str | Sequence[Problem], traces: str | Sequence[Trace]) -> JoinedTraces:
    """Traces with their problems, of files or of records.

    Traces without steps are cut as ``segment_trace`` does by default. Empty traces and traces without a
    problem are skipped and counted on standard error. Raises ``RecordError`` if no trace remains.
    """
    problems, traces = as_table(problems, Problem), as_table(traces, Trace)
    items, left_out = join_traces(problems, traces, cut_trace)
    note_count(
        left_out.cut,
        "trace",
        f"without steps cut into {left_out.new_steps}, at blank lines or else at line ends; surefoot segment "
        "cuts in other ways",
    )
    if items and left_out.first_orphan:
        note(
            f"{counted(left_out.orphans, 'trace')} skipped: their 'problem_id' is in no problem, first "
            f"{left_out.first_orphan[0]}"
        )
    elif left_out.first_orphan:
        trace, problem = left_out.first_orphan
        raise RecordError(
            f"none of the {left_out.orphans + left_out.stepless} traces is usable; the first, {trace}, has "
            f"'problem_id' {problem!r}, which is none of the problems' ids (such as {problems[0].id!r}); "
            "give the file of problems that the traces were made from"
        )
    elif not items:
        raise RecordError(
            f"none of the {left_out.stepless} traces is usable; the first, {left_out.first_stepless}, has no "
            "text to cut into steps; give traces with a 'text' or with assistant 'messages'"
        )
    first = f"without steps skipped (empty text?), first {left_out.first_stepless}"
    note_count(left_out.stepless, "trace", first)
    return items


def as_table(records: str | Sequence[R], record: type[R]) -> RecordTable[R]:
    """The records of a file, or ``records`` on disk."""
    if isinstance(records, str):
        return read_table(records, record)
    return (
        records if isinstance(records, RecordTable) else open_table(record.__name__, record, records=records)
    )


def labelled(
    problems: str | Sequence[Problem], traces: str | Sequence[Trace], labels: str | Sequence[StepLabel]
) -> LabelledTraces:
    """Traces with their problems and labels; labels of unknown traces are counted on standard error."""
    table = as_table(labels, StepLabel)
    items = pair(problems, traces).labelled(table)
    note_count(items.strays, "label", "skipped: their 'trace_id' is in no usable trace")
    return items


class RecordFiles:
    """``NAME.jsonl`` of records by name in a directory, each opened with its first record."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, ExitStack()
        self._writers: dict[str, RecordWriter] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)

    def write(self, **records: Iterable[Record]) -> None:
        """Add records to the file of each name."""
        for name, of_name in records.items():
            for record in of_name:
                if name not in self._writers:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    file = record_writer(self._folder / f"{name}.jsonl")
                    self._writers[name] = self._files.enter_context(file)
                self._writers[name].write(record)

    def count(self, name: str) -> int:
        """Number of records that were written."""
        return self._writers[name].count if name in self._writers else 0


@contextmanager
def open_run(command: Any, **config: Any) -> Iterator[Run | None]:
    """The run directory ``out``, opened by the first of several processes; ``None`` in the others.

    ``config`` is what results depend on in addition to the settings and files of the command.
    """
    if int(os.environ.get("RANK", "0")) > 0:
        yield None
        return
    settings = {**command.resolved(), **config}
    with Run.open(command.out, command=command.path(), config=settings, inputs=input_files(command)) as run:
        yield run


def input_files(command: Command) -> dict[str, Path]:
    """The files that options name, each shard with its own name, and the reward model's files.

    Standard input, the lab and data sets of the hub are left out. Raises ``OSError`` for a file that does not
    exist.
    """
    inputs: dict[str, Path] = {}
    for option in options_of(type(command)):
        name, source = option.path[0], getattr(command, option.path[0])
        if not option.flag.file or source in (None, "", "-", "lab"):
            continue
        repeated = isinstance(source, tuple)
        for text in map(str, source if repeated else [source]):
            label, equals, path = text.partition("=") if repeated else ("", "", text)
            path = path or text
            is_data = names_files(path) or (Path(path).is_dir() and _model_directory(path, "") is None)
            if not is_data and (repeated or name == "source"):
                continue  # a checkpoint, whose files are recorded as a model's, a server, or a hub's data set
            files = files_of(path)
            for file in files:
                file.stat()
            where = f"{name}/{label if equals else Path(text).name}" if repeated else name
            distinct = len({file.name for file in files}) == len(files)
            several = {f"{where}/{file.name if distinct else file}": file for file in files}
            inputs |= several if len(files) > 1 else {where: files[0]}
    for settings in vars(command).values():
        inputs |= settings.files() if isinstance(settings, JudgeSettings) else {}
    return inputs


def models_of(command: Command) -> dict[str, dict[str, str]]:
    """SHA-256 of the files of each model in a directory that the options name, by its path.

    A model of the lab is named by its place in the package.
    """
    models: dict[str, dict[str, str]] = {}
    for option in options_of(type(command)):
        values: Any = command
        for name in option.path:
            values = getattr(values, name, None)
        for value in values if isinstance(values, tuple) else [values]:
            if isinstance(value, str | Path) and not (option.flag.output or option.flag.comma):
                folder = _model_directory(str(value).rpartition("=")[2], option.path[-1])
                if folder is not None:
                    models[portable(folder)] = model_hashes(folder)
    return models


_SHIPPED: Mapping[str, Callable[[str], str | Path]] = {
    **dict.fromkeys(("base", "reference", "policy", "name", "prover"), lab_policy),
    "names": lambda name: PRM if name == "lab" else name,
}
"""What the lab's names mean, by option."""


def _model_directory(value: str, option: str) -> Path | None:
    """The directory of a model that a setting names, if it does."""
    named = _SHIPPED.get(option)
    if named and value == "lab":
        return Path(named(value))
    folder = Path(value)
    is_model = any((folder / name).is_file() for name in ("surefoot.json", "config.json"))
    return folder if value and is_model else None


@contextmanager
def recorded(command: Command) -> Iterator[None]:
    """Record the hashes of inputs, models and outputs of ``command``, which the block runs.

    Also if it ends incomplete. Outputs that it did not touch keep their record.
    """
    started = time.time_ns()
    # compared with itself, not with the clock, behind which a file's time may lag by a tick of the kernel
    earlier = {path: _newest(path) for path in command.outputs()}

    def record() -> None:
        outputs = [path for path in command.outputs() if _newest(path) > earlier.get(path, 0)]
        if outputs and int(os.environ.get("RANK", "0")) == 0:
            inputs = {name: path for name, path in input_files(command).items() if not path.is_fifo()}
            changed = [name for name, path in inputs.items() if path.stat().st_mtime_ns > started]
            facts = {"changed_while_running": changed} if changed else {}
            manifest = make_manifest(command.path(), command.resolved(), inputs)
            manifest["models"] |= models_of(command)
            write_outputs(outputs, manifest | facts)

    try:
        yield
    except SurefootError:
        record()
        raise
    record()


def _newest(path: Path) -> int:
    """When ``path``, or a file in it, was written, in nanoseconds; 0 if it does not exist."""
    files = path.rglob("[!.]*") if path.is_dir() else [path]
    return max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)


def map_pieces(
    command: Command,
    job: Job[R],
    items: Sequence[Any],
    size: int,
    out: str,
    *,
    policy: PolicySettings | None = None,
    engine: Engine | None = None,
    by_problem: bool = False,
    token_budget: int | None = None,
    retry_failed: bool = False,
    on_line: Callable[[bytes], object] | None = None,
    progress: Progress | None = None,
) -> MapResult:
    """``map_resumable`` into the file ``out``, with the settings and input files of ``command``.

    The manifest has these, and those that ``job`` has in addition. A piece of work is ``size`` items, or with
    ``by_problem`` the neighbouring traces of ``size`` problems. With a ``policy`` behind a server it is one
    item, or the neighbouring traces of one problem, which share rollouts, and many pieces run concurrently;
    without one, ``engine`` does the pieces.
    """
    server = policy is not None and bool(policy.base_url)
    if policy is not None and server:
        engine = Here(policy.in_flight)
    job = replace(
        job,
        command=command.path(),
        config={**command.resolved(), **job.config},
        inputs={**input_files(command), **job.inputs},
    )
    return map_resumable(
        job,
        Pieces(items, 1 if server else size, by_problem=by_problem or (server and isinstance(items, Joined))),
        out,
        engine=engine,
        token_budget=token_budget,
        retry_failed=retry_failed,
        on_line=on_line,
        progress=progress,
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


def say_prediction(what: str, usage: Usage, money: str = "") -> None:
    """Show the tokens of ``what``, and what they cost."""
    written = f", at most {usage.completion_tokens:,} written" if usage.completion_tokens else ""
    echo(
        f"{what}: about {counted(usage.prompt_tokens, 'token')} read ({CHARACTERS_PER_TOKEN} characters each)"
        f"{written}, in {counted(usage.calls, 'request')}{money}"
    )


def store_attachment(out: Path, content: bytes, media_type: str) -> str:
    """Store an attachment of records in ``out`` under its hash; returns its path relative to them."""
    name = hashlib.sha256(content).hexdigest() + (mimetypes.guess_extension(media_type) or "")
    path = out / "attachments" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with atomic_file(path) as stream:
            stream.write(content)
    return f"attachments/{name}"
