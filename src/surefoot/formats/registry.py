"""All formats by name: how each is detected, read and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats.agent_processbench import read_agent_processbench
from surefoot.formats.atif import is_atif, read_atif
from surefoot.formats.batch_output import is_batch_output, read_batch_output
from surefoot.formats.candidate_pool import is_candidate_pool, read_candidate_pool
from surefoot.formats.claude_code import is_claude_code, read_claude_code
from surefoot.formats.codex import is_codex, read_codex
from surefoot.formats.gemini_cli import read_gemini_cli
from surefoot.formats.imports import (
    IMPORT_KEY,
    ROW_ERRORS,
    ImportContext,
    ImportedTrace,
    ImportSettings,
    LogReader,
)
from surefoot.formats.inspect_log import is_inspect_archive, is_inspect_log, read_inspect_log
from surefoot.formats.label_studio import read_label_studio, write_label_studio
from surefoot.formats.lerobot import is_lerobot, read_lerobot
from surefoot.formats.math_shepherd import TAG, read_math_shepherd
from surefoot.formats.observations import is_langfuse, read_langfuse, read_langsmith
from surefoot.formats.opencode import is_opencode, is_opencode_database, read_opencode
from surefoot.formats.openhands import is_openhands, read_openhands
from surefoot.formats.otel_spans import is_otel_spans, read_otel_spans
from surefoot.formats.own_rows import holds_traces, read_own_rows
from surefoot.formats.prm800k import read_prm800k, read_prm800k_steps
from surefoot.formats.prmbench import read_prmbench, read_prmbench_controls
from surefoot.formats.problems import (
    read_gsm8k,
    read_gsm8k_solutions,
    read_humaneval,
    read_math500,
    read_mbpp,
    read_mbpp_check,
)
from surefoot.formats.processbench import read_processbench, read_visual_processbench, write_processbench
from surefoot.formats.rows import WriteReport, head_row, raw_rows
from surefoot.formats.run_folders import is_saved_dataset, open_run_folder, with_result_beside
from surefoot.formats.stepwise import read_stepwise, write_stepwise
from surefoot.formats.swe_agent import is_mini_swe_agent, is_swe_agent, read_mini_swe_agent, read_swe_agent
from surefoot.formats.tau_bench import is_tau2, read_tau2, read_tau_bench
from surefoot.formats.who_and_when import read_who_and_when
from surefoot.io.files import ReadReport
from surefoot.io.sources import files_of
from surefoot.io.tables import Seen
from surefoot.labels import Neutral, is_neutral
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, trusted_copy

RECORDS: Final = "records"
"""Result of ``detect_format`` for a file of surefoot's own records, which can be read without an import."""
FOLDER: Final = "a folder of runs"
"""Result of ``detect_format`` for a folder whose files may have several formats."""
_FIRST_ROWS: Final = 20
"""Rows that are looked at for the format of a log of events."""
_FIRST_FILES: Final = 20
"""Files of a folder that are looked at for records of this package."""

Item = Problem | ProblemTrace | LabelledTrace
Detector = Callable[[Mapping[str, Any]], bool]
DatasetReader = Callable[..., Iterator[Item]]


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format. A public data set has steps and labels; a log has traces that are yet to be cut."""

    detect: Detector | None = None
    """Whether a file with this first row has the format; ``None`` if its rows look like another format's."""
    read_dataset: DatasetReader | None = None
    """Reader of a data set; takes a path and ``report``."""
    read_log: LogReader | None = None
    write: Callable[..., WriteReport] | None = None
    """Writer of labelled traces to a path."""
    two_signs: bool = False
    """Whether labels can only be good or bad; ``write`` then also takes ``neutral`` and ``threshold``."""


def _has(*fields: str) -> Detector:
    return lambda row: row.keys() >= set(fields)


def _is_math500(row: Mapping[str, Any]) -> bool:
    fields = {"problem", "answer", "unique_id", "solution", "level", "subject"}
    return {"problem", "answer", "unique_id"} <= row.keys() <= fields


def _log(detect: Detector, read: LogReader) -> Format:
    return Format(detect=detect, read_log=read)


