"""What the readers of one's own data share: raw rows, messages made into traces, and where each came from."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.extras import need
from surefoot.formats._results import TraceResults
from surefoot.formats._rows import trace_size
from surefoot.io.files import ReadReport, error_reason, json_lines, readable, table_rows
from surefoot.io.limits import FileLimits, RowSize, open_bounded, read_whole
from surefoot.messages import StoreAttachment, message_fields, messages_of, tool_fields
from surefoot.records import Message, Problem, Tool, Trace, content_id

IMPORT_KEY = "import"
"""Where ``Trace.meta`` notes the format that a trace came from, and its place in the file."""

_TABLES = {".csv": ",", ".tsv": "\t"}
_FILES = (*_TABLES, ".jsonl", ".json", ".parquet", ".eval", ".gz", ".txt", ".zip")


class ImportSettings(BaseModel):
    """Which columns of a table hold what; those not named are guessed, and the guess is shown.

    A name with dots goes down: ``response.text``. Logs and batch outputs have fields of their own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text_field: str | None = Field(default=None, description="Column of the solution, or of several.")
    problem_field: str | None = Field(default=None, description="Column of the problem's text.")
    answer_field: str | None = Field(default=None, description="Column of the reference answer.")
    id_field: str | None = Field(default=None, description="Column of the trace's id.")
    problem_id_field: str | None = Field(default=None, description="Column of the problem's id.")
    messages_field: str | None = Field(default=None, description="Column of chat messages.")
    steps_field: str | None = Field(default=None, description="Column of steps, as a list of texts.")
    tools_field: str | None = Field(default=None, description="Column of the tools' schemas.")
    outcome_field: str | None = Field(default=None, description="Column that says whether it is correct.")
    policy_field: str | None = Field(default=None, description="Column of the model's name.")
    subset: str | None = Field(default=None, description="Configuration of a data set of `datasets`.")
    split: str = Field(default="train", description="Split of a data set of `datasets`.")
    requests: str | None = Field(
        default=None, description="Batch input file, which has the prompts of a batch output."
    )


REFUSED = (RecordError, ValueError, AttributeError, LookupError, TypeError, ArithmeticError)
"""What a row of another program raises where a field is not what its format says: it is one row's fault."""


def refusal(error: Exception) -> str:
    """Why a row was refused."""
    if isinstance(error, ValidationError):
        return error_reason(error)
    known = isinstance(error, RecordError) or type(error) is ValueError
    return str(error) if known else f"a field is not what the format says ({type(error).__name__}: {error})"


@dataclass(frozen=True, kw_only=True)
class ImportedTrace:
    """A trace as it was in the file, without steps, and its problem; one of them can be missing."""

    problem: Problem | None
    trace: Trace | None


@dataclass(kw_only=True)
class ImportContext:
    """Settings of one import, what it skipped, and what it has to say."""

    settings: ImportSettings
    report: ReadReport
    keep: StoreAttachment | None = None
    """Stores the bytes of attachments."""
    say: Callable[[str], None] = lambda _: None
    """Shows a guess."""

    def rows(
        self, rows: Iterable[tuple[int, Any]], build: Callable[[int, Any], Iterable[ImportedTrace]]
    ) -> Iterator[ImportedTrace]:
        """What ``build`` makes of each row; a row that it refuses is counted with its reason."""
        limits = FileLimits.from_environment()
        for number, row in rows:
            size, made = RowSize(limits), []
            try:
                if isinstance(row, ValueError):
                    raise RecordError(f"not JSON ({row})")
                for one in build(number, row):
                    size.add(trace_size(one.trace) if one.trace else 0)
                    made.append(one)
            except REFUSED as error:
                self.report.skipped(number, refusal(error))
                continue
            if made:
                self.report.read()
            yield from made

    def messages(self, rows: Iterable[Mapping[str, Any]]) -> tuple[Message, ...]:
        """Messages of any shape; fields that no shape has are left out."""
        known = Message.model_fields.keys()
        made = []
        for row in rows:
            if not isinstance(row, Mapping):
                raise RecordError(f"a message is an object, not {row!r:.40}")
            for one in messages_of(row):
                fields = message_fields(one, self.keep)
                made.append(Message.model_validate({name: fields[name] for name in fields if name in known}))
        return tuple(made)


def row_note(name: str, number: int, row: Any) -> dict[str, Any]:
    """What ``Trace.meta`` notes of a row: its place, and a hash of it, which tells another file's row."""
    return {"format": name, "row": number, "hash": content_id(row)}


def rows_to_write(
    original: Path, by_row: Mapping[int, Sequence[TraceResults]]
) -> Iterator[tuple[Any, Sequence[TraceResults]]]:
    """Each row of ``original`` with the results that belong to it.

    Raises ``RecordError`` if a trace was made of another row than the one at its place, or of none.
    """
    missing = dict(by_row)
    for number, row in raw_rows(original):
        if isinstance(row, ValueError):
            continue
        own = missing.pop(number, ())
        for one in own:
            check_origin(original, f"row {number}", row, one)
        yield row, own
    for number, own in missing.items():
        check_origin(original, f"row {number}", None, own[0])


