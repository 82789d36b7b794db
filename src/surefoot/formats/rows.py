"""Rows in files, which all formats share: reading, checking against a row class, and writing.

A file is JSON Lines, one JSON value over several lines, CSV, TSV or Parquet; all but Parquet may be gzipped.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Annotated, Any, Protocol, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.extras import need
from surefoot.formats.account import count_fields
from surefoot.io.atomic import atomic_file
from surefoot.io.files import (
    FileLimits,
    ReadReport,
    RowSize,
    error_reason,
    json_lines,
    open_bounded,
    read_whole,
    readable,
    shortened,
    table_rows,
)
from surefoot.io.sources import files_of
from surefoot.labels import AFTER_FIRST_ERROR, NO_ERROR, up_to_first_error
from surefoot.protocols import LabelledTrace
from surefoot.records import (
    Evidence,
    LabelKind,
    Problem,
    Step,
    StepLabel,
    Trace,
    as_json,
    content_id,
    now,
    trusted_copy,
)

T = TypeVar("T")
M = TypeVar("M")
Item = TypeVar("Item", covariant=True)
Row = tuple[int, Any]
"""Number, from 1, and content of a row; the content is a ``ValueError`` where the line is not JSON."""

RECORD_BYTES = 500
"""Approximate memory of a step, a message or a label, without its text."""
SEPARATOR_KEY = "separator"
"""``Trace.meta`` entry with the text that a reader inserted between steps, so that a writer can remove it."""

_HEAD_BYTES = 2**16
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_FILE_SUFFIXES = (*_DELIMITERS, ".jsonl", ".json", ".parquet", ".eval", ".gz", ".txt", ".zip")


def raw_rows(path: Path | str, *, subset: str | None = None, split: str = "train") -> Iterator[Row]:
    """The rows of a local file, or of a data set of the ``datasets`` library.

    A data set is the folder that ``save_to_disk`` wrote, or as a text the name of one on the hub; ``subset``
    and ``split`` belong to the latter. Raises ``RecordError`` for a source that cannot be opened.
    """
    file = Path(path)
    if file.is_dir() or (isinstance(path, str) and not file.exists()):
        yield from _dataset_rows(str(path), subset, split)
    elif file.suffix == ".parquet":
        yield from table_rows(file)
    else:
        limits = FileLimits.from_environment()
        suffix = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
        with readable(str(path)), open_bounded(file, limits) as stream:
            if suffix in _DELIMITERS:
                yield from _table_rows(stream, str(path), _DELIMITERS[suffix], limits)
            else:
                yield from _json_rows(stream, str(path), limits)


def _table_rows(stream: IO[bytes], name: str, delimiter: str, limits: FileLimits) -> Iterator[Row]:
    csv.field_size_limit(limits.max_piece_bytes)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    row_length = 0

    def lines() -> Iterator[str]:
        nonlocal row_length
        while line := text.readline(limits.max_piece_bytes + 1):
            row_length += len(line)
            if row_length > limits.max_piece_bytes:
                reason = f"a row has more than {limits.max_piece_bytes:,} characters"
                raise limits.exceeded("max_piece_bytes", reason)
            yield line

    try:
        rows = filter(None, csv.reader(lines(), delimiter=delimiter))
        columns = next(rows, [])
        for number, cells in enumerate(rows, start=2):
            if number - 1 > limits.max_rows:
                raise limits.exceeded("max_rows", f"it has more than {limits.max_rows:,} rows")
            # zip stops at the cells that the row has: a small file can have many columns and many short rows
            yield number, {column: cell or None for column, cell in zip(columns, cells, strict=False)}
            row_length = 0
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordError(f"{name}: not a readable table: {error}; save it as UTF-8") from error
    finally:
        text.detach()  # leaves the file open, for its owner to close


def _json_rows(stream: IO[bytes], name: str, limits: FileLimits) -> Iterator[Row]:
    for index, (number, line) in enumerate(json_lines(stream, limits)):
        try:
            row = from_json(line.decode("utf-8"))
        except ValueError as error:
            if index == 0 and line[:1] in (b"{", b"["):
                yield from _multi_line_rows(line, stream, name, limits, error)
                return
            yield number, error
            continue
        if index == 0 and isinstance(row, list):
            yield from enumerate(row, start=1)
        else:
            yield number, row


def _multi_line_rows(
    line: bytes, stream: IO[bytes], name: str, limits: FileLimits, line_error: ValueError
) -> Iterator[Row]:
    """Rows of one JSON value over several lines, which begins with ``line``."""
    try:
        value = from_json(line + b"\n" + read_whole(stream, limits))
    except ValueError as error:
        raise RecordError(
            f"{name}: neither JSON Lines ({line_error}) nor one JSON value ({error}); check the file's end"
        ) from error
    yield from enumerate(value if isinstance(value, list) else [value], start=1)


def _dataset_rows(name: str, subset: str | None, split: str) -> Iterator[Row]:
    if not Path(name).is_dir() and Path(name).suffix in _FILE_SUFFIXES:
        raise RecordError(f"{name}: file not found; check the path")
    need("datasets", f"{name}, which is not a file but may be the name of a data set,")
    import datasets

    try:
        if Path(name).is_dir() and (Path(name) / "state.json").exists():
            loaded: Iterable[Any] = datasets.load_from_disk(name)
        else:
            loaded = datasets.load_dataset(name, subset, split=split, streaming=True)
        yield from enumerate((dict(row) for row in loaded), start=1)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise RecordError(f"{name}: neither a file nor a data set that can be loaded: {reason}") from error


def head_row(path: Path) -> Any:
    """The first row of a file with JSON, as far as the first bytes of the file hold it; else ``None``."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if not path.is_file() or suffix in (*_DELIMITERS, ".parquet"):
        return None
    with readable(str(path)), open_bounded(path, FileLimits.from_environment()) as stream:
        head = stream.read(_HEAD_BYTES)
    first, newline, _ = head.partition(b"\n")
    for text in (first, head) if newline else (head,):
        with suppress(ValueError):
            row = from_json(text, allow_partial=text is head)
            return row[0] if isinstance(row, list) and row else row
    return None