def _dataset(detect: Detector | None, read: DatasetReader, **fields: Any) -> Format:
    return Format(detect=detect, read_dataset=read, **fields)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "inspect": _log(is_inspect_log, read_inspect_log),
        "lerobot": Format(read_log=read_lerobot),
        "atif": _log(is_atif, read_atif),
        "tau-bench": _log(_has("traj", "reward"), read_tau_bench),
        "tau2": _log(is_tau2, read_tau2),
        "swe-agent": _log(is_swe_agent, read_swe_agent),
        "claude-code": _log(is_claude_code, read_claude_code),
        "codex": _log(is_codex, read_codex),
        "gemini-cli": _log(_has("sessionId", "projectHash"), read_gemini_cli),
        "opencode": _log(is_opencode, read_opencode),
        "mini-swe-agent": _log(is_mini_swe_agent, read_mini_swe_agent),
        "openhands": _log(is_openhands, read_openhands),
        "langfuse": _log(is_langfuse, read_langfuse),
        "langsmith": _log(_has("run_type", "inputs", "trace_id"), read_langsmith),
        "otel": _log(is_otel_spans, read_otel_spans),
        "batch": _log(is_batch_output, read_batch_output),
        "candidate-pool": _log(is_candidate_pool, read_candidate_pool),
        "agent-processbench": _dataset(
            _has("messages", "step_labels", "final_label"), read_agent_processbench
        ),
        "gsm8k": _dataset(
            lambda row: row.keys() == {"question", "answer"} and "####" in str(row["answer"]), read_gsm8k
        ),
        "gsm8k-solutions": _dataset(None, read_gsm8k_solutions),
        "mbpp-check": _dataset(
            lambda row: "entry_point" in row and str(row["task_id"]).startswith("MBPP/"), read_mbpp_check
        ),
        "humaneval": _dataset(_has("task_id", "prompt", "entry_point", "test"), read_humaneval),
        "label-studio": _dataset(
            lambda row: isinstance(row["data"]["steps"], list), read_label_studio, write=write_label_studio
        ),
        "math500": _dataset(_is_math500, read_math500),
        "math-shepherd": _dataset(
            lambda row: "label" in row and TAG in str(row["input"]), read_math_shepherd
        ),
        "mbpp": _dataset(_has("task_id", "text", "code", "test_list"), read_mbpp),
        "prm800k": _dataset(_has("labeler", "question", "label"), read_prm800k),
        "prm800k-steps": _dataset(
            _has("instruction", "responses", "next_response", "rating"), read_prm800k_steps
        ),
        "prmbench": _dataset(_has("modified_question", "modified_process", "error_steps"), read_prmbench),
        "prmbench-controls": _dataset(None, read_prmbench_controls),
        "processbench": _dataset(
            _has("generator", "problem", "steps", "final_answer_correct", "label"),
            read_processbench,
            write=write_processbench,
            two_signs=True,
        ),
        "stepwise": _dataset(
            lambda row: (
                "prompt" in row and isinstance(row["completions"], list) and isinstance(row["labels"], list)
            ),
            read_stepwise,
            write=write_stepwise,
            two_signs=True,
        ),
        "visual-processbench": _dataset(
            _has("image", "question", "response", "policy_model"), read_visual_processbench
        ),
        "who-and-when": _dataset(_has("history", "mistake_agent", "mistake_step"), read_who_and_when),
        "rows": _log(lambda _: True, read_own_rows),
    }
)
"""All formats; detectors are tried in this order, so the most general one is last."""
_BY_PATH = {"inspect": is_inspect_archive, "lerobot": is_lerobot, "opencode": is_opencode_database}


def detect_format(path: Path | str, settings: ImportSettings | None = None) -> str:
    """The name in ``FORMATS`` of the format of ``path``, or ``RECORDS`` or ``FOLDER``, from its content.

    The first of several files that can be read decides (see :func:`import_traces`). Raises ``RecordError``
    for a file that cannot be opened, is empty, or is an unknown archive.
    """
    settings = settings or ImportSettings()
    if _is_run_folder(path):
        for shard in files_of(str(path))[:_FIRST_FILES]:
            with suppress(RecordError):
                if shard.is_file() and _format_of(shard, settings) == RECORDS:
                    return RECORDS
        return FOLDER
    *files, last = _files(path)
    for file in files:
        with suppress(RecordError):
            return _format_of(file, settings)
    return _format_of(last, settings)


def _is_run_folder(path: Path | str) -> bool:
    return Path(path).is_dir() and not is_saved_dataset(Path(path)) and not is_lerobot(Path(path))


