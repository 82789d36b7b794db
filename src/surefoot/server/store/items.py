"""Items: the solutions that annotators label."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import get_args

from sqlalchemy import Connection, Select, bindparam, exists, insert, select, update

from surefoot.errors import NotFoundError, StoreError
from surefoot.records import Trace
from surefoot.server.store import labelling as t
from surefoot.server.store.engine import Repository
from surefoot.server.store.labelling import Item, ItemRole, NewItem
from surefoot.server.store.projects import locked_project, project_in
from surefoot.server.store.schema import checked_name, digest_of, matching, one_of, rows_of
from surefoot.server.store.traces import CHUNK, record_in


class Items(Repository):
    """Repository of items."""

    def add(self, project_id: int, items: Sequence[NewItem]) -> list[int]:
        """Add items, all or none; for one equal to an existing item, that item's id is returned.

        Raises ``NotFoundError`` for an unknown trace; ``StoreError`` for a trace without steps, or known
        answers that do not fit the role.
        """
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            return [self._put(connection, project_id, item) for item in items]

    def add_solutions(self, project_id: int, trace_ids: Sequence[str] | None = None) -> list[int]:
        """An item for each trace; by default for every trace with steps but without an item.

        Many items take several transactions, so that others get their turn; repeated after a failure, it adds
        the missing items.
        """
        if trace_ids is None:
            with self._connections.read() as connection:
                project_in(connection, project_id)
                trace_ids = list(connection.scalars(_without_item(project_id)))
        new = [NewItem(trace_id=trace_id) for trace_id in trace_ids]
        return [
            item_id
            for start in range(0, len(new), CHUNK)
            for item_id in self.add(project_id, new[start : start + CHUNK])
        ]

    def get(self, project_id: int, item_id: int) -> Item:
        """The whole item with its known answers: not for annotators. Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return item_in(connection, project_id, item_id)

    def of_ids(self, project_id: int, ids: Collection[int]) -> dict[int, Item]:
        """Items by number, without those that the project lacks. Not for annotators."""
        query = select(t.items).where(t.items.c.project_id == project_id, t.items.c.id.in_(ids))
        with self._connections.read() as connection:
            return {item.id: item for item in rows_of(connection, Item, query)}

    def list(self, project_id: int, *, role: ItemRole | None = None) -> list[Item]:
        """Items in the order they were added. Not for annotators."""
        query = select(t.items).where(*matching(t.items, project_id=project_id, role=role))
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return rows_of(connection, Item, query.order_by(t.items.c.id))

    def set_priorities(self, project_id: int, values: Mapping[int, float]) -> None:
        """Replace the priorities: the highest comes first, items without one last.

        Raises ``NotFoundError`` for an item of another project, ``StoreError`` for an infinite value or NaN.
        """
        bad = next((item for item, value in values.items() if not math.isfinite(value)), None)
        if bad is not None:
            raise StoreError(f"the priority of item {bad} is {values[bad]}; leave it out instead")
        item, of_project = t.items.c, t.items.c.project_id == project_id
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            foreign = sorted(set(values) - set(connection.scalars(select(item.id).where(of_project))))
            if foreign:
                raise NotFoundError(f"project {project_id} does not have item {foreign[0]}")
            connection.execute(update(t.items).where(of_project).values(priority=None))
            if rows := [{"number": item_id, "value": value} for item_id, value in values.items()]:
                ranked = update(t.items).where(item.id == bindparam("number"))
                connection.execute(ranked.values(priority=bindparam("value")), rows)

    def priorities(self, project_id: int) -> dict[int, float]:
        """The priorities that ``set_priorities`` stored last."""
        item = t.items.c
        query = select(item.id, item.priority).where(
            item.project_id == project_id, item.priority.is_not(None)
        )
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return {row.id: row.priority for row in connection.execute(query)}

    def _put(self, connection: Connection, project_id: int, item: NewItem) -> int:
        trace = record_in(connection, t.traces, Trace, project_id, checked_name("trace_id", item.trace_id))
        _check(item, trace)
        digest = digest_of(item.trace_id, item.role, [asdict(answer) for answer in item.known])
        where = (t.items.c.project_id == project_id) & (t.items.c.digest == digest)
        existing: int | None = connection.scalar(select(t.items.c.id).where(where))
        if existing is not None:
            return existing
        row = {
            "project_id": project_id,
            "problem_id": trace.problem_id,
            "trace_id": trace.id,
            "role": item.role,
            "known": item.known,
            "digest": digest,
            "created": self._connections.clock(),
        }
        return int(connection.execute(insert(t.items).values(row).returning(t.items.c.id)).scalar_one())


def _without_item(project_id: int) -> Select[str]:
    trace, item = t.traces.c, t.items.c
    in_item = exists().where(item.project_id == trace.project_id, item.trace_id == trace.id)
    query = select(trace.id).where(trace.project_id == project_id, ~in_item, trace.steps > 0)
    return query.order_by(trace.created, trace.id)


def _check(item: NewItem, trace: Trace) -> None:
    if item.role not in get_args(ItemRole):
        raise StoreError(f"'{item.role}' is not a role of an item; choose from {get_args(ItemRole)}")
    if not trace.steps:
        raise StoreError(f"trace {trace.id} lacks steps to label; cut it first")
    if (item.role == "normal") == bool(item.known):
        raise StoreError(
            "items of role 'control' and 'screening' need 'known' answers; others must have none"
        )
    for answer in item.known:
        if not 0 <= answer.step < len(trace.steps):
            raise StoreError(f"a known answer is about step {answer.step}; the trace does not have it")
        if answer.value not in (-1, 0, 1):
            raise StoreError(f"a known answer is -1, 0 or 1, not {answer.value}")


def item_in(connection: Connection, project_id: int, item_id: int) -> Item:
    """The item, in the caller's transaction. Raises ``NotFoundError``."""
    query = select(t.items).where(t.items.c.project_id == project_id, t.items.c.id == item_id)
    return one_of(connection, Item, query, f"project {project_id} does not have item {item_id}")


def check_step(connection: Connection, item: Item, step: int) -> None:
    """Raise ``StoreError`` unless the item's trace has the step."""
    trace = t.traces.c
    where = (trace.project_id == item.project_id) & (trace.id == item.trace_id)
    steps = connection.scalar(select(trace.steps).where(where)) or 0
    if not 0 <= step < steps:
        raise StoreError(f"'step' {step}: the trace has steps 0 to {steps - 1}")
