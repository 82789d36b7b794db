"""Records of a file as a sequence that stays on disk: memory does not grow with the file.

An index, in SQLite, says where each record lies and what it belongs to. SQLite is in the standard library,
sorts and looks up within a fixed cache, and is read by many processes at once; the records themselves are
read from the file they came in, by their byte ranges.
"""

from __future__ import annotations

import hashlib
import operator
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Generic, NamedTuple, TypeVar, overload
from weakref import finalize

from pydantic import ValidationError

from surefoot.errors import RecordError
from surefoot.io.atomic import atomic_path
from surefoot.io.files import ReadReport, error_reason, placed_lines, readable, shortened
from surefoot.io.limits import FileLimits
from surefoot.io.seen import CACHE_KIB, SeenByKey
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace, as_json

R = TypeVar("R", bound=Record)
T = TypeVar("T")

_COLUMNS = (
    "first INTEGER PRIMARY KEY, count INTEGER, start INTEGER, bytes INTEGER, "
    "key TEXT, parent TEXT, size INTEGER"
)
_PLACE = "first, count, start, bytes"
_ROWS_AT_ONCE = 4096
_COPIED = (StepLabel, StepScores)
"""Records that have no id of their own and would count twice if they came twice."""
_READ_AHEAD = 1 << 20
"""Bytes read together where records follow one another in the file."""


class Facts(NamedTuple):
    """What an index keeps of a record, beside where it lies."""

    key: str
    """The id it is looked up by: its own, or that of the trace or problem it belongs to."""
    parent: str | None = None
    """A trace's problem."""
    size: int = 1
    """A trace's steps; for a problem, 1 if its answer is known."""
    many: bool = False
    """Whether there may be many of one key, as there are labels of one trace."""


def facts_of(record: Record) -> Facts:
    """What an index keeps of a record of this package, by its class."""
    if isinstance(record, Problem):
        return Facts(record.id, size=int(record.answer is not None))
    if isinstance(record, Trace):
        return Facts(record.id, record.problem_id, len(record.steps))
    for field in ("trace_id", "problem_id"):
        if field in type(record).model_fields:
            return Facts(getattr(record, field), many=True)
    raise TypeError(f"{type(record).__name__} has no id to look it up by")


def facts_in(records: Iterable[Record]) -> Iterator[Facts]:
    """Facts of problems or traces; those of a table come from its index, and the records are not read."""
    return records.facts() if isinstance(records, RecordTable) else map(facts_of, records)


class Index:
    """An SQLite file that is only read: opened once in each process that uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[int, sqlite3.Connection] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_opened": None}

    def query(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows that ``statement`` selects, as they are asked for."""
        if self._opened is None or self._opened[0] != os.getpid():
            connection = sqlite3.connect(uri_of(self.path), uri=True, check_same_thread=False)
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._opened = (os.getpid(), connection)
        yield from self._opened[1].execute(statement, values)

    def close(self) -> None:
        """Close the file; the next query opens it again."""
        if self._opened is not None and self._opened[0] == os.getpid():
            self._opened[1].close()
        self._opened = None

    def __del__(self) -> None:
        self.close()


class Place(NamedTuple):
    """The bytes of neighbouring records of one key: one trace, or labels of one that lie together."""

    first: int
    records: int
    start: int
    bytes: int


