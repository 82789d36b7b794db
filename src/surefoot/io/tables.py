"""Records of a file as a sequence that stays on disk: memory does not grow with the file.

An index in SQLite holds the position and the ids of each record; the records themselves are read from their
file, by byte ranges. SQLite sorts and looks up within a fixed cache, and many processes can read it at
once.
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
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar, overload
from weakref import finalize

from surefoot.errors import RecordError
from surefoot.io.atomic import atomic_path
from surefoot.io.files import ReadReport, blocks, json_line, parse_line, placed_lines, readable
from surefoot.io.limits import FileLimits
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace, as_json

R = TypeVar("R", bound=Record)
T = TypeVar("T")

_COLUMNS = (
    "first INTEGER PRIMARY KEY, count INTEGER, start INTEGER, bytes INTEGER, "
    "key TEXT, parent TEXT, size INTEGER"
)
_PLACE = "first, count, start, bytes"
ROWS_AT_ONCE: Final = 4096
_COPIED = (StepLabel, StepScores)
"""Records without an id of their own: a repeated one would count twice."""
_READ_AHEAD = 1 << 20
"""Bytes that are read together if records are neighbours in the file."""
_CACHE_KIB = 2_048
"""Memory for SQLite's pages of one database. More memory did not speed up tables of millions of rows."""
_DIGEST_BYTES = 16
_LATEST, _LONG_ID = 2**15, 64
"""Ids that are counted in memory, 5 MB of them, and the most characters of one that is not hashed."""


class Facts(NamedTuple):
    """Facts about a record in the index, apart from its place in the file."""

    key: str
    """The id to look it up by: its own, or the id of its trace or problem."""
    parent: str | None = None
    """A trace's problem."""
    size: int = 1
    """Number of steps of a trace; for a problem, 1 if it has an answer."""
    many: bool = False
    """Whether many records may share a key, as the labels of a trace do."""


def facts_of(record: Record) -> Facts:
    """Facts about a record of this package."""
    if isinstance(record, Problem):
        return Facts(record.id, size=int(record.answer is not None))
    if isinstance(record, Trace):
        return Facts(record.id, record.problem_id, len(record.steps))
    for field in ("trace_id", "problem_id"):
        if field in type(record).model_fields:
            return Facts(getattr(record, field), many=True)
    raise TypeError(f"{type(record).__name__} has no id to look it up by")


def facts_in(records: Iterable[Record]) -> Iterator[Facts]:
    """Facts about problems or traces. For a table they come from the index, and no record is read."""
    return records.facts() if isinstance(records, RecordTable) else map(facts_of, records)


class Index:
    """An SQLite file that is only read; each process that uses it opens it once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[int, sqlite3.Connection] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_opened": None}

    def query(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that ``statement`` selects."""
        if self._opened is None or self._opened[0] != os.getpid():
            connection = sqlite3.connect(uri_of(self.path), uri=True, check_same_thread=False)
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._opened = (os.getpid(), connection)
        yield from self._opened[1].execute(statement, values)

    def close(self) -> None:
        """Close the file; the next query opens it again."""
        if self._opened is not None and self._opened[0] == os.getpid():
            self._opened[1].close()
        self._opened = None

    def __del__(self) -> None:
        self.close()


class Location(NamedTuple):
    """The bytes of neighbouring records with one key: a trace, or consecutive labels of a trace."""

    first: int
    records: int
    start: int
    bytes: int


class OnDisk(Sequence[T]):
    """A sequence that reads items from disk when they are used. Slices are lists."""

    def between(self, start: int, stop: int) -> Iterator[T]:
        """Yield items ``start … stop - 1``."""
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
            return [self[index] for index in range(start, stop, step)]
        index = operator.index(at)  # SQLite does not know the integers of numpy
        index += len(self) if index < 0 else 0
        if not 0 <= index < len(self):
            raise IndexError(f"{at} is not among {len(self)} items")
        return next(self.between(index, index + 1))


