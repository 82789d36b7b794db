"""Which item an annotator gets next, and who holds an item. All under the project's lock."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._errors import ConflictError, ForbiddenError
from surefoot.annotation.database.accounts import Project
from surefoot.annotation.database.annotation import ChosenBy, Item

_A = t.assignments.c


def choose(
    connection: Connection, project: Project, user_id: int, rng: random.Random, at: datetime
) -> tuple[int, ChosenBy] | None:
    """The item for the user after screening, and by what it was chosen; ``None`` if none is left.

    The number of draws from ``rng`` does not depend on what is left, so that a seed gives one order.
    """
    protocol = project.protocol
    control, at_random = rng.random() < protocol.control_share, rng.random() < protocol.random_share
    place = rng.random()
    if control:
        found = _at(connection, open_to(project, user_id, "control", at), place)
        if found is not None:
            return found, "control"
    query = open_to(project, user_id, "normal", at)
    policy = "random" if at_random else protocol.queue
    if policy == "random":
        found = _at(connection, query, place)
    elif policy == "order":
        found = connection.scalar(query.order_by(t.items.c.id).limit(1))
    else:
        ranked = and_(t.priorities.c.item_id == t.items.c.id, t.priorities.c.policy == policy)
        query = query.join(t.priorities, ranked, isouter=True)
        query = query.order_by(t.priorities.c.value.desc().nulls_last(), t.items.c.id)
        found = connection.scalar(query.limit(1))
    return None if found is None else (found, policy)


def open_to(project: Project, user_id: int, role: str, at: datetime) -> Select[int]:
    """Query of the items of a role that the user may be given: not finished or skipped, and not full."""
    over = exists().where(
        _A.item_id == t.items.c.id, _A.user_id == user_id, _A.state.in_(["done", "skipped"])
    )
    query = select(t.items.c.id).where(
        t.items.c.project_id == project.id, t.items.c.active.is_(True), t.items.c.role == role, ~over
    )
    if role != "normal":
        return query  # known answers are for everybody
    taken = select(func.count()).where(_A.item_id == t.items.c.id, occupies(at)).scalar_subquery()
    return query.where(taken < project.protocol.annotators)


def occupies(at: datetime) -> ColumnElement[bool]:
    """Whether an assignment takes one of the item's places: done, or held right now."""
    return or_(_A.state == "done", and_(_A.state == "leased", _A.leased_until > at))


def lease(
    connection: Connection, project: Project, item_id: int, user_id: int, by: ChosenBy, at: datetime
) -> RowMapping:
    """Give the item to the user, who had it before at most as a lease that ran out."""
    until = at + timedelta(seconds=project.protocol.lease_seconds)
    mine = (_A.item_id == item_id) & (_A.user_id == user_id)
    # what chose it first stays: labels of the earlier lease bear it
    again = update(t.assignments).where(mine).values(leased_until=until, state="leased")
    row = connection.execute(again.returning(t.assignments)).mappings().one_or_none()
    if row is not None:
        return row
    new = {
        "project_id": project.id,
        "item_id": item_id,
        "user_id": user_id,
        "state": "leased",
        "chosen_by": by,
        "leased_until": until,
        "created": at,
    }
    query = insert(t.assignments).values(new).returning(t.assignments)
    return connection.execute(query).mappings().one()


def refuse_full(connection: Connection, project: Project, item: Item, user_id: int, at: datetime) -> None:
    """Raise ``ConflictError`` if others take all places of the item."""
    if item.role != "normal":
        return
    others = (_A.item_id == item.id) & (_A.user_id != user_id) & occupies(at)
    taken = connection.scalar(select(func.count()).where(others)) or 0
    if taken >= project.protocol.annotators:
        raise ConflictError(f"item {item.id} is with {taken} others, as many as asked")


def held(connection: Connection, project: Project, item: Item, user_id: int, at: datetime) -> RowMapping:
    """The user's lease of the item, prolonged; one that ran out is given back while there is room.

    Raises ``ForbiddenError`` if the item was never given to them, ``ConflictError`` if it is finished or
    skipped, or went to others meanwhile.
    """
    if project.archived:
        raise ConflictError("the project is archived; nothing more is labelled in it")
    row = assignment_row(connection, item.id, user_id)
    if row["state"] != "leased":
        raise ConflictError(f"the user has item {item.id} as {row['state']}; undo to open it again")
    if row["leased_until"] <= at:
        refuse_full(connection, project, item, user_id, at)
    return lease(connection, project, item.id, user_id, row["chosen_by"], at)


def assignment_row(connection: Connection, item_id: int, user_id: int) -> RowMapping:
    """The user's assignment of the item. Raises ``ForbiddenError`` if there is none."""
    query = select(t.assignments).where(_A.item_id == item_id, _A.user_id == user_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise ForbiddenError(f"item {item_id} was not given to user {user_id}; ask for the next one")
    return row


def change(connection: Connection, assignment_id: int, **values: Any) -> RowMapping:
    """Write ``values`` into an assignment and return it."""
    query = update(t.assignments).where(_A.id == assignment_id).values(values)
    return connection.execute(query.returning(t.assignments)).mappings().one()


def _at(connection: Connection, query: Select[int], place: float) -> int | None:
    count = connection.scalar(select(func.count()).select_from(query.subquery())) or 0
    return connection.scalar(query.order_by(t.items.c.id).offset(int(place * count)).limit(1))
