"""Records in files: JSON Lines, also gzipped; Parquet is read, too. The ending decides; ``-`` is a pipe.

Readers count the lines that they skip and bound rows and unpacked bytes; writing is atomic. A small file can
unpack to a large one: a Parquet file of 3 kB repeats one text a million times, a gzip file of 2 MB unpacks to
one line of gigabytes. Every reader of the package enforces these bounds, whoever sent the file. To read
larger files, set the environment variables of :class:`FileLimits`.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pydantic import Field, ValidationError
from pydantic_core import PydanticSerializationError

from surefoot.errors import RecordError
from surefoot.extras import need
from surefoot.io.atomic import atomic_file
from surefoot.io.sources import ENDINGS, OUT_ENDINGS, files_of
from surefoot.printable import printable
from surefoot.records import FrozenModel, Record

if TYPE_CHECKING:
    import pyarrow


_PREFIX: Final = "SUREFOOT_"
_ANY_EXPANSION = 2**27
"""Unpacked bytes that a file of any size may have."""


class LimitError(RecordError):
    """A bound of :class:`FileLimits` is exceeded; :func:`surefoot.io.files.readable` adds the file's name."""


class FileLimits(FrozenModel):
    """Bounds on one file. ``SUREFOOT_MAX_ROWS=20000000`` and so on raise them, for commands and servers."""

    max_rows: int = Field(default=10_000_000, ge=1, description="Rows of a file.")
    max_piece_bytes: int = Field(
        default=2**28,
        ge=1,
        description="Bytes in memory at once: a line, a Parquet row or a JSON array.",
    )
    max_unpacked_bytes: int = Field(
        default=2**33, ge=1, description="Unpacked bytes of a gzip or Parquet file, repetitions included."
    )
    max_expansion: int = Field(
        default=200, ge=1, description="Times its own size that a file above 128 MB may unpack to."
    )

    @classmethod
    def from_environment(cls) -> FileLimits:
        """The bounds that environment variables set, lowered by :func:`lower_limits`.

        Raises ``RecordError`` for a variable that is not a whole number of at least 1.
        """
        names = {name: f"{_PREFIX}{name.upper()}" for name in cls.model_fields}
        try:
            limits = cls.model_validate(
                {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}
            )
        except ValidationError as error:
            variable = names[str(error.errors()[0]["loc"][0])]
            raise RecordError(
                f"{variable} must be a whole number of at least 1, not {os.environ[variable]!r}"
            ) from error
        lower = _LOWER.get()
        return limits.model_copy(update={n: min(most, getattr(limits, n)) for n, most in lower.items()})

    def check_unpacked(self, size: int, packed: int, what: str) -> None:
        """Raise :class:`LimitError` if ``size`` bytes are too many of a file of ``packed`` bytes."""
        if size > self.max_unpacked_bytes:
            raise self.exceeded("max_unpacked_bytes", f"{what} {self.max_unpacked_bytes:,} bytes")
        if size > max(_ANY_EXPANSION, self.max_expansion * packed):
            raise self.exceeded("max_expansion", f"{what} {size // max(1, packed):,} times its size")

    def exceeded(self, name: str, what: str) -> LimitError:
        """The error to raise if ``what`` exceeds the bound ``name``."""
        return LimitError(
            f"{what}, and at most {getattr(self, name):,} are read; if the file is meant to be so large, set "
            f"{_PREFIX}{name.upper()}"
        )


class RowSize:
    """Counts the bytes that a row expands to: a tree's prefix, say, is repeated in all its leaves."""

    def __init__(self, limits: FileLimits) -> None:
        self._limits, self._bytes = limits, 0

    def add(self, size: int) -> None:
        """Add ``size`` bytes. Raises :class:`LimitError` above ``limits.max_piece_bytes``."""
        self._bytes += size
        if self._bytes > self._limits.max_piece_bytes:
            what = f"the row becomes more than {self._limits.max_piece_bytes:,} bytes"
            raise self._limits.exceeded("max_piece_bytes", what)


