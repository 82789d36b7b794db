"""From a URL to connections: SQLite (WAL, full synchronisation), or PostgreSQL through psycopg 3."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Dialect, Engine, Table, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from surefoot.errors import ConflictError, MissingExtraError, NotFoundError, StoreError, UnavailableError
from surefoot.extras import sentence

_WRITES = "surefoot_writes"
"""Execution option of a connection whose transaction is going to write."""

_BUSY_SECONDS = 30
"""How long a writer waits for another process's transaction before the write fails."""

R = TypeVar("R")
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The clock of leases and sessions."""
    return datetime.now(UTC)


class Connections:
    """Short transactions on one engine, from any thread.

    SQLite has one writer at a time and makes others poll with growing pauses, so writers of this process
    queue on a lock instead, and polling is left for other processes.
    """

    def __init__(self, engine: Engine, clock: Clock = utc_now) -> None:
        self.engine = engine
        self.clock = clock
        self.sqlite = engine.dialect.name == "sqlite"
        self._one_writer = threading.Lock() if self.sqlite else nullcontext()
        self._peeking: sqlite3.Connection | None = None
        self._peek_lock = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database throughout (a snapshot)."""
        with _translated(reading=True), self.engine.connect() as connection:
            if not self.sqlite:
                connection = connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is on disk when the block is left, or undone if the block raises."""
        with _translated(reading=False), self._one_writer, self.engine.connect() as connection:
            connection = connection.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    def peek(self, query: str, value: str) -> tuple[Any, ...] | None:
        """The first row of a query as SQLite stores it, read on a separate connection within microseconds.

        ``None`` without a row, if another process holds a lock, and for PostgreSQL.
        """
        if not self.sqlite:
            return None
        with self._peek_lock:
            try:
                if self._peeking is None:
                    file = str(self.engine.url.database)
                    self._peeking = sqlite3.connect(
                        file, timeout=0, isolation_level=None, check_same_thread=False
                    )
                row: tuple[Any, ...] | None = self._peeking.execute(query, (value,)).fetchone()
            except sqlite3.Error:
                return None
        return row

    def close(self) -> None:
        """Close all connections that are not in use."""
        with self._peek_lock:
            if self._peeking is not None:
                self._peeking.close()
                self._peeking = None
        self.engine.dispose()


class Repository:
    """Methods over one kind of data; each is one short transaction."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Add the rows, which have the same columns, that no unique constraint forbids; how many were added.

    For the rows of each request: a statement of SQLAlchemy takes ten times as long as the driver's.
    """
    if not rows:
        return 0
    statement, processors = _insertion(connection.dialect, table, tuple(rows[0]), len(rows[:_ROWS]))
    values = [list(row.values()) for row in rows[:_ROWS]]
    for column, process in processors:
        for row in values:
            row[column] = process(row[column])
    # one statement for all rows: the driver asks for the interpreter's lock after each execution
    new = connection.exec_driver_sql(statement, tuple(chain.from_iterable(values))).rowcount
    return new + insert_missing(connection, table, rows[_ROWS:])


_ROWS = 64
"""Rows of one statement."""


@lru_cache(4 * _ROWS)
def _insertion(
    dialect: Dialect, table: Table, names: tuple[str, ...], rows: int
) -> tuple[str, list[tuple[int, Callable[[Any], Any]]]]:
    """The driver's statement for so many rows, and what turns values into the database's, by position."""
    mark = "?" if dialect.paramstyle == "qmark" else "%s"
    by_column = (table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names)
    processors: list[tuple[int, Callable[[Any], Any]]] = [
        (at, process) for at, process in enumerate(by_column) if process is not None
    ]
    marks = ", ".join([f"({', '.join([mark] * len(names))})"] * rows)
    sql = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {marks} ON CONFLICT DO NOTHING"  # noqa: S608
    return sql, processors


def connect(url: str | Path) -> Engine:
    """Engine of ``url``: ``sqlite:///file``, a plain path, or ``postgresql://…``.

    Raises ``StoreError`` for another kind of URL, an SQLite database in memory (each thread would see its
    own), a missing folder, or a missing driver.
    """
    parsed = _parse(url)
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return _sqlite(parsed)
    if backend == "postgresql":
        return _postgresql(parsed)
    raise StoreError(f"'{backend}' databases are not supported; use sqlite:///FILE or postgresql://…")


def _parse(url: str | Path) -> URL:
    text = str(url)
    if isinstance(url, Path) or "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        return make_url(text)
    except (ArgumentError, ValueError) as error:
        # the text may hold a password, so it is not repeated
        raise StoreError("the database URL cannot be read; use sqlite:///FILE or postgresql://…") from error


def _sqlite(url: URL) -> Engine:
    if url.database in (None, "", ":memory:") or url.query:
        raise StoreError("an SQLite database needs a plain file: sqlite:///FILE (none in memory, no options)")
    path = Path(str(url.database))
    try:
        # created here, so that hashes are not readable by others; SQLite's side files inherit it
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened ({error.strerror}); create its folder first") from error
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"timeout": _BUSY_SECONDS},
        pool_size=8,
        max_overflow=32,
        hide_parameters=True,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(raw: sqlite3.Connection, _record: object) -> None:
    # The module's own transactions begin too late, at the first write; _begin_sqlite begins them instead.
    raw.isolation_level = None
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA trusted_schema = OFF")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that starts as a reader cannot always become a writer: writers say so at once.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql(url: URL) -> Engine:
    try:
        return create_engine(
            url.set(drivername="postgresql+psycopg"),
            # whatever the server's default: an acknowledged write is on disk
            connect_args={"options": "-c synchronous_commit=on -c lock_timeout=30s", "connect_timeout": 10},
            pool_size=8,
            max_overflow=32,
            hide_parameters=True,
            pool_pre_ping=True,
        )
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise MissingExtraError(f"PostgreSQL needs {sentence('psycopg')}") from error


@contextmanager
def _translated(*, reading: bool) -> Iterator[None]:
    """Database errors as the package's own; ``hide_parameters`` keeps secrets out of them."""
    try:
        yield
    except IntegrityError as error:
        raise ConflictError(f"the database rejects it: {_first_line(error)}") from error
    except (DataError, OverflowError, UnicodeEncodeError) as error:
        # a parameter that no column can hold, e.g. an id above 2^63, so no row has it
        refusal = NotFoundError if reading else StoreError
        reason = _first_line(error) if isinstance(error, DBAPIError) else str(error)
        raise refusal(f"no row can hold this: {reason}") from error
    except DBAPIError as error:
        raise UnavailableError(f"the database failed: {_first_line(error)}") from error
    except StatementError as error:
        # a column type refused the value before the driver saw it
        if isinstance(error.orig, StoreError):
            raise error.orig from error
        raise
    except PoolTimeoutError as error:
        raise UnavailableError("all connections to the database are in use; try again") from error


def _first_line(error: DBAPIError) -> str:
    return (str(error.orig).strip().splitlines() or ["no reason given"])[0]