def session_rows(path: Path | str) -> Iterator[tuple[int, Any]]:
    """The rows of a file that is one run, as one list with the number of its first row.

    Lines that are not JSON come before it, as ``ValueError``. Raises ``RecordError`` for a run with more
    bytes than ``FileLimits.max_piece_bytes``.
    """
    size, packed = RowSize(FileLimits.from_environment()), Path(path).suffix == ".gz"
    size.add(0 if packed else Path(path).stat().st_size)
    first, rows = 0, []
    for number, row in raw_rows(path):
        if isinstance(row, ValueError):
            yield number, row
        elif isinstance(row, Mapping):
            size.add(len(as_json(row)) if packed else 0)
            first = first or number
            rows.append(row)
    if rows:
        yield first, rows


def build_rows(
    rows: Iterable[Row],
    build: Callable[[int, Any], Iterable[T]],
    report: ReadReport | None,
    name: object,
    errors: tuple[type[Exception], ...] = (RecordError, ValidationError),
) -> Iterator[T]:
    """Yield the items that ``build`` makes of each row.

    A row is skipped as a whole if ``build`` raises one of ``errors``, or if its items together exceed
    ``FileLimits.max_piece_bytes``. The report counts it; without a report, ``RecordError`` names file
    (``name``), line, field and fix.
    """
    limits = FileLimits.from_environment()
    for number, row in rows:
        size, items = RowSize(limits), []
        try:
            if isinstance(row, ValueError):
                reason = error_reason(row) if isinstance(row, UnicodeDecodeError) else f"not JSON ({row})"
                raise RecordError(reason)
            for item in build(number, row):
                size.add(memory_of(item))
                items.append(item)
        except errors as error:
            reason = rejection(error)
            if report is None:
                fix = "correct the row, or pass a ReadReport to skip and count such rows"
                raise RecordError(f"{name}, line {number}: {shortened(reason)}; {fix}") from error
            report.skipped(number, reason)
            continue
        if report is not None:
            count_fields(row[-1] if isinstance(row, tuple) else row, items, report.fields)
        if report is not None and items:
            report.read()
        yield from items


def rejection(error: Exception) -> str:
    """Why a row was rejected, in words for its author."""
    if isinstance(error, ValidationError):
        return error_reason(error)
    if isinstance(error, RecordError) or type(error) is ValueError:
        return str(error)
    return f"a field does not follow the format ({type(error).__name__}: {error})"


def memory_of(item: object) -> int:
    """Approximate bytes of a trace and its labels, which can be many more than the row has."""
    trace, labels = getattr(item, "trace", None), getattr(item, "labels", ())
    return trace_memory(trace) + RECORD_BYTES * len(labels) if isinstance(trace, Trace) else 0


