"""Logs of Inspect (inspect_ai, log version 2): ``.eval``, a zip with one file per sample, and ``.json``.

A sample is a problem (``input``, ``target``) and a run (``messages``); its first score is the outcome. The
tools come from its first model call. Inspect itself is not needed.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.extras import need
from surefoot.formats.account import count_fields
from surefoot.formats.imports import ImportContext, ImportedTrace, check_assistant, run_on, task_of
from surefoot.formats.rows import Row
from surefoot.io.files import FileLimits, ReadReport, RowSize, open_bounded, read_whole, readable, shortened
from surefoot.records import Problem

_ZSTANDARD = 93
"""Compression method of Inspect's archives, which Python's zipfile supports only from 3.14 on."""
_ATTACHMENT = "attachment://"
_GRADES = {"C": True, "I": False, "P": None, "N": None}
"""Inspect's grades; partially correct and no answer stay unjudged."""


def is_inspect_log(row: Mapping[str, Any]) -> bool:
    """Whether a JSON value is a log."""
    return "eval" in row and ("samples" in row or "plan" in row)


def is_inspect_archive(path: Path) -> bool:
    """Whether a file is an archived log. Raises ``RecordError`` for any other zip and a damaged ``.eval``."""
    if path.is_file() and zipfile.is_zipfile(path):
        with _open_archive(path) as archive:
            if any(name.startswith(("samples/", "header.json", "_journal/")) for name in archive.namelist()):
                return True
        raise RecordError(f"{path}: a zip archive, but not an Inspect log; unpack it and import its content")
    if path.suffix == ".eval" and path.is_file():
        raise RecordError(f"{path}: not a zip archive, so not a complete Inspect log; fetch it again")
    return False


def read_inspect_log(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per sample and epoch, one sample at a time for ``.eval``; samples are numbered from 1."""
    return context.rows(_samples(Path(path), context.report), lambda _, sample: [_trace(sample, context)])


def _samples(path: Path, report: ReadReport) -> Iterator[Row]:
    if not is_inspect_archive(path):
        log = _log(path)
        samples = log.pop("samples", None)
        count_fields(log, (), report.fields)
        if not isinstance(samples, list):
            raise RecordError(f"{path}: the log lacks samples; run the evaluation with log_samples=True")
        yield from enumerate(samples, start=1)
        return
    with _open_archive(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.startswith("samples/")]
        _check_unpacked_size(entries)
        other_members = [name for name in archive.namelist() if not name.startswith("samples/")]
        report.left_out.update(f"member {shortened(name)} of the archive" for name in other_members)
        for number, entry in enumerate(entries, start=1):
            try:
                yield number, from_json(_content(archive, entry))
            except ValueError as error:
                yield number, error


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive. Errors become ``RecordError``, also while it is read."""
    try:
        with readable(str(path)), zipfile.ZipFile(path) as archive:
            yield archive
    # Unsupported compression, version or encryption; lengths beyond the end of the file.
    except (NotImplementedError, RuntimeError, ArithmeticError, ValueError, struct.error) as error:
        raise RecordError(f"{path}: not a readable zip archive: {error}; fetch the log again") from error


def _check_unpacked_size(entries: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse an archive by its declared sizes; no more than these is unpacked later."""
    limits, size = FileLimits.from_environment(), sum(entry.file_size for entry in entries)
    packed = sum(entry.compress_size for entry in entries)
    limits.check_unpacked(size, packed, "its samples unpack to more than")
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
    """The bytes of one member.

    Raises ``MissingExtraError`` if Zstandard is needed and not installed, ``RecordError`` for a large member.
    """
    limits, name = FileLimits.from_environment(), shortened(entry.filename)
    if (size := max(entry.file_size, entry.compress_size)) > limits.max_piece_bytes:
        raise limits.exceeded("max_piece_bytes", f"{name} unpacks to {size:,} bytes")
    if entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with archive.open(entry) as member:
            return member.read(entry.file_size)  # read() would unpack up to 2 GB before it checks the size
    if entry.compress_type != _ZSTANDARD:  # zipfile unpacks these without any bound
        method = entry.compress_type
        raise RecordError(
            f"{archive.filename}: {name} is packed by method {method}, which Inspect does not use"
        )
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
    """The compressed bytes of a member, after its local header, whose last two fields give its length."""
    file.seek(entry.header_offset)
    header = file.read(30)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    file.seek(name_length + extra_length, 1)
    return file.read(entry.compress_size)


def _trace(sample: Any, context: ImportContext) -> ImportedTrace:
    if not isinstance(sample, Mapping) or "messages" not in sample:
        raise RecordError(
            "a sample without 'messages'; the log was written without samples (log_samples=False)"
        )
    attachments = sample.get("attachments") or {}
    unpacked = RowSize(FileLimits.from_environment())
    rows = [_resolved(row, attachments, unpacked) for row in sample["messages"]]
    error = sample.get("error") or {}
    for row in rows:
        if row.get("role") == "tool":
            row["error"] = row.get("error") or False  # a tool's message without an error did not fail
    messages = context.messages(rows)
    if not error:
        check_assistant(messages)
    target, prompt = sample.get("target"), sample.get("input")
    answer = target if isinstance(target, str) else "; ".join(map(str, target or ()))
    output = sample.get("output") or {}
    choices = output.get("choices") or [{}]
    problem = Problem(
        id=str(sample["id"]) if sample.get("id") is not None else "",
        text=prompt if isinstance(prompt, str) and prompt.strip() else task_of(messages),
        answer=answer or None,
    )
    score: Mapping[str, Any] = next(iter((sample.get("scores") or {}).values()), {})
    outcome = _outcome(score.get("value"))
    has_answer = any(message.role == "assistant" for message in messages)
    note = {"format": "inspect", "sample": f"{sample.get('id')}/{sample.get('epoch', 1)}"}
    calls = (event for event in sample.get("events") or () if event.get("event") == "model")
    return run_on(
        problem,
        messages,
        note,
        tools=next((call["tools"] for call in calls if call.get("tools")), ()),
        answer=score.get("answer"),
        outcome=outcome if outcome is not None or has_answer else False,
        policy=output.get("model"),
        sample=int(sample.get("epoch") or 1) - 1,
        finish_reason=choices[0].get("stop_reason"),
        error=error.get("message"),
        usage=(sample.get("model_usage") or {}).values(),
    )


def _resolved(value: Any, attachments: Mapping[str, str], unpacked: RowSize) -> Any:
    """``value`` with its references to attached texts and images replaced by their content."""
    if isinstance(value, str) and _ATTACHMENT in value:
        text = attachments.get(value.removeprefix(_ATTACHMENT), value)
        unpacked.add(len(text))  # a small log can refer to one long text many times
        return text
    if isinstance(value, Mapping):
        return {name: _resolved(item, attachments, unpacked) for name, item in value.items()}
    return [_resolved(item, attachments, unpacked) for item in value] if isinstance(value, list) else value


def _outcome(value: Any) -> bool | None:
    if isinstance(value, str):
        return _GRADES.get(value)
    return bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None
