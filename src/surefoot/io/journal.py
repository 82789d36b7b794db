"""Finished pieces of work, appended to one file, so that a stopped run resumes where it was.

Each piece is a header line with its number, length and checksum, followed by its records as JSON Lines.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Generic, TypeVar

from surefoot.io.atomic import atomic_file
from surefoot.io.files import json_line
from surefoot.records import Record

R = TypeVar("R", bound=Record)

_HEADER = re.compile(rb'\{"piece":(\d+),"bytes":(\d+),"crc32":(\d+)\}\n')
_SYNC_S = 1.0


class Journal(Generic[R]):
    """Pieces by number, in the order in which they finished.

    A piece is finished as soon as :meth:`write` returns: a killed process loses nothing of it. A power
    failure may lose the pieces since the last sync, at most a second's worth; they are computed again. One
    process writes at a time, which the lock of the run's directory guarantees.
    """

    def __init__(self, path: Path, record: type[R]) -> None:
        """Open the file or create it. Use :meth:`surefoot.io.runs.Run.journal`."""
        self._path, self._record = path, record
        self._positions = _scan(path)
        if not path.exists():
            with atomic_file(path):
                pass  # the new file's name reaches the disk before its lines do
        self._stream: IO[bytes] | None = None
        self._synced = time.monotonic()

    def missing(self, count: int) -> list[int]:
        """Numbers in ``0 … count - 1`` that are not finished, in order."""
        return [number for number in range(count) if number not in self._positions]

    def write(self, number: int, records: Iterable[R]) -> None:
        """Add piece ``number``, or replace it; it may be empty."""
        self.write_lines(number, [json_line(record, index) for index, record in enumerate(records, 1)])

    def write_lines(self, number: int, lines: Sequence[bytes]) -> None:
        """Add piece ``number``, whose records are lines of JSON already."""
        body = b"".join(lines)
        header = b'{"piece":%d,"bytes":%d,"crc32":%d}\n' % (number, len(body), zlib.crc32(body))
        self._stream = self._stream or self._path.open("ab")
        start = self._stream.tell() + len(header)
        self._stream.write(header + body)
        self._stream.flush()
        if time.monotonic() - self._synced > _SYNC_S:
            self.sync()
        self._positions[number] = start, len(body)

    def read(self) -> Iterator[R]:
        """All records, in the order of the pieces' numbers."""
        return map(self._record.model_validate_json, self.lines())

    def lines(self) -> Iterator[bytes]:
        """All records as the lines that they were written as; nothing is parsed."""
        for _, lines in self._pieces():
            yield from lines

    def pieces(self) -> Iterator[tuple[int, list[R]]]:
        """Number and records of each finished piece, in order."""
        for number, lines in self._pieces():
            yield number, [self._record.model_validate_json(line) for line in lines]

    def sync(self) -> None:
        """Wait until all pieces are on the disk."""
        if self._stream is not None:
            os.fsync(self._stream.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close the file; a second call does nothing."""
        if self._stream is not None:
            with self._stream:
                self.sync()
            self._stream = None

    def _pieces(self) -> Iterator[tuple[int, list[bytes]]]:
        with self._path.open("rb") as stream:
            for number in sorted(self._positions):
                start, size = self._positions[number]
                stream.seek(start)
                # not splitlines(), which also splits at carriage returns
                yield number, [line + b"\n" for line in stream.read(size).split(b"\n")[:-1]]


def _scan(path: Path) -> dict[int, tuple[int, int]]:
    """First byte and length of each piece's records; an incomplete last piece is cut off."""
    positions: dict[int, tuple[int, int]] = {}
    if not path.exists():
        return positions
    end = 0
    with path.open("r+b") as stream:
        while header := _HEADER.fullmatch(line := stream.readline()):
            number, size, checksum = map(int, header.groups())
            body = stream.read(size)
            if len(body) < size or zlib.crc32(body) != checksum:
                break
            positions[number] = end + len(line), size
            end += len(line) + size
        if stream.seek(0, os.SEEK_END) > end:
            stream.truncate(end)
    return positions