def trace_memory(trace: Trace) -> int:
    """Approximate bytes of a trace."""
    characters = len(trace.text or "") + sum(len(message.content or "") for message in trace.messages)
    return characters + RECORD_BYTES * (len(trace.messages) + len(trace.steps))


def expand_rows(
    path: Path | str,
    row: type[M],
    build: Callable[[int, M], Iterable[T]],
    report: ReadReport | None,
) -> Iterator[T]:
    """:func:`build_rows` for the files of ``path``, whose rows are first checked against the class ``row``.

    As a text, ``path`` may be a pattern or a folder (:func:`surefoot.io.sources.files_of`); row numbers
    start again in each file. ``row`` is a model, or a TypedDict for files with millions of small
    objects.
    """
    check = TypeAdapter(row).validate_python
    for file in files_of(path):
        if report is not None:
            report.opened(file.name)
        yield from build_rows(raw_rows(file), lambda number, raw: build(number, check(raw)), report, file)


def read_rows(
    path: Path | str, row: type[M], build: Callable[[int, M], T], report: ReadReport | None
) -> Iterator[T]:
    """:func:`expand_rows` for a format with one item per row."""
    return expand_rows(path, row, lambda number, checked: [build(number, checked)], report)


class Reader(Protocol[Item]):
    """Reads the items of a file, or of the files of a text (:func:`expand_rows`), of one format."""

    def __call__(self, path: Path | str, *, report: ReadReport | None = None) -> Iterator[Item]: ...


def reader_of(
    row: type[M], separator: str = ""
) -> Callable[[Callable[[M, TraceBuilder], Item]], Reader[Item]]:
    """Makes a reader of a function from a checked row, and the builder of the file's traces, to an item.

    ``separator`` is inserted between steps. The reader raises ``RecordError`` for a bad row, or one for which
    the function raises it, unless a ``report`` counts it.
    """

    def made(build: Callable[[M, TraceBuilder], Item]) -> Reader[Item]:
        def read(path: Path | str, *, report: ReadReport | None = None) -> Iterator[Item]:
            builder = TraceBuilder(separator)
            return read_rows(path, row, lambda _, checked: build(checked, builder), report)

        read.__name__, read.__qualname__, read.__module__ = (
            build.__name__,
            build.__qualname__,
            build.__module__,
        )
        read.__doc__ = build.__doc__
        return read

    return made


def finite(value: Any, *, of: str = "") -> Any:
    """``value``, which is that ``of`` a field. Raises ``ValueError`` for NaN or an infinity, not in JSON."""
    try:
        json.dumps(value, allow_nan=False, default=str)
    except ValueError as error:
        raise ValueError(f"{of} contains NaN or an infinity".lstrip()) from error
    return value


Finite = Annotated[Any, AfterValidator(finite)]
"""A value that surefoot does not interpret and stores in ``meta``, which is JSON."""


class FileRow(BaseModel):
    """Base of the row classes: exact types, finite numbers; unknown fields are kept in ``model_extra``."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_extra(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            finite(value, of=f"'{name}'")
        return self


class TraceBuilder:
    """Builds the traces of one file, or of one record that has its own time of creation."""

    def __init__(self, separator: str, created: datetime | None = None) -> None:
        """``separator`` is inserted between steps; ``created`` is of all labels, by default now."""
        self.separator, self.created = separator, created or now()
        self._counts: Counter[str] = Counter()
        self._labels: dict[tuple[object, ...], StepLabel] = {}
        """Labels by all but trace, step and message; a file has millions that differ in these alone."""

    def number(self, *parts: object) -> int:
        """How often ``parts`` occurred before; this number tells equal solutions apart."""
        key = content_id(*parts)
        self._counts[key] += 1
        return self._counts[key] - 1

    def numbered(self, name: str) -> str:
        """``name``, with ``#1``, ``#2`` … from its second use on."""
        repeats = self.number(name)
        return f"{name}#{repeats}" if repeats else name

    def trace(self, problem: Problem, parts: Sequence[str], **fields: Any) -> Trace:
        """A trace with the steps ``parts``, numbered as a sample unless ``fields`` has an id or sample."""
        if not fields.keys() & {"id", "sample"}:
            fields["sample"] = self.number(problem.id, self.separator.join(parts))
        return joined_trace(problem, parts, self.separator, **fields)

    def labelled(
        self,
        problem: Problem,
        parts: Sequence[str],
        values: Sequence[float | None],
        *,
        source: str,
        error_message: str | None = None,
        **fields: Any,
    ) -> LabelledTrace:
        """A trace with one correctness label per step; ``None`` means unknown because of an earlier error.

        ``error_message`` becomes the evidence of labels that are −1.
        """
        trace = self.trace(problem, parts, **fields)
        labels = tuple(
            self.label(trace.id, step, value, source, message=error_message if value == -1.0 else None)
            for step, value in enumerate(values)
        )
        return LabelledTrace(problem=problem, trace=trace, labels=labels)

    def label(
        self,
        trace_id: str,
        step: int,
        value: float | None,
        source: str,
        *,
        kind: LabelKind = "correctness",
        reason: str = AFTER_FIRST_ERROR,
        message: str | None = None,
        rater: str | None = None,
    ) -> StepLabel:
        """A label; ``reason`` says why its value is ``None``, ``message`` is its evidence."""
        key = value, source, kind, reason, rater
        if key not in self._labels:
            self._labels[key] = StepLabel(
                trace_id="",
                step=0,
                kind=kind,
                value=value,
                reason=reason if value is None else None,
                source=source,
                evidence=Evidence(rater=rater),
                created=self.created,
            )
        changes: dict[str, Any] = {"trace_id": trace_id, "step": step}
        if message is not None:
            changes["evidence"] = Evidence(rater=rater, message=message)
        return trusted_copy(self._labels[key], changes)


