"""Opening a store, and its repositories side by side."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import text

from surefoot.annotation.database import _secrets
from surefoot.annotation.database._engine import Clock, Connections, connect, utc_now
from surefoot.annotation.database._migrate import check_tables, run_migrations
from surefoot.annotation.database.assignments import Assignments
from surefoot.annotation.database.export import Export
from surefoot.annotation.database.gateway import Gateway
from surefoot.annotation.database.items import Items
from surefoot.annotation.database.keys import Keys
from surefoot.annotation.database.labels import Labels
from surefoot.annotation.database.projects import Projects
from surefoot.annotation.database.remarks import Remarks
from surefoot.annotation.database.reviews import Reviews
from surefoot.annotation.database.traces import Traces
from surefoot.annotation.database.users import Users


class Database:
    """The store. Every method of a repository is one short transaction, safe from any thread.

    What a method wrote is on disk when it returns. Methods that take a project's id read and write nothing
    of another project. Made by ``open_database``.
    """

    def __init__(self, connections: Connections, password_cost: int) -> None:
        self._connections = connections
        self.users = Users(connections, password_cost)
        self.keys = Keys(connections)
        self.projects = Projects(connections)
        self.traces = Traces(connections)
        self.items = Items(connections)
        self.assignments = Assignments(connections)
        self.labels = Labels(connections)
        self.remarks = Remarks(connections)
        self.reviews = Reviews(connections)
        self.export = Export(connections)
        self.gateway = Gateway(connections)

    @property
    def backend(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._connections.engine.dialect.name

    def ping(self) -> None:
        """Ask the database for nothing: returns if it answers. Raises ``StoreError``."""
        with self._connections.read() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._connections.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_database(
    url: str | Path,
    *,
    migrate: bool = True,
    clock: Clock = utc_now,
    password_cost: int = _secrets.DEFAULT_COST,
) -> Database:
    """Open the store at ``url``: ``sqlite:///FILE``, a plain path, or ``postgresql://…``.

    Its tables are made, or brought to this version, unless ``migrate`` is false, which only checks
    them. ``clock`` gives the time that leases and sessions go by; ``password_cost`` is log2 of scrypt's N.

    Raises ``StoreError`` if it cannot be opened, or was made by a newer version.
    """
    connections = Connections(connect(url), clock)
    try:
        (run_migrations if migrate else check_tables)(connections)
    except BaseException:
        connections.engine.dispose()
        raise
    return Database(connections, password_cost)