def _format_of(path: Path | str, settings: ImportSettings) -> str:
    for name, is_form in _BY_PATH.items():
        if is_form(Path(path)):
            return name
    head = head_row(Path(path))
    name = _format_of_row(head) if isinstance(head, Mapping) else "rows"
    if name == RECORDS or (name != "rows" and FORMATS[name].read_log):  # data sets: by all columns
        return name
    rows = [
        row for _, row in islice(raw_rows(path, subset=settings.subset, split=settings.split), _FIRST_ROWS)
    ]
    if not rows:
        raise RecordError(f"{path}: empty; give a file with at least one row")
    for row in rows:
        if isinstance(row, ValueError):
            continue
        name = _format_of_row(row) if isinstance(row, Mapping) else "rows"
        # a log of events can begin with an event of an unknown type
        if name != "rows" or not isinstance(row, Mapping) or not isinstance(row.get("type"), str):
            return name
    return "rows"


def _format_of_row(row: Mapping[str, Any]) -> str:
    if isinstance(row.get("schema_version"), int) and row.keys() & {"id", "trace_id", "nodes"}:
        return RECORDS
    return next(name for name, form in FORMATS.items() if form.detect and _detects(form.detect, row))


def _detects(detect: Detector, row: Mapping[str, Any]) -> bool:
    """Whether a row is recognised; a malformed one, which makes a detector raise, is not."""
    try:
        return detect(row)
    except ROW_ERRORS:
        return False


def format_called(name: str) -> Format:
    """The format called ``name``. Raises ``RecordError`` for an unknown name."""
    if name not in FORMATS:
        raise RecordError(f"no format is called '{name}'; choose one of {', '.join(sorted(FORMATS))}")
    return FORMATS[name]


def read_source(name: str, path: Path | str, **options: Any) -> Iterator[Item]:
    """Read ``path`` as the public data set ``name``; ``options`` (such as ``report``) go to its reader.

    A text may also be a pattern or a folder of shards, see :func:`surefoot.io.sources.files_of`; each
    file is read separately. Raises ``RecordError`` if no data set has this name.
    """
    reader = format_called(name).read_dataset
    if reader is None:
        raise RecordError(f"'{name}' is not a data set but a log; read it with import_traces")
    return chain.from_iterable(reader(file, **options) for file in files_of(path))


def import_traces(path: Path | str, name: str, context: ImportContext) -> Iterator[ImportedTrace]:
    """The problems, traces and labels of ``path``, read as format ``name``.

    A text may also be a pattern, see :func:`surefoot.io.sources.files_of`, or for rows the name or
    folder of a data set; a folder is read as :mod:`surefoot.formats.run_folders` says. Traces of a log with
    the same id are numbered. Rejected rows are counted in ``context.report``. Raises ``RecordError`` for an
    unknown name, and if no file can be read; with ``context.failed``, one of several that cannot is noted
    there, and the others are read.
    """
    if name == RECORDS:
        raise RecordError(
            f"{path} already holds records of this package: give it to the commands directly, or to surefoot "
            "segment to cut its traces again"
        )
    if _is_run_folder(path):
        yield from _folder_traces(Path(path), name, context)
        return
    form, files = format_called(name), _files(path)
    with closing(Seen()) as seen:
        for file in files:
            try:
                for imported in _file_traces(form, file, context, seen):
                    yield with_file(imported, str(file)) if len(files) > 1 else imported
            except RecordError as error:
                if context.failed is None or len(context.failed) + 1 == len(files):
                    raise
                context.failed.append(str(error))