@lru_cache(maxsize=1 << 14)
def _span(start: int, end: int) -> Step:
    """One object for equal spans, because alternatives share their prefix."""
    return Step(start=start, end=end)


def joined_trace(
    problem: Problem,
    parts: Sequence[str],
    separator: str,
    *,
    meta: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Trace:
    """A trace with the steps ``parts``; each separator belongs to the step before it."""
    inner, last = [len(part) + len(separator) for part in parts[:-1]], [len(part) for part in parts[-1:]]
    ends = accumulate([*inner, *last], initial=0)
    return Trace(
        problem_id=problem.id,
        text=separator.join(parts),
        steps=tuple(_span(start, end) for start, end in pairwise(ends)),
        meta={**(meta or {}), SEPARATOR_KEY: separator},
        **fields,
    )


def step_parts(trace: Trace) -> list[str]:
    """The steps of a text trace without their separators, or without the white space around them."""
    texts = [trace.step_text(index) for index in range(len(trace.steps))]
    separator = trace.meta.get(SEPARATOR_KEY)
    if not isinstance(separator, str):
        return [text.strip() for text in texts]
    return [text.removesuffix(separator) for text in texts[:-1]] + texts[-1:]


def first_error_values(steps: Sequence[str], error: int | None, field: str) -> list[float | None]:
    """Correctness of each step, given the index of the first error in ``field`` (``None`` = no error).

    Raises ``RecordError`` for a row without steps, and for an index out of range.
    """
    if not steps:
        raise RecordError("field 'steps': empty")
    if error is not None and not 0 <= error < len(steps):
        raise RecordError(f"field {field!r}: {error}, but there are {len(steps)} steps")
    return up_to_first_error(NO_ERROR if error is None else error, len(steps))


@dataclass(kw_only=True)
class WriteReport:
    """What a writer wrote, and what the format cannot hold."""

    written: int = 0
    """Rows in the file."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Count for each reason; the reason says whether it counts traces, steps or labels."""

    def summary(self) -> str:
        """One sentence: ``12 rows written; dropped: 3 steps: neutral, 1 traces: chat trace``."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{self.written} rows written; dropped: {reasons or 'nothing'}"


def write_rows(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write ``rows`` atomically: a JSON array for ``.json``, JSON Lines otherwise, gzipped for ``.gz``.

    Raises ``OSError`` if the folder cannot be written.
    """
    path = Path(path)
    array = path.name.removesuffix(".gz").endswith(".json")
    with ExitStack() as stack:
        stream: IO[bytes] | gzip.GzipFile = stack.enter_context(atomic_file(path))
        if path.suffix == ".gz":
            # Without name and time in the header, equal rows give equal bytes.
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0)
            stream = stack.enter_context(packed)
        stream.write(b"[" * array)
        for number, row in enumerate(rows):
            line = json.dumps(row, ensure_ascii=False).encode("utf-8")
            stream.write(b",\n" * (number > 0) + line if array else line + b"\n")
        stream.write(b"]\n" * array)
