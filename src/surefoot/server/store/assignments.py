"""Which annotator has which item: the queue, leases that expire, skipping, and the progress of a project."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, or_, select, update

from surefoot.errors import ConflictError, ForbiddenError
from surefoot.server.store import labelling as t
from surefoot.server.store.accounts import Project, members
from surefoot.server.store.engine import Repository
from surefoot.server.store.items import item_in
from surefoot.server.store.labelling import AnnotatorProgress, Assignment, ChosenBy, Item, Offer, Progress
from surefoot.server.store.projects import locked_project, project_in, pseudonym_in
from surefoot.server.store.schema import checked_text, inserted, rows_of

_A = t.assignments.c


class Assignments(Repository):
    """Repository of assignments. An item is never with more annotators than the protocol asks for."""

    def next(self, project_id: int, user_id: int, rng: random.Random) -> Offer:
        """The next item for the user: the one leased to them, then screening, then control, then the queue.

        Raises ``ForbiddenError`` if the user is not a member of the project.
        """
        with self._connections.write() as connection:
            project, at = locked_project(connection, project_id), self._connections.clock()
            pseudonym_in(connection, project_id, user_id)
            if project.archived:
                return Offer(assignment=None, why="empty")
            live = (_A.user_id == user_id) & (_A.state == "leased") & (_A.leased_until > at)
            query = select(t.assignments).where(_A.project_id == project_id, live).order_by(_A.id).limit(1)
            for held in rows_of(connection, Assignment, query):
                renewal = lease(connection, project, held.item_id, user_id, held.chosen_by, at)
                return Offer(assignment=renewal, why="resumed")
            screening = open_to(project, user_id, "screening", at).order_by(t.items.c.id).limit(1)
            item_id = connection.scalar(screening)
            if item_id is None and not passed_screening(connection, project, user_id):
                return Offer(assignment=None, why="screening")
            chosen: tuple[int, ChosenBy] | None = (
                choose(connection, project, user_id, rng, at) if item_id is None else (item_id, "screening")
            )
            if chosen is None:
                return Offer(assignment=None, why="empty")
            return Offer(
                assignment=lease(connection, project, chosen[0], user_id, chosen[1], at), why="leased"
            )

    def skip(self, project_id: int, item_id: int, user_id: int, reason: str) -> Assignment:
        """Leave the item to another annotator; the user never gets it again.

        Raises ``ForbiddenError`` if it was never assigned to them, ``ConflictError`` if it no longer is.
        """
        checked_text("reason", reason)
        with self._connections.write() as connection:
            project, at = locked_project(connection, project_id), self._connections.clock()
            pseudonym_in(connection, project_id, user_id)
            assignment = renewed(connection, project, item_in(connection, project_id, item_id), user_id, at)
            return change(connection, assignment.id, state="skipped", reason=reason, finished=at)

    def of_user(self, project_id: int, user_id: int, limit: int = 100) -> list[Assignment]:
        """The user's assignments, newest first."""
        where = (_A.project_id == project_id) & (_A.user_id == user_id)
        query = select(t.assignments).where(where).order_by(_A.id.desc()).limit(limit)
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return rows_of(connection, Assignment, query)

    def progress(self, project_id: int, users: Collection[int] | None = None) -> Progress:
        """Progress of the project and of ``users`` (default: all). Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            project = project_in(connection, project_id)
            return progress_of(connection, project, self._connections.clock(), users)


def choose(
    connection: Connection, project: Project, user_id: int, rng: random.Random, at: datetime
) -> tuple[int, ChosenBy] | None:
    """The item for the user after screening, and what selected it; ``None`` if none is left.

    The number of draws from ``rng`` does not depend on the items left, so that a seed gives one order.
    """
    protocol = project.protocol
    control, at_random = rng.random() < protocol.control_share, rng.random() < protocol.random_share
    fraction = rng.random()
    item_id: int | None
    if control:
        item_id = _at(connection, open_to(project, user_id, "control", at), fraction)
        if item_id is not None:
            return item_id, "control"
    query = open_to(project, user_id, "normal", at)
    policy = "random" if at_random else protocol.queue
    if policy == "random":
        item_id = _at(connection, query, fraction)
        return None if item_id is None else (item_id, policy)
    if policy != "order":
        query = query.order_by(t.items.c.priority.desc().nulls_last())
    item_id = connection.scalar(query.order_by(t.items.c.id).limit(1))
    return None if item_id is None else (item_id, policy)


def open_to(project: Project, user_id: int, role: str, at: datetime) -> Select[int]:
    """Query for the items of a role that the user may get: not finished or skipped, and not full."""
    over = exists().where(
        _A.item_id == t.items.c.id, _A.user_id == user_id, _A.state.in_(["done", "skipped"])
    )
    query = select(t.items.c.id).where(t.items.c.project_id == project.id, t.items.c.role == role, ~over)
    if role != "normal":
        return query  # items with known answers go to everybody
    occupied = select(func.count()).where(_A.item_id == t.items.c.id, occupies(at)).scalar_subquery()
    return query.where(occupied < project.protocol.annotators)


def occupies(at: datetime) -> ColumnElement[bool]:
    """Whether an assignment occupies one of the item's places: done, or leased right now."""
    return or_(_A.state == "done", and_(_A.state == "leased", _A.leased_until > at))