class OnDisk(Sequence[T]):
    """A sequence of which only what is asked for is in memory. Slices are lists."""

    def between(self, start: int, stop: int) -> Iterator[T]:
        """Items ``start … stop - 1``, read as they are asked for."""
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """A hash of the files that the items come from."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        return self.between(0, len(self))

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step == 1:
                return list(self.between(start, stop))
            return [self[place] for place in range(start, stop, step)]
        place = operator.index(at)  # SQLite does not know the integers of numpy
        place += len(self) if place < 0 else 0
        if not 0 <= place < len(self):
            raise IndexError(f"{at} is not among {len(self)} items")
        return next(self.between(place, place + 1))


class RecordTable(OnDisk[R], Generic[R]):
    """The records of one file in their order; an item is read when it is asked for, and not kept.

    A table can be pickled: what travels is the paths of file and index, so other processes that see the same
    files read it as it is. Made by :func:`open_table`.
    """

    def __init__(self, data: Path, lookup: Index, record: type[R]) -> None:
        self.data, self.lookup, self.record = data, lookup, record
        self.repeated = 0
        """Equal records that were left out."""
        self._count: int | None = None
        self._digest: str | None = None

    def __len__(self) -> int:
        if self._count is None:
            [(count,)] = self.lookup.query("SELECT coalesce(sum(count), 0) FROM places")
            self._count = int(count)
        return self._count

    def between(self, start: int, stop: int) -> Iterator[R]:
        """Records ``start … stop - 1``, read as they are asked for."""
        rows = self.lookup.query(
            f"SELECT {_PLACE} FROM places WHERE first < ? AND first >= "  # noqa: S608
            "(SELECT coalesce(max(first), 0) FROM places WHERE first <= ?) ORDER BY first",
            (stop, start),
        )
        for place, records in self.read(map(Place._make, rows)):
            yield from records[max(0, start - place.first) : stop - place.first]

    def facts(self) -> Iterator[Facts]:
        """Facts of each place in the file: of each record, where every one has a key of its own."""
        for row in self.lookup.query("SELECT key, parent, size FROM places ORDER BY first"):
            yield Facts(*row)

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        if self._digest is None:
            with self.data.open("rb") as stream:
                self._digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return self._digest

    def find(self, key: str) -> list[R]:
        """All records of this key, in their order."""
        rows = self.lookup.query(f"SELECT {_PLACE} FROM places WHERE key = ? ORDER BY first", (key,))  # noqa: S608
        return [record for _, records in self.read(map(Place._make, rows)) for record in records]

    def find_many(self, keys: Iterable[str]) -> dict[str, list[R]]:
        """All records of these keys by key, in their order; a key that has none is left out."""
        rows = self.lookup.query(
            f"SELECT {_PLACE} FROM places WHERE key IN (SELECT value FROM json_each(?)) ORDER BY first",  # noqa: S608
            (as_json(list(keys)),),
        )
        found: dict[str, list[R]] = {}
        for _, records in self.read(map(Place._make, rows)):
            found.setdefault(facts_of(records[0]).key, []).extend(records)
        return found

    def groups(self) -> Iterator[list[R]]:
        """The records of each parent, parents in the order of their first; one group is in memory at a time.

        Records of one parent need not lie together.
        """
        for (parent,) in self.lookup.query("SELECT parent FROM places GROUP BY parent ORDER BY min(first)"):
            rows = self.lookup.query(
                f"SELECT {_PLACE} FROM places WHERE parent IS ? ORDER BY first",  # noqa: S608
                (parent,),
            )
            yield [record for _, records in self.read(map(Place._make, rows)) for record in records]

    def read(self, places: Iterable[Place]) -> Iterator[tuple[Place, list[R]]]:
        """The records of ``places``; those that lie near one another are read together."""
        with self.data.open("rb", buffering=0) as stream:
            waiting: list[Place] = []
            for place in places:
                if waiting and not (
                    waiting[-1].start < place.start
                    and place.start + place.bytes - waiting[0].start <= _READ_AHEAD
                ):
                    yield from self._parsed(stream.fileno(), waiting)
                    waiting = []
                waiting.append(place)
            yield from self._parsed(stream.fileno(), waiting)

    def _parsed(self, handle: int, places: Sequence[Place]) -> Iterator[tuple[Place, list[R]]]:
        if not places:
            return
        base, end = places[0].start, places[-1].start + places[-1].bytes
        text = os.pread(handle, end - base, base)
        if len(text) < end - base:
            raise RecordError(f"{self.data} is shorter than when it was opened; do not change it meanwhile")
        parse = self.record.model_validate_json
        for place in places:
            own = text[place.start - base : place.start - base + place.bytes]
            yield place, [parse(line) for line in map(bytes.strip, own.split(b"\n")) if line]


def open_table(
    path: Path | str,
    record: type[R],
    *,
    records: Iterable[R] | None = None,
    folder: Path | None = None,
    report: ReadReport | None = None,
    limits: FileLimits | None = None,
) -> RecordTable[R]:
    """Index the records of ``path`` in one pass; each is validated, and bad lines are counted or raise.

    A JSON Lines file is read where it lies, and must not change while the table is in use. Anything else
    comes as ``records`` and is first written to ``folder`` as JSON Lines. Without a ``folder``, index and
    data go to a temporary one that lives as long as the table. A problem or trace that comes twice is in the
    table once (``repeated`` counts them): twice, it would change every estimate over samples. So is a label
    or score that comes twice in equal words; different labels of one step are all there.

    Raises ``RecordError`` as :func:`surefoot.io.files.read_records` does, for two different problems or
    traces of one id, and for different scores of one trace by one scorer.
    """
    temporary = Path(mkdtemp(prefix="surefoot-")) if folder is None else None
    folder = temporary or folder or Path()
    name = "standard-input" if str(path) == "-" else re.sub(r"[^\w.-]", "_", Path(path).name)[-100:]
    data = Path(path).resolve() if records is None else folder / f"{name}.jsonl"
    rows = (
        _lines_of(data, record, report, limits or FileLimits.from_environment())
        if records is None
        else _written(data, records)
    )
    table = RecordTable(data, Index(folder / f"{name}.index"), record)
    if temporary is not None:
        finalize(table, rmtree, temporary, ignore_errors=True)
    _write_index(table.lookup.path, _once(rows, table, str(path)) if record in _COPIED else rows)
    if issubclass(record, Problem | Trace):
        _leave_out_repeated(table, str(path))
    return table


def uri_of(path: Path) -> str:
    """What SQLite opens ``path`` by if it is only read."""
    return f"{path.resolve().as_uri()}?mode=ro&immutable=1"


def _compared(record: Record) -> object:
    return (record.text, record.answer) if isinstance(record, Problem) else record


class _Row(NamedTuple):
    start: int
    bytes: int
    facts: Facts
    record: Record


def _lines_of(
    path: Path, record: type[R], report: ReadReport | None, limits: FileLimits
) -> Iterator[_Row | None]:
    """Where the good lines of a file lie; ``None`` for a bad one, which parts its neighbours."""
    if report is not None:
        report.opened(path.name)
    with readable(str(path)), path.open("rb") as stream:
        for number, start, text in placed_lines(stream, limits):
            try:
                made = record.model_validate_json(text.decode("utf-8"))
            except (ValidationError, UnicodeDecodeError) as error:
                reason = error_reason(error)
                if report is None:
                    fix = "correct the line, or pass report=ReadReport() to skip and count such lines"
                    raise RecordError(f"{path}, line {number}: {shortened(reason)}; {fix}") from error
                report.skipped(number, reason)
                yield None
                continue
            if report is not None:
                report.read()
            yield _Row(start, len(text), facts_of(made), made)


def _written(path: Path, records: Iterable[R]) -> Iterator[_Row]:
    """Write ``records`` to ``path`` as they are asked for, and say where they lie."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        start = 0
        for record in records:
            line = record.model_dump_json().encode("utf-8")
            stream.write(line + b"\n")
            yield _Row(start, len(line), facts_of(record), record)
            start += len(line) + 1