_LOWER: Final[ContextVar[Mapping[str, int]]] = ContextVar("lower_limits", default=MappingProxyType({}))


@contextmanager
def lower_limits(**bounds: int) -> Iterator[None]:
    """Lower the limits within the block, as a server does for uploaded files."""
    token = _LOWER.set(MappingProxyType({**_LOWER.get(), **bounds}))
    try:
        yield
    finally:
        _LOWER.reset(token)


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Counted(io.RawIOBase):
    """The bytes of ``source``, which ``limits`` bound."""

    def __init__(self, source: _Source, limits: FileLimits, packed: int) -> None:
        super().__init__()
        self._source, self._limits, self._bytes, self._packed = source, limits, 0, packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        piece = self._source.read(len(buffer))
        self._bytes += len(piece)
        self._limits.check_unpacked(self._bytes, self._packed, "it unpacks to more than")
        buffer[: len(piece)] = piece
        return len(piece)


@contextmanager
def open_bounded(path: Path, limits: FileLimits) -> Iterator[IO[bytes]]:
    """Open ``path``, unpacked within ``limits`` if its name ends in ``.gz``. Raises ``OSError``."""
    with path.open("rb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(fileobj=raw, mode="rb") as packed:
            yield io.BufferedReader(_Counted(packed, limits, path.stat().st_size), 1 << 20)


def read_whole(stream: IO[bytes], limits: FileLimits) -> bytes:
    """The remaining bytes of ``stream``. Raises :class:`LimitError`."""
    text = stream.read(limits.max_piece_bytes + 1)
    if len(text) > limits.max_piece_bytes:
        raise limits.exceeded("max_piece_bytes", f"one JSON value has more than {len(text) - 1:,} bytes")
    return text


R = TypeVar("R", bound=Record)

T = TypeVar("T")

_ROWS_PER_GROUP = 1024
_BLOCK, _BLOCK_BYTES = 64, 2**20
_BATCH_BYTES = 2**25
"""Unpacked bytes of the Parquet rows that are converted to Python objects at once."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REASON = 500
"""Characters of the reason given for one bad line."""


@dataclass(kw_only=True)
class ReadReport:
    """Counts the lines that a reader accepted and skipped, in one file or several.

    ``bad`` holds the first ``keep`` (line number, reason) pairs; ``bad_count`` counts all of them. Lines are
    numbered from 1; in a Parquet file or a JSON array these are row numbers.
    """

    keep: int = 20
    files: list[str] = field(default_factory=list)
    good: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Parts of good lines that were not read, by name."""
    fields: Counter[str] = field(default_factory=Counter)
    """Fields of good lines with a text that no record holds, by their path."""
    bad: list[tuple[int, str]] = field(default_factory=list)
    bad_count: int = 0

    def opened(self, name: str) -> None:
        """Start a file; the next lines come from it."""
        self.files.append(name)

    def read(self) -> None:
        """Count one good line."""
        self.good += 1

    def leave_out(self, name: str) -> None:
        """Count a part of a good line that is not read."""
        self.left_out[name] += 1

    def skipped(self, line: int, reason: str) -> None:
        """Count one bad line, and keep its shortened reason if it is among the first."""
        self.bad_count += 1
        if len(self.bad) < self.keep:
            prefix = f"{self.files[-1]}: " if len(self.files) > 1 else ""
            self.bad.append((line, prefix + shortened(reason)))

    def add(self, other: ReadReport, file: str) -> None:
        """Add the counts of one file."""
        self.opened(file)
        self.good += other.good
        self.bad_count += other.bad_count
        self.left_out += other.left_out
        self.fields += other.fields
        self.bad += [(line, f"{file}: {reason}") for line, reason in other.bad][: self.keep - len(self.bad)]

    def require_some(self, needs: str) -> None:
        """Raise ``RecordError`` if no line was accepted, with the reason for the first one.

        ``needs`` completes the message: ``a trace needs 'problem_id'``.
        """
        if self.good:
            return
        name = ", ".join(self.files) or "nothing opened"
        if not self.bad:
            raise RecordError(f"{name}: empty; {needs}")
        line, reason = self.bad[0]
        unusable = "its one line is not" if self.bad_count == 1 else f"none of its {self.bad_count} lines is"
        raise RecordError(f"{name}: {unusable} usable; line {line}: {reason}; {needs}")

    def summary(self) -> str:
        """One sentence: ``problems.jsonl: 98 read, 2 skipped: line 7: not JSON (…); line 12: …``."""
        files = ", ".join(self.files) if len(self.files) < 4 else f"{len(self.files)} files"
        text = f"{files or 'nothing opened'}: {self.good} read, {self.bad_count} skipped"
        if not self.bad_count:
            return text
        reasons = [f"line {line}: {reason}" for line, reason in self.bad]
        if self.bad_count > len(self.bad):
            reasons.append(f"and {self.bad_count - len(self.bad)} more")
        return f"{text}: {'; '.join(reasons)}"


def read_records(path: Path | str, record: type[R], *, report: ReadReport | None = None) -> Iterator[R]:
    """Yield the records of ``path`` (``-`` = JSON Lines on standard input), one at a time.

    A string may also be a pattern or a folder of shards, see :func:`surefoot.io.sources.files_of`; the files
    are read as one, sorted by name.

    With a ``report``, malformed lines are skipped and counted; without one the first of them raises. Blank
    lines are ignored. The report is complete when the iterator ends.

    Raises ``RecordError`` naming file, line, field and fix. With or without a report, it raises if a file
    cannot be read, has an unknown ending or exceeds the limits (:class:`surefoot.io.files.FileLimits`).
    """
    for file in ["-"] if str(path) == "-" else files_of(path):
        name = "standard input" if file == "-" else str(file)
        if report is not None:
            report.opened(name if file == "-" else Path(file).name)
        with readable(name):
            for number, raw in _rows(file):
                if (parsed := parse_line(raw, record, name, number, report)) is not None:
                    yield parsed


def parse_line(
    raw: bytes | dict[str, Any], record: type[R], file: str, number: int, report: ReadReport | None
) -> R | None:
    """The record of a line or row; ``None`` if it is invalid, which ``report`` counts.

    Without ``report``, an invalid one raises ``RecordError``.
    """
    try:
        if isinstance(raw, bytes):
            parsed = record.model_validate_json(raw.decode("utf-8"))
        else:
            parsed = record.model_validate(raw)
    except (ValidationError, UnicodeDecodeError) as error:
        reason = error_reason(error)
        if report is None:
            fix = "correct the line, or pass report=ReadReport() to skip and count such lines"
            raise RecordError(f"{file}, line {number}: {shortened(reason)}; {fix}") from error
        report.skipped(number, reason)
        return None
    if report is not None:
        report.read()
    return parsed


def blocks(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Lists of up to ``_BLOCK`` items, and of few large ones by their ``size`` in bytes.

    A stage of a pipeline takes less time if it handles several items before the next stage runs: its code
    stays in the processor's cache.
    """
    block, total = list[T](), 0
    for item in items:
        block.append(item)
        total += size(item)
        if len(block) == _BLOCK or total >= _BLOCK_BYTES:
            yield block
            block, total = [], 0
    if block:
        yield block


def check_size(path: Path) -> None:
    """Read a file of records without parsing it, so that no part of a file that is too large is stored.

    Raises ``RecordError`` if it exceeds the limits or cannot be read.
    """
    with readable(str(path)):
        for _ in _rows(path):
            pass


def needs(record: type[Record]) -> str:
    """The required fields of ``record``, for :meth:`ReadReport.require_some`."""
    required = [name for name, info in record.model_fields.items() if info.is_required()]
    fields = " and ".join(f"'{name}'" for name in required) or "an object"
    return (
        f"a {record.__name__} needs {fields} (docs/reference/formats.md); surefoot import reads files of "
        "other shapes"
    )


def write_records(path: Path | str, records: Iterable[Record]) -> int:
    """Write ``records`` to ``path`` (``-`` = JSON Lines on standard output) and return their number.

    The file appears whole or not at all: after an exception, even one from ``records`` itself, the previous
    file is still there. Raises ``RecordError`` for an unknown ending, a missing folder, and a record that
    JSON cannot hold.
    """
    with record_writer(path) as writer:
        for item in records:
            writer.write(item)
    return writer.count


def write_lines(path: Path | str, lines: Iterable[bytes]) -> int:
    """:func:`write_records` for lines of JSON with records; nothing is parsed."""
    with record_writer(path) as writer:
        for line in lines:
            writer.write_line(line)
    return writer.count


@contextmanager
def record_writer(path: Path | str) -> Iterator[RecordWriter]:
    """Open a file to write records one by one, as :func:`write_records` does."""
    if str(path) == "-":
        yield RecordWriter(sys.stdout.buffer, terminal=sys.stdout.isatty())
        sys.stdout.buffer.flush()
        return
    path = Path(path)
    ending = _ending(path, OUT_ENDINGS)
    if not path.resolve().parent.is_dir():
        raise RecordError(f"{path}: its folder does not exist; create it first")
    with atomic_file(path) as stream:
        if ending == ".jsonl.gz":
            # Neither name nor time in the header, so that equal records give equal bytes.
            with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
                yield RecordWriter(packed)
        else:
            yield RecordWriter(stream)


def json_line(record: Record, number: int) -> bytes:
    """One line of JSON. Raises ``RecordError`` naming record ``number`` if JSON cannot hold it."""
    try:
        return record.model_dump_json().encode("utf-8") + b"\n"
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise RecordError(f"record {number} cannot be written as JSON: {error}") from error


class RecordWriter:
    """Writes records one by one, as lines of JSON; ``count`` is their number."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, *, terminal: bool = False) -> None:
        self.count = 0
        self._stream, self._terminal = stream, terminal

    def write(self, record: Record) -> None:
        """Write one record. Raises ``RecordError`` if the format cannot hold it."""
        self.write_line(json_line(record, self.count + 1))

    def write_line(self, line: bytes) -> None:
        """Write a valid record that is a line of JSON."""
        self.count += 1
        self._stream.write(printable(line.decode("utf-8")).encode("utf-8") if self._terminal else line)


def _rows(path: Path | str) -> Iterator[tuple[int, bytes | dict[str, Any]]]:
    """Number and content of each line (bytes of JSON) or Parquet row."""
    limits = FileLimits.from_environment()
    if str(path) == "-":
        yield from json_lines(sys.stdin.buffer, limits)
        return
    path = Path(path)
    if _ending(path, ENDINGS) == ".parquet":
        yield from table_rows(path)
        return
    with open_bounded(path, limits) as stream:
        yield from json_lines(stream, limits)


def json_lines(stream: IO[bytes], limits: FileLimits) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line that is not blank. Raises ``RecordError`` above ``limits``."""
    return ((number, text) for number, _, text in placed_lines(stream, limits))


def placed_lines(stream: IO[bytes], limits: FileLimits) -> Iterator[tuple[int, int, bytes]]:
    """Number (from 1), position and bytes of each line that is not blank, without surrounding white space.

    Raises ``RecordError`` above ``limits``.
    """
    rows = number = end = 0
    while line := stream.readline(limits.max_piece_bytes + 1):
        number, start, end = number + 1, end, end + len(line)
        if len(line) > limits.max_piece_bytes:
            raise limits.exceeded("max_piece_bytes", f"line {number} has more than {len(line) - 1:,} bytes")
        text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).lstrip()
        start, text = start + len(line) - len(text), text.rstrip()
        if not text:
            continue
        rows += 1
        if rows > limits.max_rows:
            raise limits.exceeded("max_rows", f"it has more than {limits.max_rows:,} rows")
        yield number, start, text


def table_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number (from 1) and content of each row of a Parquet file. Raises ``RecordError``."""
    need("pyarrow", f"{path.name}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    limits, number, unpacked = FileLimits.from_environment(), 0, 0
    try:
        with readable(str(path)), pq.ParquetFile(path) as file:
            columns = (file.schema.column(index) for index in range(len(file.schema)))
            texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        # a string that is stored once and repeated a million times stays one string until its rows are read
        with readable(str(path)), pq.ParquetFile(path, read_dictionary=texts) as file:
            if file.metadata.num_rows > limits.max_rows:
                raise limits.exceeded("max_rows", f"it has {file.metadata.num_rows:,} rows")
            for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP):
                for part, size in _parts(batch, limits, number + 1):
                    unpacked += size
                    what = f"its first {number + part.num_rows:,} rows unpack to more than"
                    limits.check_unpacked(unpacked, path.stat().st_size, what)
                    yield from enumerate(part.to_pylist(), start=number + 1)
                    number += part.num_rows
    # pyarrow's errors, and Python's: names that are not UTF-8, dates out of range
    except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = shortened(str(error))
        raise RecordError(f"{path}: not a readable Parquet file after row {number}: {reason}") from error


def _parts(
    batch: pyarrow.RecordBatch, limits: FileLimits, first: int
) -> Iterator[tuple[pyarrow.RecordBatch, int]]:
    """Split ``batch`` into parts that are small as Python objects; yields each with its unpacked bytes.

    Raises :class:`LimitError` for a row that is too large; ``first`` is the number of the first row.
    """
    size = sum(_unpacked_bytes(column) for column in batch.columns)
    if size <= _BATCH_BYTES or batch.num_rows <= 1:
        if size > limits.max_piece_bytes:
            raise limits.exceeded("max_piece_bytes", f"row {first} unpacks to {size:,} bytes")
        yield batch, size
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half), limits, first)
    yield from _parts(batch.slice(half), limits, first + half)