class RecordTable(OnDisk[R], Generic[R]):
    """The records of one file, in order. An item is read when it is used, and not cached.

    Pickling a table sends the paths of file and index, so other processes must see the same files. Made by
    :func:`open_table`.
    """

    def __init__(self, data: Path, lookup: Index, record: type[R]) -> None:
        self.data, self.lookup, self.record = data, lookup, record
        self.repeated = 0
        """Number of duplicates that were left out."""
        self._count: int | None = None
        self._digest: str | None = None

    def __len__(self) -> int:
        if self._count is None:
            [(count,)] = self.lookup.query("SELECT coalesce(sum(count), 0) FROM places")
            self._count = int(count)
        return self._count

    def between(self, start: int, stop: int) -> Iterator[R]:
        """Yield records ``start … stop - 1``."""
        first = "(SELECT coalesce(max(first), 0) FROM places WHERE first <= ?)"
        for location, records in self._matching(f"first < ? AND first >= {first}", stop, start):
            yield from records[max(0, start - location.first) : stop - location.first]

    def facts(self) -> Iterator[Facts]:
        """Facts about each place in the file: about each record, if every record has its own key."""
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
        """All records with this key, in order."""
        return [record for _, records in self._matching("key = ?", key) for record in records]

    def find_many(self, keys: Iterable[str]) -> dict[str, list[R]]:
        """All records with these keys, by key, in order; keys without a record are left out."""
        records_of: dict[str, list[R]] = {}
        for _, records in self._matching("key IN (SELECT value FROM json_each(?))", as_json(list(keys))):
            records_of.setdefault(facts_of(records[0]).key, []).extend(records)
        return records_of

    def groups(self) -> Iterator[list[R]]:
        """The records of each parent, which need not be neighbours, ordered by each parent's first record.

        One group is in memory at a time.
        """
        for (parent,) in self.lookup.query("SELECT parent FROM places GROUP BY parent ORDER BY min(first)"):
            yield [record for _, records in self._matching("parent IS ?", parent) for record in records]

    def _matching(self, condition: str, *values: object) -> Iterator[tuple[Location, list[R]]]:
        rows = self.lookup.query(f"SELECT {_PLACE} FROM places WHERE {condition} ORDER BY first", values)  # noqa: S608
        return self.read(map(Location._make, rows))

    def read(self, locations: Iterable[Location]) -> Iterator[tuple[Location, list[R]]]:
        """Yield the records of ``locations``; neighbouring records are read together."""
        parse = self.record.model_validate_json
        return ((location, list(map(parse, lines))) for location, lines in self._lines_at(locations))

    def lines(self) -> Iterator[bytes]:
        """All records as lines of JSON; nothing is parsed."""
        rows = self.lookup.query(f"SELECT {_PLACE} FROM places ORDER BY first")  # noqa: S608
        for _, lines in self._lines_at(map(Location._make, rows)):
            yield from (line + b"\n" for line in lines)

    def _lines_at(self, locations: Iterable[Location]) -> Iterator[tuple[Location, list[bytes]]]:
        with self.data.open("rb", buffering=0) as stream:
            waiting: list[Location] = []
            for location in locations:
                if waiting and not (
                    waiting[-1].start < location.start
                    and location.start + location.bytes - waiting[0].start <= _READ_AHEAD
                ):
                    yield from self._split(stream.fileno(), waiting)
                    waiting = []
                waiting.append(location)
            yield from self._split(stream.fileno(), waiting)

    def _split(self, handle: int, locations: Sequence[Location]) -> Iterator[tuple[Location, list[bytes]]]:
        if not locations:
            return
        base, end = locations[0].start, locations[-1].start + locations[-1].bytes
        text = os.pread(handle, end - base, base)
        if len(text) < end - base:
            raise RecordError(
                f"{self.data} is shorter than when it was opened; do not change it while it is in use"
            )
        for location in locations:
            start = location.start - base
            lines = text[start : start + location.bytes].split(b"\n")
            yield location, list(filter(None, map(bytes.strip, lines)))


