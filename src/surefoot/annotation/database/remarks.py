"""Comments and flags on items, traces and steps."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import func, insert, select, update

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._checks import checked_text
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._errors import NotFoundError
from surefoot.annotation.database._items import item_in
from surefoot.annotation.database._records import record_in
from surefoot.annotation.database.annotation import Remark
from surefoot.annotation.database.projects import locked_project, project_in, pseudonym_in
from surefoot.errors import StoreError
from surefoot.records import Trace

Kind = Literal["comment", "flag"]


class Remarks:
    """Repository of comments and flags. To stay blind, an annotator is shown their own only."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def add(
        self,
        project_id: int,
        item_id: int,
        user_id: int,
        kind: Kind,
        text: str,
        *,
        trace_id: str | None = None,
        step: int | None = None,
    ) -> Remark:
        """Append a comment or flag on an item, or a trace of it, or a step of that trace.

        Raises ``ForbiddenError`` if the user is no member, ``StoreError`` naming the field that is wrong.
        """
        if kind not in ("comment", "flag") or not text.strip():
            raise StoreError("a remark needs a 'kind' (comment or flag) and a 'text'")
        checked_text("text", text)
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            pseudonym_in(connection, project_id, user_id)
            item = item_in(connection, project_id, item_id)
            if trace_id is not None and trace_id not in item.trace_ids:
                raise StoreError(f"'trace_id' is no trace of item {item_id}")
            if step is not None:
                name = trace_id if trace_id is not None else item.trace_ids[0]
                steps = len(record_in(connection, t.traces, Trace, project_id, name).steps)
                if not 0 <= step < steps:
                    raise StoreError(f"'step' {step}: the trace has steps 0 to {steps - 1}")
            row = {
                "project_id": project_id,
                "item_id": item_id,
                "trace_id": trace_id,
                "step": step,
                "user_id": user_id,
                "kind": kind,
                "text": text,
                "created": self._connections.clock(),
            }
            made = connection.execute(insert(t.remarks).values(row).returning(t.remarks)).mappings().one()
            return _remark(dict(made))

    def list(
        self,
        project_id: int,
        *,
        item_id: int | None = None,
        user_id: int | None = None,
        kind: Kind | None = None,
        resolved: bool | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> list[Remark]:
        """Remarks in the order they came, those with an id above ``after``; at most ``limit``.

        For an annotator give their ``user_id``.
        """
        r = t.remarks.c
        query = select(t.remarks).where(r.project_id == project_id, r.id > after).order_by(r.id).limit(limit)
        for column, value in ((r.item_id, item_id), (r.user_id, user_id), (r.kind, kind)):
            if value is not None:
                query = query.where(column == value)
        if resolved is not None:
            query = query.where(r.resolved.is_not(None) if resolved else r.resolved.is_(None))
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return [_remark(dict(row)) for row in connection.execute(query).mappings()]

    def open_flags(self, project_id: int) -> int:
        """How many flags nobody has resolved. Comments are not counted: they ask for nothing."""
        r = t.remarks.c
        query = select(func.count()).where(r.project_id == project_id, r.kind == "flag", r.resolved.is_(None))
        with self._connections.read() as connection:
            return connection.scalar(query) or 0

    def resolve(self, project_id: int, remark_id: int) -> None:
        """Mark a flag or comment as dealt with; a second time changes nothing. Raises ``NotFoundError``."""
        r = t.remarks.c
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            where = (r.project_id == project_id) & (r.id == remark_id)
            if connection.scalar(select(r.id).where(where)) is None:
                raise NotFoundError(f"project {project_id} has no remark {remark_id}")
            at = self._connections.clock()
            connection.execute(update(t.remarks).where(where, r.resolved.is_(None)).values(resolved=at))


def _remark(row: dict[str, object]) -> Remark:
    del row["project_id"]
    return Remark(**row)  # type: ignore[arg-type]
