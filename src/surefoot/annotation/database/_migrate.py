"""Bring a database to this version's tables, once, whoever opens it first."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from surefoot.annotation.database._engine import Connections
from surefoot.errors import StoreError

MIGRATIONS: Final = Path(__file__).parent / "migrations"

_LOCK: Final = 0x5EF007
"""Number of the PostgreSQL advisory lock under which migrations run."""


def run_migrations(connections: Connections) -> None:
    """Run the migrations that are missing, in one transaction: all of them or none.

    Raises ``StoreError`` if the database was made by a newer version, whose tables this one cannot know.
    """
    config = _config()
    head = ScriptDirectory.from_config(config).get_current_head()
    with connections.read() as connection:
        if _revision(connection) == head:
            return
    with connections.write() as connection:
        if not connections.sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
        _refuse_newer(connection, config)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def check_tables(connections: Connections) -> None:
    """Raise ``StoreError`` unless the database has exactly this version's tables."""
    config = _config()
    head = ScriptDirectory.from_config(config).get_current_head()
    with connections.read() as connection:
        _refuse_newer(connection, config)
        found = _revision(connection)
    if found != head:
        raise StoreError(
            f"the database is at version {found or 'none'}, this needs {head}; open it with migrate=True"
        )


def _config() -> Config:
    config = Config()
    # a per cent sign would be read as interpolation
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(connection: Connection, config: Config) -> None:
    found = _revision(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise StoreError(f"the database is at version {found}, made by a newer surefoot; upgrade surefoot")
