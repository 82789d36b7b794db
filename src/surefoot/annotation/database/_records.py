"""Records in and out of ``payload`` columns, many at a time or one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Table, insert, select

from surefoot.annotation.database._checks import checked_name, checked_text, payload_of
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._errors import NotFoundError
from surefoot.annotation.database._tables import problems, traces
from surefoot.annotation.database.projects import locked_project, project_in
from surefoot.errors import StoreError
from surefoot.records import Problem, Record, Trace

R = TypeVar("R", bound=Record)

CHUNK: Final = 200
"""Records a transaction: small enough that others get their turn."""

_REASONS_KEPT: Final = 20


@dataclass(frozen=True, kw_only=True)
class Added:
    """What became of records: ``new`` + ``same`` + ``replaced`` + ``refused`` were given."""

    new: int = 0
    same: int = 0
    """Were there already, and equal."""
    replaced: int = 0
    """Scores that took the place of older ones of the same scorer."""
    refused: int = 0
    reasons: tuple[tuple[str, str], ...] = ()
    """(id, why) of the first 20 that were refused."""

    def __add__(self, other: Added) -> Added:
        return Added(
            new=self.new + other.new,
            same=self.same + other.same,
            replaced=self.replaced + other.replaced,
            refused=self.refused + other.refused,
            reasons=(self.reasons + other.reasons)[:_REASONS_KEPT],
        )


def add_in_chunks(
    connections: Connections,
    project_id: int,
    records: Iterable[R],
    add: Callable[[Connection, int, R], Added],
) -> Added:
    """Give each record to ``add``, in transactions of ``CHUNK`` under the project's lock.

    ``add`` may refuse one with a ``StoreError`` before it writes anything. Raises ``NotFoundError``.
    """
    total, waiting = Added(), iter(records)
    with connections.read() as connection:
        project_in(connection, project_id)
    while chunk := list(islice(waiting, CHUNK)):
        with connections.write() as connection:
            locked_project(connection, project_id)
            for record in chunk:
                total += _refusing(add, connection, project_id, record)
    return total


def record_in(connection: Connection, table: Table, kind: type[R], project_id: int, record_id: str) -> R:
    """The record of a ``payload`` column, in the caller's transaction. Raises ``NotFoundError``."""
    query = select(table.c.payload).where(table.c.project_id == project_id, table.c.id == record_id)
    payload = connection.scalar(query)
    if payload is None:
        raise NotFoundError(f"project {project_id} has no {kind.__name__.lower()} '{record_id}'")
    return kind.model_validate_json(payload)


def put_trace(connection: Connection, project_id: int, trace: Trace, at: datetime) -> Added:
    """Add a trace, in the caller's transaction.

    Raises ``StoreError`` for an unknown problem, or a known id with other content.
    """
    checked_name("problem_id", trace.problem_id)
    record_in(connection, problems, Problem, project_id, trace.problem_id)
    columns = {
        "id": checked_name("id", trace.id),
        "problem_id": trace.problem_id,
        "policy": None if trace.policy is None else checked_text("policy", trace.policy),
        "outcome": trace.outcome,
        "steps": len(trace.steps),
    }
    return put_record(connection, traces, project_id, trace, columns, at)


def put_record(
    connection: Connection,
    table: Table,
    project_id: int,
    record: Problem | Trace,
    columns: dict[str, Any],
    at: datetime,
) -> Added:
    """Add a row that has an id and a payload, unless it is there. Raises ``StoreError`` if it differs."""
    payload = payload_of(record)
    where = (table.c.project_id == project_id) & (table.c.id == record.id)
    before = connection.scalar(select(table.c.payload).where(where))
    if before == payload:
        return Added(same=1)
    if before is not None:
        raise StoreError("this id is in the project with other content; give it another id")
    row = {"project_id": project_id, "payload": payload, "created": at, **columns}
    connection.execute(insert(table).values(row))
    return Added(new=1)


def _refusing(
    add: Callable[[Connection, int, R], Added], connection: Connection, project_id: int, record: R
) -> Added:
    try:
        return add(connection, project_id, record)
    except StoreError as error:
        name = getattr(record, "id", None) or getattr(record, "trace_id", "")
        return Added(refused=1, reasons=((str(name), str(error)),))
