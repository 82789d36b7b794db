"""Records of a file, and traces joined with their problems and labels, as sequences that stay on disk: memory
does not grow with the file.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp, mkstemp
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, overload
from weakref import finalize

from surefoot.errors import RecordError
from surefoot.io.atomic import atomic_path
from surefoot.io.files import FileLimits, ReadReport, json_line, parse_line, placed_lines, readable
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace, as_json, content_id

R = TypeVar("R", bound=Record)
T = TypeVar("T")
P = TypeVar("P", ProblemTrace, LabelledTrace)

_COLUMNS: Final = "start INTEGER, bytes INTEGER, key TEXT, parent TEXT, size INTEGER, digest BLOB"
_PLACES: Final = f"CREATE TABLE places (number INTEGER PRIMARY KEY, {_COLUMNS})"
_BY_KEY: Final = "CREATE INDEX by_key ON places (key, digest)"
_COPIED = (StepLabel, StepScores)
"""Records without an id of their own: a repeated one would count twice."""
_READ_AHEAD = 1 << 16
"""Bytes that are read together, as records are often neighbours in the file."""
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
    """A trace's problem; the scorer of scores."""
    size: int = 1
    """Number of steps of a trace; for a problem, 1 if it has an answer."""


def facts_of(record: Record) -> Facts:
    """Facts about a record of this package."""
    if isinstance(record, Problem):
        return Facts(record.id, size=int(record.answer is not None))
    if isinstance(record, Trace):
        return Facts(record.id, record.problem_id, len(record.steps))
    if isinstance(record, StepLabel):
        return Facts(record.trace_id)
    if isinstance(record, StepScores):
        return Facts(record.trace_id, record.scorer)
    for field in ("trace_id", "problem_id"):
        if field in type(record).model_fields:
            return Facts(getattr(record, field))
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
        self._digest: str | None = None

    def __len__(self) -> int:
        [(count,)] = self.lookup.query("SELECT coalesce(max(number) + 1, 0) FROM places")
        return int(count)

    def between(self, start: int, stop: int) -> Iterator[R]:
        """Yield records ``start … stop - 1``."""
        return self._matching("number >= ? AND number < ?", start, stop)

    def facts(self) -> Iterator[Facts]:
        """Facts about each record, in order."""
        return map(Facts._make, self.lookup.query("SELECT key, parent, size FROM places ORDER BY number"))

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        if self._digest is None:
            with self.data.open("rb") as stream:
                self._digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return self._digest

    def find(self, key: str) -> list[R]:
        """All records with this key, in order."""
        return list(self._matching("key = ?", key))

    def find_many(self, keys: Iterable[str]) -> dict[str, list[R]]:
        """All records with these keys, by key, in order; keys without a record are left out."""
        records_of: dict[str, list[R]] = {}
        for record in self._matching("key IN (SELECT value FROM json_each(?))", as_json(list(keys))):
            records_of.setdefault(facts_of(record).key, []).append(record)
        return records_of

    def groups(self) -> Iterator[list[R]]:
        """The records of each parent, which need not be neighbours, ordered by each parent's first record.

        One group is in memory at a time.
        """
        for (parent,) in self.lookup.query("SELECT parent FROM places GROUP BY parent ORDER BY min(number)"):
            yield list(self._matching("parent IS ?", parent))

    def _matching(self, condition: str, *values: object) -> Iterator[R]:
        query = f"SELECT start, bytes FROM places WHERE {condition} ORDER BY number"  # noqa: S608
        return self.read(self.lookup.query(query, values))

    def read(self, places: Iterable[tuple[int, int]]) -> Iterator[R]:
        """The records at these places in the file, each a position and a length."""
        return map(self.record.model_validate_json, self._lines_at(places))

    def lines(self) -> Iterator[bytes]:
        """All records as lines of JSON; nothing is parsed."""
        positions = self.lookup.query("SELECT start, bytes FROM places ORDER BY number")
        return (line + b"\n" for line in self._lines_at(positions))

    def _lines_at(self, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        with self.data.open("rb", buffering=_READ_AHEAD) as stream:
            for start, size in places:
                stream.seek(start)  # does not read within the buffer
                line = stream.read(size)
                if len(line) < size:
                    raise RecordError(
                        f"{self.data} is shorter than when it was opened; do not change it while it is in use"
                    )
                yield line


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
    with atomic_path(table.lookup.path) as unfinished, closing(sqlite3.connect(unfinished)) as database:
        set_for_writing(database)
        database.execute(_PLACES)
        database.executemany("INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?)", _numbered(rows))
        database.execute(_BY_KEY)
        table.repeated = _leave_out_repeated(database, record, table.read, str(path))
        database.execute("CREATE INDEX by_parent ON places (parent)")
        database.commit()
    return table


def uri_of(path: Path) -> str:
    """The URI with which SQLite opens ``path`` read-only."""
    return f"{path.resolve().as_uri()}?mode=ro&immutable=1"


_Line = tuple[int, int, Record]
"""A record with its place."""


def _lines_of(path: Path, record: type[R], report: ReadReport | None) -> Iterator[_Line]:
    """The valid lines of a file."""
    if report is not None:
        report.opened(path.name)
    with readable(str(path)), path.open("rb") as stream:
        for number, start, text in placed_lines(stream, FileLimits.from_environment()):
            parsed = parse_line(text, record, str(path), number, report)
            if parsed is not None:
                yield start, len(text), parsed


def _written(path: Path, records: Iterable[R]) -> Iterator[_Line]:
    """Write ``records`` to ``path`` as lines."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        start = 0
        for number, record in enumerate(records, start=1):
            line = json_line(record, number)
            stream.write(line)
            yield start, len(line) - 1, record
            start += len(line)


def _numbered(lines: Iterable[_Line]) -> Iterator[tuple[Any, ...]]:
    """Rows of the index; records without an id have a hash of what makes two of them equal."""
    for number, (start, size, record) in enumerate(lines):
        digest = None
        if isinstance(record, _COPIED):
            text = record.model_dump_json(exclude={"usage"} if isinstance(record, StepScores) else None)
            digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
        yield number, start, size, *facts_of(record), digest


def _leave_out_repeated(
    database: sqlite3.Connection, record: type[Record], read: Callable[[Any], Iterator[Record]], name: str
) -> int:
    """Keep the first of equal records; the number of the others. Raises ``RecordError`` if records with one
    id differ.

    Problems are equal if text and answer are: each trace may come with its own copy of its problem.
    """
    if issubclass(record, Problem | Trace):
        for (key,) in database.execute("SELECT key FROM places GROUP BY key HAVING count(*) > 1"):
            lines = database.execute("SELECT start, bytes FROM places WHERE key = ?", (key,))
            first, *copies = (
                (item.text, item.answer) if isinstance(item, Problem) else item for item in read(lines)
            )
            if any(copy != first for copy in copies):
                what = "problems" if issubclass(record, Problem) else "traces"
                raise RecordError(f"{name}: two different {what} have the id {key!r}; give each its own")
    elif record not in _COPIED:
        return 0
    [(count,)] = database.execute("SELECT count(*) FROM places")
    [(different,)] = database.execute("SELECT count(*) FROM (SELECT 1 FROM places GROUP BY key, digest)")
    if different < count:
        database.execute("ALTER TABLE places RENAME TO all_places")
        database.execute(_PLACES)
        database.execute(
            "INSERT INTO places SELECT row_number() OVER (ORDER BY number) - 1, start, bytes, key, parent, "
            "size, digest FROM all_places WHERE number IN "
            "(SELECT min(number) FROM all_places GROUP BY key, digest)"
        )
        database.execute("DROP TABLE all_places")
        database.execute(_BY_KEY)
    if issubclass(record, StepScores):
        query = "SELECT key, parent FROM places GROUP BY key, parent HAVING count(*) > 1 LIMIT 1"
        for key, scorer in database.execute(query):
            raise RecordError(
                f"{name}: different scores of trace {key!r} by {scorer!r}; give one "
                "of them, or each scorer its own name"
            )
    return int(count - different)


class Seen:
    """Counts ids; the latest in memory, others in a temporary SQLite database. Close it."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        set_for_writing(self._database)
        self._database.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, times INTEGER) WITHOUT ROWID")
        self._database.execute("BEGIN")
        self._latest: dict[str, int] = {}
        self._has_stored = False

    def close(self) -> None:
        """Delete the database; a second call does nothing."""
        self._database.close()

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