def lease(
    connection: Connection, project: Project, item_id: int, user_id: int, by: ChosenBy, at: datetime
) -> Assignment:
    """Lease the item to the user, who had it before at most on a lease that expired."""
    until = at + timedelta(seconds=project.protocol.lease_seconds)
    users_lease = (_A.item_id == item_id) & (_A.user_id == user_id)
    # chosen_by stays as it was: labels of the earlier lease carry it
    renewal = update(t.assignments).where(users_lease).values(leased_until=until, state="leased")
    for assignment in rows_of(connection, Assignment, renewal.returning(t.assignments)):
        return assignment
    return inserted(
        connection,
        Assignment,
        t.assignments,
        project_id=project.id,
        item_id=item_id,
        user_id=user_id,
        state="leased",
        chosen_by=by,
        leased_until=until,
        created=at,
    )


def renewed(connection: Connection, project: Project, item: Item, user_id: int, at: datetime) -> Assignment:
    """The user's lease of the item, renewed; an expired one is renewed while there is room.

    Raises ``ForbiddenError`` if the item was never assigned to them, ``ConflictError`` if it is finished or
    skipped, or went to others meanwhile.
    """
    if project.archived:
        raise ConflictError("the project is archived and does not accept labels")
    assignment = assignment_of(connection, item.id, user_id)
    if assignment.state != "leased":
        raise ConflictError(f"item {item.id} is {assignment.state} for this user; undo to reopen it")
    if assignment.leased_until <= at and item.role == "normal":
        other_holders = (_A.item_id == item.id) & (_A.user_id != user_id) & occupies(at)
        count = connection.scalar(select(func.count()).where(other_holders)) or 0
        if count >= project.protocol.annotators:
            raise ConflictError(f"item {item.id} is with {count} others, as many as the protocol asks for")
    return lease(connection, project, item.id, user_id, assignment.chosen_by, at)


def assignment_of(connection: Connection, item_id: int, user_id: int) -> Assignment:
    """The user's assignment of the item. Raises ``ForbiddenError`` if there is none."""
    query = select(t.assignments).where(_A.item_id == item_id, _A.user_id == user_id)
    for assignment in rows_of(connection, Assignment, query):
        return assignment
    raise ForbiddenError(f"item {item_id} was not assigned to user {user_id}; ask for the next one")


def change(connection: Connection, assignment_id: int, **values: Any) -> Assignment:
    """Update an assignment and return it."""
    query = update(t.assignments).where(_A.id == assignment_id).values(values).returning(t.assignments)
    return rows_of(connection, Assignment, query)[0]