def open_table(
    path: Path | str,
    record: type[R],
    *,
    records: Iterable[R] | None = None,
    folder: Path | None = None,
    report: ReadReport | None = None,
) -> RecordTable[R]:
    """Index the records of ``path`` in one pass; each is validated, and bad lines are counted or raise.

    A JSON Lines file is read in place, and must not change while the table is in use. Anything else is passed
    as ``records`` and first written to ``folder`` as JSON Lines. Without a ``folder``, index and data go to a
    temporary one that lives as long as the table. Duplicates are left out and counted in ``repeated``, as
    they would change every estimate over samples: problems or traces with one id, and equal labels or scores.
    Different labels of one step all stay.

    Raises ``RecordError`` as :func:`surefoot.io.files.read_records` does, for two different problems or
    traces of one id, and for different scores of one trace by one scorer.
    """
    temporary = Path(mkdtemp(prefix="surefoot-")) if folder is None else None
    folder = temporary or folder or Path()
    name = "standard-input" if str(path) == "-" else re.sub(r"[^\w.-]", "_", Path(path).name)[-100:]
    data = Path(path).resolve() if records is None else folder / f"{name}.jsonl"
    rows = _lines_of(data, record, report) if records is None else _written(data, records)
    table = RecordTable(data, Index(folder / f"{name}.index"), record)
    if temporary is not None:
        finalize(table, rmtree, temporary, ignore_errors=True)
    _write_index(table.lookup.path, _once(rows, table, str(path)) if record in _COPIED else rows)
    if issubclass(record, Problem | Trace):
        _leave_out_repeated(table, str(path))
    return table


def uri_of(path: Path) -> str:
    """The URI with which SQLite opens ``path`` read-only."""
    return f"{path.resolve().as_uri()}?mode=ro&immutable=1"


class _Row(NamedTuple):
    start: int
    bytes: int
    facts: Facts
    record: Record


def _lines_of(path: Path, record: type[R], report: ReadReport | None) -> Iterator[_Row | None]:
    """Places of the valid lines; ``None`` for an invalid one, which separates its neighbours."""
    if report is not None:
        report.opened(path.name)
    with readable(str(path)), path.open("rb") as stream:
        for number, start, text in placed_lines(stream, FileLimits.from_environment()):
            parsed = parse_line(text, record, str(path), number, report)
            yield None if parsed is None else _Row(start, len(text), facts_of(parsed), parsed)


