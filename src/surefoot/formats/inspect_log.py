"""Logs of Inspect (inspect_ai, log version 2): ``.eval``, a zip with one file a sample, and ``.json``.

A sample is a problem (``input``, ``target``) and a run (``messages``); its first score is the outcome. The
tools are those of its first call of a model. Read and written without Inspect itself.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.extras import need
from surefoot.formats._imports import (
    IMPORT_KEY,
    ImportContext,
    ImportedTrace,
    check_assistant,
    check_origin,
    task_of,
    tools,
)
from surefoot.formats._results import TraceResults
from surefoot.io.atomic import atomic_file, write_json
from surefoot.io.files import readable, shortened
from surefoot.io.limits import FileLimits, RowSize, open_bounded, read_whole
from surefoot.records import Problem, Trace, Usage, content_id

NAME = "inspect"

_ZSTANDARD = 93
"""Compression that Inspect writes, and Python's zipfile has only from 3.14 on."""
_ATTACHMENT = "attachment://"
_GRADES = {"C": True, "I": False, "P": None, "N": None}
"""Inspect's grades; partly correct and no answer are not judged here."""


def read_inspect_log(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per sample and epoch, a sample at a time for ``.eval``; samples are numbered from 1."""
    return context.rows(_samples(Path(path)), lambda _, sample: [_trace(sample, context)])


def write_inspect_log(
    original: Path, path: Path, results: Mapping[str, TraceResults], name: str = "surefoot"
) -> int:
    """Copy the log ``original`` with one more score, ``name``, on each sample that has results.

    Its value is the lowest step score, or without scores the share of steps that are labelled good; labels
    and scores of every step are in its metadata. Returns the number of samples changed. Raises
    ``RecordError`` if one is of another log.
    """
    changed = 0

    def scored(sample: Any) -> Any:
        nonlocal changed
        found = results.get(_place(sample)) if isinstance(sample, Mapping) else None
        if found is None:
            return sample
        check_origin(original, f"sample {_place(sample)}", sample.get("messages"), found)
        changed += 1
        score = {"value": found.summary, "metadata": {"steps": found.steps}, "explanation": found.explanation}
        return {**sample, "scores": {**(sample.get("scores") or {}), name: score}}

    if not zipfile.is_zipfile(original):
        log = _log(original)
        write_json(path, {**log, "samples": [scored(sample) for sample in log.get("samples") or ()]})
        return changed
    with (
        open_archive(original) as source,
        atomic_file(path) as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for entry in source.infolist():
            content = _content(source, entry)
            if entry.filename.startswith("samples/"):
                content = json.dumps(scored(from_json(content)), ensure_ascii=False).encode()
            target.writestr(entry.filename, content)
    return changed


def _samples(path: Path) -> Iterator[tuple[int, Any]]:
    if not zipfile.is_zipfile(path):
        samples = _log(path).get("samples")
        if not isinstance(samples, list):
            raise RecordError(f"{path}: the log has no samples; run the evaluation with log_samples=True")
        yield from enumerate(samples, start=1)
        return
    with open_archive(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.startswith("samples/")]
        _check_unpacked(entries)
        for number, entry in enumerate(entries, start=1):
            try:
                yield number, from_json(_content(archive, entry))
            except ValueError as error:
                yield number, error


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The zip archive ``path``. Raises ``RecordError`` for what is wrong with it, also while it is read."""
    try:
        with readable(str(path)), zipfile.ZipFile(path) as archive:
            yield archive
    # A compression, version or encryption that zipfile does not have; lengths that lead out of the file.
    except (NotImplementedError, RuntimeError, ArithmeticError, ValueError, struct.error) as error:
        raise RecordError(f"{path}: not a readable zip archive: {error}; fetch the log again") from error


def _check_unpacked(entries: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse an archive by the sizes that it states; no more than that is unpacked of a member."""
    limits, size = FileLimits.from_environment(), sum(entry.file_size for entry in entries)
    if size > limits.max_unpacked_bytes:
        raise limits.exceeded("max_unpacked_bytes", f"its samples unpack to {size:,} bytes")
    if len(entries) > limits.max_rows:
        raise limits.exceeded("max_rows", f"it has {len(entries):,} samples")


def _log(path: Path) -> dict[str, Any]:
    limits = FileLimits.from_environment()
    try:
        with readable(str(path)), open_bounded(path, limits) as stream:
            log = from_json(read_whole(stream, limits))
    except ValueError as error:
        raise RecordError(f"{path}: not JSON ({error}); fetch the log again") from error
    return log if isinstance(log, dict) else {}


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of one member. Raises ``MissingExtraError`` where Zstandard is needed and not installed, and
    ``RecordError`` for one that is too large."""
    limits, name = FileLimits.from_environment(), shortened(entry.filename)
    if (size := max(entry.file_size, entry.compress_size)) > limits.max_piece_bytes:
        raise limits.exceeded("max_piece_bytes", f"{name} unpacks to {size:,} bytes")
    if entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with archive.open(entry) as member:
            return member.read(entry.file_size)  # read() would unpack up to 2 GB before it sees the size
    if entry.compress_type != _ZSTANDARD:  # zipfile unpacks these without any bound
        method = entry.compress_type
        raise RecordError(f"{archive.filename}: {name} is packed by method {method}, which no Inspect log is")
    need("zstandard", "this Inspect log")
    import zstandard

    packed = _packed(archive.fp, entry)  # type: ignore[arg-type]
    try:
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
            return reader.read(entry.file_size)
    except zstandard.ZstdError as error:
        where = f"{archive.filename}: {name}"
        raise RecordError(f"{where} cannot be unpacked: {error}; fetch the log again") from error


def _packed(file: IO[bytes], entry: zipfile.ZipInfo) -> bytes:
    """The compressed bytes of a member: behind its local header, whose two lengths say how long that is."""
    file.seek(entry.header_offset)
    header = file.read(30)
    name, extra = struct.unpack("<HH", header[26:30])
    file.seek(name + extra, 1)
    return file.read(entry.compress_size)


def _place(sample: Mapping[str, Any]) -> str:
    return f"{sample.get('id')}/{sample.get('epoch', 1)}"


def _trace(sample: Any, context: ImportContext) -> ImportedTrace:
    if not isinstance(sample, Mapping) or "messages" not in sample:
        raise RecordError(
            "a sample without 'messages'; the log was written without samples (log_samples=False)"
        )
    attachments = sample.get("attachments") or {}
    unpacked = RowSize(FileLimits.from_environment())
    rows = [_resolved(row, attachments, unpacked) for row in sample["messages"]]
    messages = context.messages(_error_flag(row) for row in rows)
    check_assistant(messages)
    target = sample.get("target")
    answer = target if isinstance(target, str) else "; ".join(map(str, target or ()))
    output = sample.get("output") or {}
    choices = output.get("choices") or [{}]
    problem = Problem(
        id=str(sample["id"]) if sample.get("id") is not None else "",
        text=_asked(sample.get("input")) or task_of(messages),
        answer=answer or None,
    )
    score: Mapping[str, Any] = next(iter((sample.get("scores") or {}).values()), {})
    error = sample.get("error") or {}
    trace = Trace(
        problem_id=problem.id,
        messages=messages,
        tools=tools(_tools(sample.get("events") or ())),
        answer=score.get("answer"),
        outcome=_outcome(score.get("value")),
        policy=output.get("model"),
        sample=int(sample.get("epoch") or 1) - 1,
        finish_reason=choices[0].get("stop_reason"),
        error=error.get("message"),
        usage=_usage(sample.get("model_usage") or {}),
        meta={IMPORT_KEY: {"format": NAME, "sample": _place(sample), "hash": content_id(sample["messages"])}},
    )
    return ImportedTrace(problem=problem, trace=trace)


def _asked(given: Any) -> str | None:
    return given if isinstance(given, str) and given.strip() else None


def _error_flag(row: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what Inspect notes beside it; a tool's without an error did not fail."""
    fields = {name: value for name, value in row.items() if name not in ("source", "metadata", "function")}
    if row.get("role") == "tool":
        fields["name"] = row.get("function")
        fields["error"] = row.get("error") or False
    return fields


def _resolved(value: Any, attachments: Mapping[str, str], unpacked: RowSize) -> Any:
    """``value`` with the texts and images that the log keeps apart put back."""
    if isinstance(value, str) and _ATTACHMENT in value:
        text = attachments.get(value.removeprefix(_ATTACHMENT), value)
        unpacked.add(len(text))  # many references to one long text are a small log
        return text
    if isinstance(value, Mapping):
        return {name: _resolved(one, attachments, unpacked) for name, one in value.items()}
    return [_resolved(one, attachments, unpacked) for one in value] if isinstance(value, list) else value


def _tools(events: Any) -> list[Any]:
    return next((one["tools"] for one in events if one.get("event") == "model" and one.get("tools")), [])


def _outcome(value: Any) -> bool | None:
    if isinstance(value, str):
        return _GRADES.get(value)
    return bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None


def _usage(models: Mapping[str, Mapping[str, Any]]) -> Usage:
    total: Callable[[str], int] = lambda name: sum(int(one.get(name) or 0) for one in models.values())  # noqa: E731
    return Usage(prompt_tokens=total("input_tokens"), completion_tokens=total("output_tokens"))