def set_for_writing(database: sqlite3.Connection) -> None:
    """Bound the cache and skip journal and syncs: a database of this module is made again after a crash."""
    for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
        database.execute(f"PRAGMA {setting}")


Cut = Callable[[Trace], Trace]
"""Cuts a trace into steps."""

_CACHED_PROBLEMS = 256
"""Problems that stay in memory: the traces of a problem are usually neighbours."""


@dataclass
class LeftOut:
    """Counts of traces that a join leaves out or cuts into steps."""

    orphans: int = 0
    """Traces whose problem is missing."""
    first_orphan: tuple[str, str] | None = None
    """Id of the first of them, and of its problem."""
    stepless: int = 0
    """Traces without text to cut into steps."""
    first_stepless: str | None = None
    cut: int = 0
    """Traces that were cut into ``new_steps``."""
    new_steps: int = 0


class Joined(OnDisk[P], Generic[P]):
    """Traces of a table with their problems, and with labels after :meth:`labelled`; it can be pickled."""

    def __init__(
        self,
        problems: RecordTable[Problem],
        traces: RecordTable[Trace],
        items: Index,
        cut: Cut,
        labels: RecordTable[StepLabel] | None = None,
    ) -> None:
        self.problems, self.traces, self.labels = problems, traces, labels
        self._items, self._cut = items, cut

    def __len__(self) -> int:
        [(count,)] = self._items.query("SELECT coalesce(max(number) + 1, 0) FROM items")
        return int(count)

    def between(self, start: int, stop: int) -> Iterator[P]:
        """Yield items ``start … stop - 1``."""
        problems = dict[str, Problem]()
        query = "SELECT start, bytes FROM items WHERE number >= ? AND number < ? ORDER BY number"
        for trace in self.traces.read(self._items.query(query, (start, stop))):
            if (name := trace.problem_id) not in problems:
                if len(problems) == _CACHED_PROBLEMS:
                    problems.clear()
                problems[name] = self.problems.find(name)[-1]
            item: Any = ProblemTrace(problem=problems[name], trace=trace if trace.steps else self._cut(trace))
            if self.labels is not None:
                labels = tuple(self.labels.find(trace.id))
                item = LabelledTrace(problem=item.problem, trace=item.trace, labels=labels)
            yield item

    @property
    def digest(self) -> str:
        """A hash of the files that the items come from, and of the selection."""
        chosen = hashlib.blake2b(digest_size=16)
        for (first,) in self._items.query("SELECT first FROM items ORDER BY number"):
            chosen.update(first.to_bytes(8, "little"))
        digest = content_id(self.problems.digest, self.traces.digest, chosen.hexdigest())
        return digest if self.labels is None else content_id(digest, self.labels.digest)

    def problem_ids(self) -> Iterator[str]:
        """The problem id of each item; no item is read."""
        return (problem for (problem,) in self._items.query("SELECT problem FROM items ORDER BY number"))

    def of_problems(self, keep: Callable[[str], bool]) -> Self:
        """The items of the problems for whose ids ``keep`` is true; no item is read."""
        return self._with(row for row in self._rows() if keep(row[-1]))

    def where(self, keep: Callable[[P], bool]) -> Self:
        """The items for which ``keep`` is true; all items are read once."""
        return self._with(row for row, item in zip(self._rows(), self, strict=True) if keep(item))

    def labelled(self, labels: RecordTable[StepLabel]) -> LabelledTraces:
        """The same traces with their labels; a trace without labels has an empty tuple."""
        return Joined(self.problems, self.traces, self._items, self._cut, labels)

    @property
    def strays(self) -> int:
        """Number of labels whose trace is not among the items."""
        if self.labels is None:
            return 0
        with closing(sqlite3.connect(uri_of(self._items.path), uri=True)) as database:
            database.execute("ATTACH ? AS labels", (uri_of(self.labels.lookup.path),))
            query = "SELECT count(*) FROM labels.places WHERE key NOT IN (SELECT trace FROM main.items)"
            [(count,)] = database.execute(query)
        return int(count)

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        return self._items.query("SELECT first, start, bytes, trace, problem FROM items ORDER BY number")

    def _with(self, rows: Iterable[tuple[Any, ...]]) -> Self:
        """The same tables with other items."""
        items = _write_items(self._items.path.parent, rows)
        return type(self)(self.problems, self.traces, items, self._cut, self.labels)