def _written(path: Path, records: Iterable[R]) -> Iterator[_Row]:
    """Write ``records`` to ``path`` and yield their places."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        start = 0
        lines = ((record, json_line(record, number)) for number, record in enumerate(records, start=1))
        for block in blocks(lines, lambda pair: len(pair[1])):
            for record, line in block:
                stream.write(line)
                yield _Row(start, len(line) - 1, facts_of(record), record)
                start += len(line)


def _once(rows: Iterator[_Row | None], table: RecordTable[Any], name: str) -> Iterator[_Row | None]:
    """Rows of labels or scores; ``None`` for a duplicate, which is counted."""
    with closing(SeenTexts()) as seen:
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
                    "of them, or each scorer its own name"
                )
            yield row


def _write_index(path: Path, rows: Iterator[_Row | None]) -> None:
    with atomic_path(path) as temporary, closing(sqlite3.connect(temporary)) as database:
        set_for_writing(database)
        database.execute(f"CREATE TABLE places ({_COLUMNS})")
        merged = _merged(rows)
        while batch := list(islice(merged, ROWS_AT_ONCE)):
            database.executemany("INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?)", batch)
        _make_searchable(database)


def _make_searchable(database: sqlite3.Connection) -> None:
    database.execute("CREATE INDEX by_key ON places (key, first)")
    database.execute("CREATE INDEX by_parent ON places (parent, first)")
    database.commit()


def _merged(rows: Iterator[_Row | None]) -> Iterator[tuple[int, int, int, int, str, str | None, int]]:
    """Rows of the index. Consecutive labels of one trace share a row, as there may be millions."""
    first = count = start = end = size = 0
    facts: Facts | None = None
    for row in chain(rows, [None]):
        if row and facts and facts.many and row.facts.key == facts.key and count < ROWS_AT_ONCE:
            count, end, size = count + 1, row.start + row.bytes, size + row.facts.size
            continue
        if facts is not None:
            yield first, count, start, end - start, facts.key, facts.parent, size
            first, facts = first + count, None
        if row is not None:
            start, end, facts = row.start, row.start + row.bytes, row.facts
            count, size = 1, facts.size


def _leave_out_repeated(table: RecordTable[Any], name: str) -> None:
    """Keep the first of equal records with one id. Raises ``RecordError`` if they are not equal.

    Problems are equal if text and answer are: each trace may come with its own copy of its problem.
    """
    repeated = 0
    for (key,) in table.lookup.query("SELECT key FROM places GROUP BY key HAVING count(*) > 1"):
        first, *duplicates = (
            (record.text, record.answer) if isinstance(record, Problem) else record
            for record in table.find(key)
        )
        if any(other != first for other in duplicates):
            what = "problems" if issubclass(table.record, Problem) else "traces"
            raise RecordError(f"{name}: two different {what} have the id {key!r}; give each its own")
        repeated += len(duplicates)
    if not repeated:
        return
    table.lookup.close()
    with closing(sqlite3.connect(table.lookup.path)) as database:
        database.execute(f"CREATE TABLE unique_places ({_COLUMNS})")
        database.execute(
            "INSERT INTO unique_places SELECT row_number() OVER (ORDER BY first) - 1, count, start, bytes, "
            "key, parent, size FROM places WHERE first IN (SELECT min(first) FROM places GROUP BY key)"
        )
        database.execute("DROP TABLE places")
        database.execute("ALTER TABLE unique_places RENAME TO places")
        _make_searchable(database)
    table.repeated = repeated


class _TemporaryTable:
    """A table of a temporary SQLite database, which stays in memory while it is small; close it."""

    COLUMNS: ClassVar[str]

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        set_for_writing(self._database)
        self._database.execute(f"CREATE TABLE seen ({self.COLUMNS}) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def close(self) -> None:
        """Delete the database; a second call does nothing."""
        self._database.close()


class Seen(_TemporaryTable):
    """Counts ids; the latest are counted in memory."""

    COLUMNS = "id TEXT PRIMARY KEY, times INTEGER"

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, int] = {}
        self._has_stored = False

    def times(self, id_: str) -> int:
        """How often this was called with ``id_`` before."""
        if len(id_) > _LONG_ID:
            id_ = f"sha256 {hashlib.sha256(id_.encode('utf-8', 'surrogatepass')).hexdigest()}"
        times = self._latest.get(id_)
        if times is None and self._has_stored:
            stored = self._database.execute("SELECT times FROM seen WHERE id = ?", (id_,)).fetchone()
            times = stored[0] if stored else None
        times = 0 if times is None else times + 1
        self._latest[id_] = times
        if len(self._latest) >= _LATEST:
            self._database.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?)", self._latest.items())
            self._latest, self._has_stored = {}, True
        return times


class SeenTexts(_TemporaryTable):
    """Remembers the texts of each key.

    Consecutive texts of a key, such as the labels of a trace, share one look-up. With one look-up for each,
    the time for millions of labels in random order grows faster than their number.
    """

    COLUMNS = "key TEXT PRIMARY KEY, digests BLOB"

    def __init__(self) -> None:
        super().__init__()
        self._key: str | None = None
        self._digests: set[bytes] = set()

    def again(self, key: str, text: str) -> bool:
        """Whether this was called with ``key`` and ``text`` before."""
        if key != self._key:
            row = (self._key or "", b"".join(self._digests))
            self._database.execute("INSERT OR REPLACE INTO seen VALUES (?, ?)", row)
            stored = self._database.execute("SELECT digests FROM seen WHERE key = ?", (key,)).fetchone()
            digests = stored[0] if stored else b""
            self._key = key
            self._digests = {digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES)}
        digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
        if digest in self._digests:
            return True
        self._digests.add(digest)
        return False


def set_for_writing(database: sqlite3.Connection) -> None:
    """Bound the cache and skip journal and syncs: a database of this module is made again after a crash."""
    for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
        database.execute(f"PRAGMA {setting}")
