"""Alembic's entry point: runs the migrations inside the transaction that ``open_database`` holds."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from surefoot.server.store.schema import METADATA


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        transactional_ddl=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


_run(context.config.attributes["connection"])