def _unpacked_bytes(array: pyarrow.Array) -> int:
    """Bytes of the values of ``array``; a string that is stored once counts as often as it is used."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary)
        return int(pc.sum(pc.take(lengths, array.indices)).as_py() or 0) + 8 * len(array)
    if pa.types.is_struct(kind):
        return sum(_unpacked_bytes(part) for part in array.flatten()) + 8 * len(array)
    if pa.types.is_map(kind):
        return _unpacked_bytes(array.keys) + _unpacked_bytes(array.items) + 8 * len(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _unpacked_bytes(array.flatten()) + 8 * len(array)
    return max(int(array.nbytes), 8 * len(array))  # nulls and booleans become objects, too


def _ending(path: Path, endings: Sequence[str]) -> str:
    for ending in endings:
        if path.name.endswith(ending):
            return ending
    raise RecordError(
        f"{path}: unknown ending; name the file {', '.join('*' + ending for ending in endings)}"
    )


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Convert errors of the file system, gzip, zip and the limits to ``RecordError`` naming the file."""
    try:
        yield
    except LimitError as error:
        raise RecordError(f"{name}: {error}") from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise RecordError(
            f"{name}: cannot be read: {error}; check the path, or fetch the file again"
        ) from error


def shortened(reason: str) -> str:
    """Remove the middle of a long ``reason``: it may quote a name or value of any length."""
    return reason if len(reason) <= _REASON else f"{reason[: _REASON - 100]} … {reason[-100:]}"


def error_reason(error: ValidationError | UnicodeDecodeError) -> str:
    """The first error of a line: ``field 'text': missing``."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte {error.start}: {error.reason})"
    faults = error.errors(include_url=False)
    first, n_more = faults[0], len(faults) - 1
    kind, message = first["type"], first["msg"].removeprefix("Value error, ")
    if kind == "json_invalid":
        return f"not JSON ({first['ctx']['error']})"
    where = ".".join(str(part) for part in first["loc"])
    if not where:
        return (
            f"not an object but {first['input']!r:.40}" if kind.startswith(("model_", "dict_")) else message
        )
    if first["input"] == {} and kind == "missing":
        return "an empty object"
    message = {"missing": "missing", "extra_forbidden": "unknown field"}.get(kind, message)
    more = f" (and {n_more} more)" if n_more else ""
    return f"field '{where}': {message}{more}"