def check_origin(original: Path, place: object, content: Any, one: TraceResults) -> None:
    """Raise ``RecordError`` unless a trace was made of ``content``, which is at its place in ``original``."""
    if one.trace.meta[IMPORT_KEY].get("hash") != content_id(content):
        raise RecordError(
            f"{original}: trace {one.trace.id} was not made of what is at {place} there; give the "
            "file that was imported, unchanged"
        )


def tools(rows: Iterable[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """Tools of any shape."""
    return tuple(Tool.model_validate(tool_fields(row)) for row in rows or () if isinstance(row, Mapping))


def task_of(messages: Sequence[Message]) -> str:
    """What the assistant was asked: the users' words before its first message, else the system's.

    Raises ``RecordError`` if nobody asked anything.
    """
    before = []
    for message in messages:
        if message.role == "assistant":
            break
        before.append(message)
    for roles in (("user",), ("system", "developer")):
        said = [message.content for message in before if message.role in roles and message.content]
        if any(text.strip() for text in said):
            return "\n\n".join(said)
    if any(message.attachments for message in before):
        return "(no text: see the attachments of the first message)"
    raise RecordError(
        "no message before the assistant's first has text, so there is no problem; name its column"
    )


def check_assistant(messages: Sequence[Message]) -> None:
    """Raise ``RecordError`` if no assistant speaks: there is nothing to supervise."""
    if not any(message.role == "assistant" for message in messages):
        roles = ", ".join(dict.fromkeys(message.role for message in messages)) or "none"
        raise RecordError(f"no message is the assistant's (roles: {roles})")


def raw_rows(path: Path | str, settings: ImportSettings | None = None) -> Iterator[tuple[int, Any]]:
    """Number, from 1, and content of each row of a file or data set; bad JSON is given as ``ValueError``.

    JSON Lines, a JSON array, a single JSON object, CSV, TSV (with a header) and Parquet, the first three also
    gzipped; otherwise the name of a data set, or a folder that ``datasets`` wrote. Raises ``RecordError`` for
    what cannot be opened.
    """
    place = Path(path)
    if place.is_dir() or not place.exists():
        yield from _dataset_rows(str(path), settings or ImportSettings())
    elif place.suffix == ".parquet":
        yield from table_rows(place)
    else:
        limits = FileLimits.from_environment()
        with readable(str(path)), open_bounded(place, limits) as stream:
            inner = Path(place.stem).suffix if place.suffix == ".gz" else place.suffix
            yield from (
                _csv_rows(stream, str(path), _TABLES[inner], limits)
                if inner in _TABLES
                else _json_rows(stream, str(path), limits)
            )


def _csv_rows(stream: IO[bytes], name: str, delimiter: str, limits: FileLimits) -> Iterator[tuple[int, Any]]:
    csv.field_size_limit(limits.max_field_characters)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    characters = 0  # of the row so far

    def lines() -> Iterator[str]:
        nonlocal characters
        while line := text.readline(limits.max_piece_bytes + 1):
            characters += len(line)
            if characters > limits.max_piece_bytes:
                what = f"a row has more than {limits.max_piece_bytes:,} characters"
                raise limits.exceeded("max_piece_bytes", what)
            yield line

    try:
        rows = filter(None, csv.reader(lines(), delimiter=delimiter))
        columns = next(rows, [])
        for number, row in enumerate(rows, start=2):
            if number - 1 > limits.max_rows:
                raise limits.exceeded("max_rows", f"it has more than {limits.max_rows:,} rows")
            # only the cells that a row has: many columns and many short rows are a small file
            yield number, {column: value or None for column, value in zip(columns, row, strict=False)}
            characters = 0
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordError(f"{name}: not a readable table: {error}; save it as UTF-8") from error
    finally:
        text.detach()  # the file is its opener's to close


def _json_rows(stream: IO[bytes], name: str, limits: FileLimits) -> Iterator[tuple[int, Any]]:
    for place, (number, line) in enumerate(json_lines(stream, limits)):
        try:
            row = from_json(line)
        except ValueError as error:
            if place == 0 and line[:1] in (b"{", b"["):  # one value over many lines
                row = _whole(line + b"\n" + read_whole(stream, limits), name, error)
                limits.check_fields(row, "its value")
                yield from enumerate(row, start=1) if isinstance(row, list) else [(1, row)]
                return
            yield number, error
            continue
        if place == 0 and isinstance(row, list):
            yield from enumerate(row, start=1)
        else:
            yield number, row


def _whole(text: bytes, name: str, first: ValueError) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise RecordError(
            f"{name}: neither JSON Lines ({first}) nor one JSON value ({error}); check the file's ending"
        ) from error


def _dataset_rows(name: str, settings: ImportSettings) -> Iterator[tuple[int, Any]]:
    if not Path(name).is_dir() and Path(name).suffix in _FILES:
        raise RecordError(f"{name}: there is no such file; check the path")
    need("datasets", f"{name}, which is no file but perhaps the name of a data set,")
    import datasets

    try:
        if Path(name).is_dir() and (Path(name) / "state.json").exists():
            loaded: Iterable[Any] = datasets.load_from_disk(name)
        else:
            loaded = datasets.load_dataset(name, settings.subset, split=settings.split, streaming=True)
        yield from enumerate((dict(row) for row in loaded), start=1)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise RecordError(
            f"{name}: neither a file nor a data set that can be loaded: {str(error).splitlines()[0]}"
        ) from error
