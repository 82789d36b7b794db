"""From a URL to connections: SQLite (WAL, full synchronisation), or PostgreSQL through psycopg 3."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
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
from surefoot.server.store.schema import one_of, rows_of

_WRITES = "surefoot_writes"
"""Execution option of a connection whose transaction is going to write."""

_BUSY_SECONDS = 30
"""How long a writer waits for another process's transaction before the write fails."""

T = TypeVar("T")
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The clock of leases and sessions."""
    return datetime.now(UTC)


class Connections:
    """Short transactions on one engine, from any thread.

    SQLite has one writer at a time and makes others poll with growing pauses, so writers of this process
    queue on a lock instead, and polling is left for other processes.
    """

    def __init__(self, engine: sa.Engine, clock: Clock = utc_now) -> None:
        self.engine = engine
        self.clock = clock
        self.sqlite = engine.dialect.name == "sqlite"
        self._one_writer = threading.Lock() if self.sqlite else nullcontext()
        self.keys: dict[str, tuple[datetime, Any]] = {}
        """By hash: when a key was found valid, and its row; emptied when one is revoked."""

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the database throughout (a snapshot)."""
        with _translated(reading=True), self.engine.connect() as connection:
            if not self.sqlite:
                connection = connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that is on disk when the block is left, or undone if the block raises."""
        with _translated(reading=False), self._one_writer, self.engine.connect() as connection:
            connection = connection.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    def append(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows with the same columns, unless a unique constraint forbids them, in one transaction.

        For the record of each request: in SQLite by the driver alone, which takes a third of the time.
        """
        if not self.sqlite:
            with self.write() as connection:
                connection.execute(insert_missing(connection, table), rows)
            return
        statement, processors = _driver_insert(self.engine.dialect, table, tuple(rows[0]), len(rows))
        values = [
            process(value) if process else value
            for row in rows
            for process, value in zip(processors, row.values(), strict=True)
        ]
        with _translated(reading=False), self._one_writer, closing(self.engine.raw_connection()) as pooled:
            try:
                # one statement, and so one transaction: the driver asks for the interpreter's lock after each
                cast("sqlite3.Connection", pooled.driver_connection).execute(statement, values)
            except sqlite3.Error as error:
                raise UnavailableError(f"the database failed: {error}") from error

    def close(self) -> None:
        """Close all connections that are not in use."""
        self.engine.dispose()


class Repository:
    """Methods over one kind of data; each is one short transaction."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @property
    def _now(self) -> datetime:
        return self._connections.clock()

    def _rows(self, kind: type[T], query: sa.Executable) -> list[T]:
        with self._connections.read() as connection:
            return rows_of(connection, kind, query)

    def _one(self, kind: type[T], query: sa.Executable, missing: str) -> T:
        with self._connections.read() as connection:
            return one_of(connection, kind, query, missing)

    def _all(self, query: sa.Executable) -> Sequence[Any]:
        with self._connections.read() as connection:
            return connection.execute(query).all()

    def _change(self, query: sa.Executable) -> int:
        """Run one statement in its transaction; the number of rows that it changed."""
        with self._connections.write() as connection:
            return changed_by(connection, query)


def changed_by(connection: sa.Connection, query: sa.Executable) -> int:
    """Run a statement that changes rows; their number."""
    return cast("sa.CursorResult[Any]", connection.execute(query)).rowcount


def insert_missing(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Statement that adds rows unless a unique constraint forbids them."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    return insert(table).on_conflict_do_nothing()


@lru_cache(64)
def _driver_insert(
    dialect: sa.Dialect, table: sa.Table, names: tuple[str, ...], rows: int
) -> tuple[str, list[Any]]:
    """The driver's statement for so many rows, and what turns each value of a row into the database's, or
    ``None``."""
    processors = [table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names]
    marks = ", ".join([f"({', '.join('?' * len(names))})"] * rows)
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {marks} ON CONFLICT DO NOTHING", processors  # noqa: S608


def connect(url: str | Path) -> sa.Engine:
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


def _parse(url: str | Path) -> sa.URL:
    text = str(url)
    if isinstance(url, Path) or "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        return sa.make_url(text)
    except (ArgumentError, ValueError) as error:
        # the text may hold a password, so it is not repeated
        raise StoreError("the database URL cannot be read; use sqlite:///FILE or postgresql://…") from error


def _sqlite(url: sa.URL) -> sa.Engine:
    if url.database in (None, "", ":memory:") or url.query:
        raise StoreError("an SQLite database needs a plain file: sqlite:///FILE (none in memory, no options)")
    path = Path(str(url.database))
    try:
        # created here, so that hashes are not readable by others; SQLite's side files inherit it
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened ({error.strerror}); create its folder first") from error
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"timeout": _BUSY_SECONDS},
        pool_size=8,
        max_overflow=32,
        hide_parameters=True,
    )
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(raw: sqlite3.Connection, _record: object) -> None:
    # The module's own transactions begin too late, at the first write; _begin_sqlite begins them instead.
    raw.isolation_level = None
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("PRAGMA wal_autocheckpoint = 4000")  # 16 MB: a page that many commits write is copied once
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA trusted_schema = OFF")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that starts as a reader cannot always become a writer: writers say so at once.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql(url: sa.URL) -> sa.Engine:
    try:
        return sa.create_engine(
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
