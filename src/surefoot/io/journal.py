"""Finished pieces of work that are small and many, such as answers of single requests, in one file.

A shard (:class:`surefoot.io.runs.Shards`) is a file of its own, written atomically, which costs some
milliseconds and a directory entry: right for pieces that take minutes. A line of a journal costs neither.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from surefoot.errors import RecordError
from surefoot.io.atomic import atomic_file
from surefoot.records import Record

R = TypeVar("R", bound=Record)

_HEAD = re.compile(rb'\{"piece":(\d+),"records":\[')
_TAIL = b"]}\n"
_SYNC_S = 1.0


class Journal(Generic[R]):
    """Pieces by number, a line each, in the order in which they were finished.

    A piece counts as finished from the moment :meth:`write` returns: a process that is killed loses nothing
    of it. A machine that loses power may lose the pieces since the last sync, which comes with the first
    piece that is a second or more after the sync before, and with :meth:`close`. Those pieces are done anew,
    as is one whose line was cut off. One process writes at a time: the run's lease sees to it.
    """

    def __init__(self, path: Path, record: type[R], check: Callable[[], object] = bool) -> None:
        """Open or begin the file. Use :meth:`surefoot.io.runs.Run.journal`.

        ``check`` raises where nothing may be written any more.
        """
        self._path = path
        self._check = check
        self._records = TypeAdapter(list[record])  # type: ignore[valid-type]
        self._places = _places(path)
        if not path.exists():
            with atomic_file(path):
                pass  # the name of a new file is on the disk before its lines are
        self._stream = path.open("ab")
        self._synced = time.monotonic()

    def missing(self, count: int) -> list[int]:
        """Numbers in ``0 … count - 1`` still to be done, in order."""
        return [number for number in range(count) if number not in self._places]

    def write(self, number: int, records: Sequence[R]) -> None:
        """Add piece ``number``, in place of one that is there; an empty one is fine."""
        try:
            packed = self._records.dump_json(list(records))
        except (PydanticSerializationError, UnicodeEncodeError) as error:
            raise RecordError(f"a record of piece {number} cannot be written as JSON: {error}") from error
        line = b'{"piece":%d,"records":%s}\n' % (number, packed)
        self._check()
        place = self._stream.tell()
        self._stream.write(line)
        self._stream.flush()
        if time.monotonic() - self._synced > _SYNC_S:
            self._sync()
        self._places[number] = place

    def read(self) -> Iterator[R]:
        """All records so far, in the order of the pieces' numbers."""
        return chain.from_iterable(records for _, records in self.pieces())

    def pieces(self) -> Iterator[tuple[int, list[R]]]:
        """Number and records of each piece so far, in order."""
        with self._path.open("rb") as stream:
            for number in sorted(self._places):
                stream.seek(self._places[number])
                line = stream.readline()
                head = _HEAD.match(line)
                start = head.end() - 1 if head else 0
                yield number, self._records.validate_json(line[start : -len(_TAIL) + 1])

    def close(self) -> None:
        """Sync and close the file; a second call does nothing."""
        if not self._stream.closed:
            try:
                self._sync()
            finally:
                self._stream.close()

    def _sync(self) -> None:
        os.fsync(self._stream.fileno())
        self._synced = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _places(path: Path) -> dict[int, int]:
    """Where the line of each piece begins; what a kill left of a last line is cut off."""
    places: dict[int, int] = {}
    if not path.exists():
        return places
    end = 0
    with path.open("r+b") as stream:
        for line in stream:
            head = _HEAD.match(line)
            if head is None or not line.endswith(_TAIL):
                break
            places[int(head[1])] = end
            end += len(line)
        stream.truncate(end)
    return places