def _once(rows: Iterator[_Row | None], table: RecordTable[Any], name: str) -> Iterator[_Row | None]:
    """Rows of labels or scores; ``None`` for one that comes again, which is counted."""
    with closing(SeenByKey()) as seen:
        for row in rows:
            if row is None:
                yield None
                continue
            record, trace = row.record, row.facts.key
            text = record.model_dump_json(exclude={"usage"} if isinstance(record, StepScores) else None)
            if seen.again(trace, text):
                table.repeated += 1
                yield None
                continue
            if isinstance(record, StepScores) and seen.again(trace, record.scorer):
                raise RecordError(
                    f"{name}: different scores of trace {trace!r} by {record.scorer!r}; give one "
                    "of them, or each scorer a name of its own"
                )
            yield row


def _write_index(path: Path, rows: Iterator[_Row | None]) -> None:
    with atomic_path(path) as temporary, closing(sqlite3.connect(temporary)) as database:
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
            database.execute(f"PRAGMA {setting}")
        database.execute(f"CREATE TABLE places ({_COLUMNS})")
        waiting = _joined(rows)
        while batch := list(islice(waiting, _ROWS_AT_ONCE)):
            database.executemany("INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?)", batch)
        _make_searchable(database)


def _make_searchable(database: sqlite3.Connection) -> None:
    database.execute("CREATE INDEX by_key ON places (key, first)")
    database.execute("CREATE INDEX by_parent ON places (parent, first)")
    database.commit()


def _joined(rows: Iterator[_Row | None]) -> Iterator[tuple[int, int, int, int, str, str | None, int]]:
    """Rows of the index. Labels of one trace that lie together are one row: there are millions of them."""
    first = count = start = end = size = 0
    facts: Facts | None = None
    for row in chain(rows, [None]):
        if row and facts and facts.many and row.facts.key == facts.key and count < _ROWS_AT_ONCE:
            count, end, size = count + 1, row.start + row.bytes, size + row.facts.size
            continue
        if facts is not None:
            yield first, count, start, end - start, facts.key, facts.parent, size
            first, facts = first + count, None
        if row is not None:
            start, end, facts = row.start, row.start + row.bytes, row.facts
            count, size = 1, facts.size


def _leave_out_repeated(table: RecordTable[Any], name: str) -> None:
    """Keep the first of equal records of one id. Raises ``RecordError`` if they are not equal.

    Problems are equal if text and answer are: each of many traces may come with a copy of its problem.
    """
    repeated = 0
    for (key,) in table.lookup.query("SELECT key FROM places GROUP BY key HAVING count(*) > 1"):
        first, *others = map(_compared, table.find(key))
        if any(other != first for other in others):
            what = "problems" if issubclass(table.record, Problem) else "traces"
            raise RecordError(f"{name}: two different {what} have the id {key!r}; give each its own")
        repeated += len(others)
    if not repeated:
        return
    table.lookup.close()
    with closing(sqlite3.connect(table.lookup.path)) as database:
        database.execute(f"CREATE TABLE kept ({_COLUMNS})")
        database.execute(
            "INSERT INTO kept SELECT row_number() OVER (ORDER BY first) - 1, count, start, bytes, key, "
            "parent, size FROM places WHERE first IN (SELECT min(first) FROM places GROUP BY key)"
        )
        database.execute("DROP TABLE places")
        database.execute("ALTER TABLE kept RENAME TO places")
        _make_searchable(database)
    table.repeated = repeated