JoinedTraces = Joined[ProblemTrace]
LabelledTraces = Joined[LabelledTrace]


def join_traces(
    problems: RecordTable[Problem], traces: RecordTable[Trace], cut: Cut
) -> tuple[JoinedTraces, LeftOut]:
    """Traces with their problems, and which traces were left out. ``cut`` cuts traces without steps."""
    left_out = LeftOut()
    items = _write_items(traces.lookup.path.parent, _usable(problems, traces, cut, left_out))
    return Joined(problems, traces, items, cut), left_out


def _usable(
    problems: RecordTable[Problem], traces: RecordTable[Trace], cut: Cut, left_out: LeftOut
) -> Iterator[tuple[Any, ...]]:
    with closing(sqlite3.connect(uri_of(traces.lookup.path), uri=True)) as database:
        database.execute("ATTACH ? AS problems", (uri_of(problems.lookup.path),))
        rows = database.execute(
            "SELECT number, start, bytes, key, parent, size, "
            "EXISTS (SELECT 1 FROM problems.places AS problem WHERE problem.key = trace.parent) "
            "FROM main.places AS trace ORDER BY number"
        )
        for first, start, size_bytes, key, parent, steps, has_problem in rows:
            if not has_problem:
                left_out.orphans += 1
                left_out.first_orphan = left_out.first_orphan or (key, parent)
                continue
            if not steps:
                [trace] = traces.read([(start, size_bytes)])
                steps = len(cut(trace).steps)
                if not steps:
                    left_out.stepless += 1
                    left_out.first_stepless = left_out.first_stepless or key
                    continue
                left_out.cut += 1
                left_out.new_steps += steps
            yield first, start, size_bytes, key, parent


def _write_items(folder: Path, rows: Iterable[tuple[Any, ...]]) -> Index:
    handle, name = mkstemp(suffix=".items", dir=folder)
    os.close(handle)
    with closing(sqlite3.connect(name)) as database:
        set_for_writing(database)
        database.execute(
            "CREATE TABLE items (number INTEGER PRIMARY KEY, first INTEGER, start INTEGER, bytes INTEGER, "
            "trace TEXT, problem TEXT)"
        )
        numbered = ((number, *row) for number, row in enumerate(rows))
        database.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", numbered)
        database.execute("CREATE INDEX by_trace ON items (trace)")
        database.commit()
    return Index(Path(name))