def passed_screening(connection: Connection, project: Project, user_id: int) -> bool:
    """Whether the user labelled enough known steps correctly; a step without a label is not correct."""
    if project.protocol.screening_pass == 0:
        return True
    items = (t.items.c.project_id == project.id) & (t.items.c.role == "screening")
    expected = {
        (item_id, answer.step): answer.value
        for item_id, answers in connection.execute(select(t.items.c.id, t.items.c.known).where(items))
        for answer in answers
    }
    label = t.labels.c
    query = select(label.item_id, label.step, label.value).where(
        label.item_id.in_({item_id for item_id, _ in expected}), label.user_id == user_id, label.is_current
    )
    values = {(row.item_id, row.step): row.value for row in connection.execute(query)}
    correct = sum(values.get(step) == value for step, value in expected.items())
    return bool(correct >= project.protocol.screening_pass * len(expected))


def progress_of(
    connection: Connection, project: Project, at: datetime, users: Collection[int] | None = None
) -> Progress:
    """Counts over normal items; per annotator of ``users`` (by default all) over all items."""
    per_item = project.protocol.annotators
    normal = and_(t.items.c.project_id == project.id, t.items.c.role == "normal")
    items = connection.scalar(select(func.count()).where(normal)) or 0
    finished = (
        select(_A.item_id, func.count().label("done"))
        .join(t.items, t.items.c.id == _A.item_id)
        .where(_A.project_id == project.id, _A.state == "done", normal)
        .group_by(_A.item_id)
        .subquery()
    )
    done, complete = connection.execute(
        select(
            func.coalesce(func.sum(finished.c.done), 0), func.count().filter(finished.c.done >= per_item)
        ).select_from(finished)
    ).one()
    live = (_A.project_id == project.id) & (_A.state == "leased") & (_A.leased_until > at)
    return Progress(
        items=items,
        done=int(done),
        complete=complete,
        needed=items * per_item,
        leased=connection.scalar(select(func.count()).where(live)) or 0,
        annotators=tuple(_annotators(connection, project.id, users)),
    )


def _annotators(
    connection: Connection, project_id: int, users: Collection[int] | None
) -> Iterator[AnnotatorProgress]:
    """By pseudonym, without those to whom nothing was assigned."""
    label = t.labels.c
    work = select(_A.user_id, _A.state, _A.milliseconds, _A.finished).where(_A.project_id == project_id)
    counts = select(label.user_id, func.count()).where(label.project_id == project_id, label.is_current)
    if users is not None:
        work, counts = work.where(_A.user_id.in_(users)), counts.where(label.user_id.in_(users))
    assigned = defaultdict[int, list[Any]](list)
    for row in connection.execute(work):
        assigned[row.user_id].append(row)
    labels = {row[0]: row[1] for row in connection.execute(counts.group_by(label.user_id))}
    names = select(members.c.user_id, members.c.pseudonym).where(members.c.project_id == project_id)
    for user_id, annotator in connection.execute(names.order_by(members.c.pseudonym)):
        if assignments := assigned.get(user_id):
            done = [row for row in assignments if row.state == "done"]
            times = [row.milliseconds for row in done if row.milliseconds is not None]
            yield AnnotatorProgress(
                user_id=user_id,
                annotator=annotator,
                done=len(done),
                skipped=sum(row.state == "skipped" for row in assignments),
                labels=labels.get(user_id, 0),
                milliseconds=int(median(times)) if times else None,
                last=max((row.finished for row in assignments if row.finished), default=None),
            )


def _at(connection: Connection, query: Select[int], fraction: float) -> int | None:
    count = connection.scalar(select(func.count()).select_from(query.subquery())) or 0
    return connection.scalar(query.order_by(t.items.c.id).offset(int(fraction * count)).limit(1))
