"""Opening a database, and its repositories side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from sqlalchemy import Column, Connection, Integer, Table, insert, inspect, select, text

from surefoot.errors import StoreError
from surefoot.server.store.accounts import Keys, Projects, Users
from surefoot.server.store.engine import Clock, Connections, connect, utc_now
from surefoot.server.store.labels import Labels, Reviews
from surefoot.server.store.queue import Assignments, Items
from surefoot.server.store.requests import GoldSamples, HeldCalls, RequestLog
from surefoot.server.store.schema import METADATA
from surefoot.server.store.traces import Traces, create_search
from surefoot.server.store.transfer import ExportRepository

VERSION: Final = 8
"""Version of the tables; raise it with each change of a table after a release."""
database_version = Table("database_version", METADATA, Column("version", Integer, primary_key=True))
_LOCK: Final = 0x5EF007
"""Number of the PostgreSQL advisory lock under which tables are created."""


class Database:
    """The database. Every method of a repository is one short transaction, safe from any thread.

    What a method wrote is on disk when it returns. Methods that take a project's id neither
    read nor write anything of another project. Made by ``open_database``.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.users = Users(connections)
        self.keys = Keys(connections)
        self.projects = Projects(connections)
        self.traces = Traces(connections)
        self.items = Items(connections)
        self.assignments = Assignments(connections)
        self.labels = Labels(connections)
        self.reviews = Reviews(connections)
        self.export = ExportRepository(connections)
        self.gateway = RequestLog(connections)
        self.held_calls = HeldCalls(connections)
        self.gold = GoldSamples(connections)

    @property
    def backend(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._connections.engine.dialect.name

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_database(url: str | Path, *, clock: Clock = utc_now) -> Database:
    """Open the database at ``url``: ``sqlite:///FILE``, a plain path, or ``postgresql://…``.

    The tables of a new database are created. ``clock`` gives the time for leases and sessions.

    Raises ``StoreError`` if it cannot be opened or another version of surefoot made it.
    """
    connections = Connections(connect(url), clock)
    try:
        _create_tables(connections)
    except BaseException:
        connections.close()
        raise
    return Database(connections)


def _create_tables(connections: Connections) -> None:
    """Create the tables of a new database. Raises ``StoreError`` if it has others of their names."""
    name = connections.engine.url.database
    with connections.read() as connection:
        if _version(connection) == VERSION:
            return
    with connections.write() as connection:
        if not connections.sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
        version = _version(connection)  # another process may have created the tables while we waited
        if version is None:
            if old_tables := METADATA.tables.keys() & set(inspect(connection).get_table_names()):
                raise StoreError(
                    f"{name}: tables such as {min(old_tables)!r} lack a version: they are of another "
                    "program, or of a surefoot before 0.1.0; name an empty or a new database"
                )
            METADATA.create_all(connection, checkfirst=False)
            create_search(connection)
            connection.execute(insert(database_version).values(version=VERSION))
        elif version != VERSION:
            raise StoreError(
                f"{name}: the database is at version {version}, and this surefoot uses version "
                f"{VERSION}; open it with the surefoot that made it, export its projects, and import them "
                "into a new database"
            )


def _version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(database_version.name):
        return None
    return connection.scalar(select(database_version.c.version))
