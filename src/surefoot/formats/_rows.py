"""Rows of foreign files: JSON Lines or one JSON array, also gzipped, checked against a row class."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.io.atomic import atomic_file

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ReadReport(Protocol):
    """Where readers count; ``surefoot.io.ReadReport`` is one."""

    def opened(self, name: str) -> None: ...

    def read(self) -> None: ...

    def skipped(self, line: int, reason: str) -> None: ...


@dataclass(kw_only=True)
class WriteReport:
    """What a writer wrote and what the format had no place for."""

    written: int = 0
    """Rows in the file."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Count for each reason; the reason says whether it counts traces, steps or labels."""

    def summary(self) -> str:
        """One sentence: ``12 rows written; dropped: 3 steps: neutral, 1 traces: chat trace``."""
        lost = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{self.written} rows written; dropped: {lost or 'nothing'}"


class Row(BaseModel):
    """Base of the row classes: exact types; fields that surefoot does not use are kept as ``model_extra``."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    _order: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _note_order(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        row = handler(data)
        if isinstance(data, dict):
            row._order = tuple(data)
        return row

    @property
    def order(self) -> tuple[str, ...]:
        """Names of all fields that the row had, in its order."""
        return self._order


def read_rows(
    path: Path | str,
    row: type[M],
    build: Callable[[int, M], T],
    report: ReadReport | None,
) -> Iterator[T]:
    """Yield ``build(number, row)`` for each row of ``path``; numbers count from 1 (lines, or array items).

    ``build`` refuses a row by raising ``RecordError`` or a ``ValidationError``. A refused row is counted in
    ``report``; without one it raises ``RecordError`` naming file, line, field and fix.
    """
    path = Path(path)
    if report is not None:
        report.opened(path.name)
    for number, raw in _items(path):
        try:
            made = build(number, row.model_validate(_parsed(raw)))
        except (RecordError, ValidationError) as error:
            reason = error_reason(error)
            if report is None:
                fix = "correct the row, or pass a ReadReport to skip and count such rows"
                raise RecordError(f"{path}, line {number}: {reason}; {fix}") from error
            report.skipped(number, reason)
            continue
        if report is not None:
            report.read()
        yield made


def write_rows(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write ``rows`` atomically: a JSON array for ``.json``, JSON Lines otherwise, gzipped for ``.gz``.

    Raises ``OSError`` where the folder cannot be written.
    """
    path = Path(path)
    with atomic_file(path) as stream:
        _write(stream, rows, path)


def error_reason(error: RecordError | ValidationError) -> str:
    """What is wrong with a row, the first fault only."""
    if isinstance(error, RecordError):
        return str(error)
    faults = error.errors(include_url=False)
    first = faults[0]
    where = ".".join(str(part) for part in first["loc"])
    message = "missing" if first["type"] == "missing" else first["msg"].removeprefix("Value error, ")
    if not where:
        return f"not an object but {first['input']!r:.40}" if first["type"].startswith("model_") else message
    return f"field '{where}': {message}" + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else "")


def _parsed(raw: object) -> object:
    """An array's items are parsed already; a line is still bytes, which no JSON value is."""
    if not isinstance(raw, bytes):
        return raw
    try:
        return from_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(f"not UTF-8 (byte {error.start}: {error.reason})") from error
    except ValueError as error:
        raise RecordError(f"not JSON ({error})") from error


def _items(path: Path) -> Iterator[tuple[int, object]]:
    try:
        with path.open("rb") as raw:
            if path.suffix != ".gz":
                yield from _split(raw, path)
                return
            with gzip.GzipFile(fileobj=raw, mode="rb") as packed:
                yield from _split(packed, path)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(
            f"{path}: cannot be read: {error}; check the path, or fetch the file again"
        ) from error


def _split(stream: IO[bytes] | gzip.GzipFile, path: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(stream, start=1):
        text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).strip()
        if text.startswith(b"[") and number == 1:
            yield from enumerate(_array(text + b"\n" + stream.read(), path), start=1)
            return
        if text:
            yield number, text


def _array(text: bytes, path: Path) -> list[object]:
    try:
        items = from_json(text)
    except ValueError as error:
        raise RecordError(f"{path}: not a JSON array: {error}; fetch the file again") from error
    return list(items)


def _write(stream: IO[bytes], rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    array = path.name.removesuffix(".gz").endswith(".json")
    if path.suffix != ".gz":
        _write_plain(stream, rows, array)
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
        _write_plain(packed, rows, array)


def _write_plain(stream: IO[bytes] | gzip.GzipFile, rows: Iterable[Mapping[str, Any]], array: bool) -> None:
    separator = b""
    if array:
        stream.write(b"[")
    for row in rows:
        line = json.dumps(row, ensure_ascii=False).encode("utf-8")
        stream.write(separator + line if array else line + b"\n")
        separator = b",\n"
    if array:
        stream.write(b"]\n")