def _folder_traces(path: Path, name: str, context: ImportContext) -> Iterator[ImportedTrace]:
    """The traces of a folder's files, each with the name of its file and the result next to it."""
    form = None if name == FOLDER else format_called(name)
    folder = open_run_folder(path, lambda file: _run_format(file, context.settings) if form is None else name)
    failed, formats = list(folder.unread), Counter[str]()
    context.doubts.extend(folder.doubts)
    context.no_runs.extend(folder.no_runs)
    context.second_forms.extend(folder.second_forms)
    for ending, count in folder.unusable.items():
        context.report.left_out[f"files {ending or 'without an ending'}"] += count
    with closing(Seen()) as seen:
        for run in folder.runs:
            notes: list[str] = []
            report = ReadReport(keep=1)
            of_file = replace(context, report=report, say=notes.append)
            traces = _file_traces(FORMATS[run.format], run.path, of_file, seen)
            empty = True
            try:
                for imported in with_result_beside(traces, run.result, of_file, run.name):
                    empty = False
                    yield with_file(imported, run.name)
            except RecordError as error:
                failed.append(f"{run.name}: {str(error).removeprefix(f'{run.path}: ')}")
            else:
                if empty:
                    failed.append(f"{run.name}: {report.bad[0][1] if report.bad else 'no run in it'}")
            formats[run.format] += not empty
            if not empty:
                context.report.add(report, run.name)
                for text in notes:
                    context.say(f"{run.name}: {text}")
    if not formats.total():
        raise RecordError(
            f"{path}: none of its files holds a run"
            + "".join(f"\n  {text}" for text in (failed + folder.no_runs)[:20])
        )
    kinds = ", ".join(f"{count} {kind}" for kind, count in formats.items() if count)
    context.say(f"{path}: {formats.total()} files with runs ({kinds})")
    if context.failed is not None:
        context.failed.extend(failed)


def _run_format(file: Path, settings: ImportSettings) -> str | None:
    """The format of a file in a folder of runs; ``None`` for rows without a solution or messages."""
    name = _format_of(file, settings)
    if name == RECORDS:
        raise RecordError("records of this package; give them to the commands directly")
    is_table = not file.name.endswith((".json", ".json.gz", ".txt"))
    return None if name == "rows" and not (is_table or holds_traces(head_row(file))) else name


def with_file(imported: ImportedTrace, file: str) -> ImportedTrace:
    """The trace with the name of its file in its import note, unless it has one."""
    trace = imported.trace
    note = trace.meta.get(IMPORT_KEY) if trace is not None else None
    if trace is None or not isinstance(note, Mapping) or "file" in note:
        return imported
    meta = {**trace.meta, IMPORT_KEY: {**note, "file": file}}
    return replace(imported, trace=trusted_copy(trace, {"meta": meta}))


def _file_traces(
    form: Format, file: Path | str, context: ImportContext, seen: Seen
) -> Iterator[ImportedTrace]:
    if form.read_log is None:
        for item in form.read_dataset(file, report=context.report):  # type: ignore[misc]
            if isinstance(item, Problem):
                yield ImportedTrace(problem=item, trace=None)
            else:
                labels = item.labels if isinstance(item, LabelledTrace) else ()
                yield ImportedTrace(problem=item.problem, trace=item.trace, labels=labels)
        return
    context.report.opened(str(file))
    for imported in form.read_log(file, context):
        trace = imported.trace
        if trace is not None and (repeats := seen.times(trace.id)):
            update = {"id": f"{trace.id}-{repeats}", "sample": max(trace.sample, repeats)}
            scores = imported.scores and trusted_copy(imported.scores, {"trace_id": update["id"]})
            imported = replace(imported, trace=trace.model_copy(update=update), scores=scores)
        yield imported


def _files(path: Path | str) -> Sequence[Path | str]:
    """The files of ``path``; a folder, or a name that is not a file, is a data set of ``datasets``."""
    if Path(path).is_dir():
        return [path]
    files = files_of(path)
    return [str(path)] if files == [Path(path)] and not files[0].exists() else files


def write_labelled(
    name: str,
    items: Iterable[LabelledTrace],
    path: Path | str,
    *,
    neutral: Neutral | None = None,
    threshold: float = 0.0,
) -> WriteReport:
    """Write labelled traces to ``path`` as format ``name``.

    In a format with two signs, ``neutral`` says what labels of 0 become, and value labels are good above
    ``threshold``. Raises ``RecordError`` for a format without a writer, and for a neutral label without
    ``neutral``.
    """
    form = format_called(name)
    if form.write is None:
        writers = ", ".join(sorted(name for name, form in FORMATS.items() if form.write))
        raise RecordError(f"'{name}' cannot be written; choose one of {writers}")
    if not form.two_signs:
        return form.write(items, path)

    def decided() -> Iterator[LabelledTrace]:
        for item in items:
            if neutral is None and any(map(is_neutral, item.labels)):
                raise RecordError(
                    f"there are neutral labels (0), as of trace {item.trace.id}, which {name} does not have; "
                    "choose with --neutral good, bad or drop"
                )
            yield item

    return form.write(decided(), path, neutral=neutral or "drop", threshold=threshold)
