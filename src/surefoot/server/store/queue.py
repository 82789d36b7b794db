"""Items to be labelled, and which annotator has which: the queue, leases that expire, skipping, progress.

An item with known labels checks its annotators. Everybody gets it once, and it counts for no label of the
project.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from types import MappingProxyType
from typing import Annotated, Any, Literal

import sqlalchemy as sa

from surefoot.errors import ConflictError, ForbiddenError, NotFoundError, StoreError
from surefoot.records import StepLabel, Trace
from surefoot.server.store.accounts import Project, locked_project, members, project_in, pseudonym_in
from surefoot.server.store.engine import Repository
from surefoot.server.store.schema import (
    BIG,
    Mark,
    Moment,
    ProjectId,
    RowId,
    UserId,
    checked_name,
    checked_text,
    digest_of,
    inserted,
    matching,
    of_project,
    one_of,
    rows_of,
    table,
)
from surefoot.server.store.traces import CHUNK, record_in, traces

ChosenBy = Annotated[str, sa.String(32)]
"""A ``QueuePolicy``, or ``known`` for an item with known labels. Never shown to an annotator."""

AssignmentState = Literal["leased", "done", "skipped"]


KnownLabels = Mapping[int, Literal[-1, 0, 1]]
"""The correct labels of some steps of a trace."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A trace to be labelled step by step, as an administrator sees it, known labels included."""

    id: RowId
    project_id: ProjectId
    problem_id: str
    trace_id: str
    known: KnownLabels
    created: datetime


items = table(
    "items",
    Item,
    sa.Column("digest", sa.String(32), nullable=False),
    sa.Column("has_known", sa.Boolean, nullable=False),
    sa.Column("priority", sa.Float),
    of_project("problem_id", "problems"),
    of_project("trace_id", "traces"),
    sa.UniqueConstraint("project_id", "id"),
    sa.UniqueConstraint("project_id", "digest"),
    sa.Index(None, "project_id", "has_known", "id"),
    sa.Index(None, "project_id", "trace_id"),
)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """An item leased to an annotator. ``chosen_by`` is for records and administrators only."""

    id: RowId
    project_id: int
    item_id: int
    user_id: UserId
    state: AssignmentState
    chosen_by: ChosenBy
    leased_until: datetime
    reason: str | None
    """Why it was skipped."""
    milliseconds: int | None
    """Time that the annotator took, as measured by the page."""
    created: datetime
    finished: datetime | None


assignments = table(
    "assignments",
    Assignment,
    of_project("item_id", "items"),
    sa.UniqueConstraint("item_id", "user_id"),
    sa.Index(None, "project_id", "user_id"),
)


@dataclass(frozen=True, kw_only=True)
class StoredLabel:
    """A label in the database: the package's record, and what the database adds to it."""

    id: RowId
    """Rises with each label."""
    item_id: int | None
    """``None`` = imported from another source, or a decision."""
    user_id: UserId | None
    record: Annotated[StepLabel, Mark.COMPUTED]
    milliseconds: int | None
    chosen_by: ChosenBy | None
    is_current: bool
    """Whether it counts: it is not undone."""

    @property
    def is_decision(self) -> bool:
        """Whether it settles a step, whatever the annotators say; the latest one of a step counts."""
        return self.item_id is None and self.user_id is not None


# Only ever added to: what is undone ends to count, and stays. ``key`` is that of the submission.
labels = table(
    "labels",
    StoredLabel,
    sa.Column("project_id", BIG, sa.ForeignKey("projects.id"), nullable=False),
    sa.Column("trace_id", sa.Text, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("key", sa.String(200)),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("value", sa.Float),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("digest", sa.String(32)),
    sa.Column("created", Moment, nullable=False),
    of_project("item_id", "items"),
    of_project("trace_id", "traces"),
    sa.UniqueConstraint("project_id", "digest"),
    sa.Index(None, "project_id", "trace_id", "step"),
    sa.Index(None, "user_id", "key"),
    sa.Index(None, "item_id", "user_id"),
    sa.Index(None, "project_id", "user_id", "is_current", "item_id"),
    sqlite_autoincrement=True,
)


@dataclass(frozen=True, kw_only=True)
class AnnotatorProgress:
    """Work of one annotator; ``done`` includes items with known labels."""

    user_id: int
    annotator: str
    done: int
    skipped: int
    labels: int
    milliseconds: int | None
    """Median time of a finished item; ``None`` = not measured."""
    last: datetime | None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a project; but for ``annotators`` without items of known labels. ``needed`` = items times
    annotators per item."""

    items: int
    complete: int
    """Items finished by as many annotators as required."""
    needed: int
    done: int
    """Finished assignments."""
    leased: int
    """Leased right now."""
    annotators: tuple[AnnotatorProgress, ...]


_A, _I = assignments.c, items.c


class Items(Repository):
    """Repository of items: the solutions that annotators label."""

    def add(
        self,
        project_id: int,
        trace_ids: Sequence[str] | None = None,
        *,
        known: Mapping[str, KnownLabels] = MappingProxyType({}),
    ) -> list[int]:
        """Ids of items of these traces, new unless there is an equal one; by default an item for every trace
        with steps but without one.

        An item with ``known`` labels checks its annotators, each of whom gets it once; with any, all items
        are added or none. Otherwise many items take several transactions, so that others get their turn;
        repeated after a failure, it adds the missing items. Raises ``NotFoundError`` for an unknown trace;
        ``StoreError`` for a trace without steps, or known labels that it cannot have, or of another trace.
        """
        if trace_ids is None:
            trace = traces.c
            in_item = sa.exists().where(_I.project_id == trace.project_id, _I.trace_id == trace.id)
            query = sa.select(trace.id).where(trace.project_id == project_id, ~in_item, trace.steps > 0)
            trace_ids = [row.id for row in self._all(query.order_by(trace.created, trace.id))]
        if other := sorted(known.keys() - set(trace_ids)):
            raise StoreError(f"there are known labels of trace {other[0]!r}, which gets no item")
        ids, at_once = [], len(trace_ids) if known else CHUNK
        for start in range(0, len(trace_ids), at_once):
            with self._connections.write() as connection:
                locked_project(connection, project_id)
                for name in trace_ids[start : start + at_once]:
                    ids.append(self._put(connection, project_id, name, known.get(name, {})))
        return ids

    def get(self, project_id: int, item_id: int) -> Item:
        """The whole item with its known labels: not for annotators. Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return item_in(connection, project_id, item_id)

    def list(self, project_id: int, *, has_known: bool | None = None) -> list[Item]:
        """Items in the order they were added, with or without known labels. Not for annotators."""
        where = matching(items, project_id=project_id, has_known=has_known)
        return self._rows(Item, sa.select(items).where(*where).order_by(_I.id))

    def set_priorities(self, project_id: int, values: Mapping[int, float]) -> None:
        """Replace the priorities: the highest comes first, items without one last.

        Raises ``NotFoundError`` for an item of another project.
        """
        of_project = _I.project_id == project_id
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            foreign = sorted(set(values) - set(connection.scalars(sa.select(_I.id).where(of_project))))
            if foreign:
                raise NotFoundError(f"project {project_id} does not have item {foreign[0]}")
            connection.execute(sa.update(items).where(of_project).values(priority=None))
            if rows := [{"number": item_id, "value": value} for item_id, value in values.items()]:
                ranked = sa.update(items).where(_I.id == sa.bindparam("number"))
                connection.execute(ranked.values(priority=sa.bindparam("value")), rows)

    def _put(self, connection: sa.Connection, project_id: int, trace_id: str, known: KnownLabels) -> int:
        trace = record_in(connection, traces, Trace, project_id, checked_name("trace_id", trace_id))
        if not trace.steps:
            raise StoreError(f"trace {trace.id} lacks steps to label; cut it first")
        for step, value in known.items():
            if not 0 <= step < len(trace.steps):
                raise StoreError(f"a known label is of step {step}; the trace does not have it")
            if value not in (-1, 0, 1):
                raise StoreError(f"a known label is -1, 0 or 1, not {value}")
        digest = digest_of(trace_id, known)
        where = (_I.project_id == project_id) & (_I.digest == digest)
        existing: int | None = connection.scalar(sa.select(_I.id).where(where))
        if existing is not None:
            return existing
        row = {
            "project_id": project_id,
            "problem_id": trace.problem_id,
            "trace_id": trace.id,
            "known": known,
            "has_known": bool(known),
            "digest": digest,
            "created": self._now,
        }
        return int(connection.execute(sa.insert(items).values(row).returning(_I.id)).scalar_one())


def item_in(connection: sa.Connection, project_id: int, item_id: int) -> Item:
    """The item, in the caller's transaction. Raises ``NotFoundError``."""
    query = sa.select(items).where(_I.project_id == project_id, _I.id == item_id)
    return one_of(connection, Item, query, f"project {project_id} does not have item {item_id}")


def check_step(connection: sa.Connection, project_id: int, trace_id: str, step: int) -> None:
    """Raise ``StoreError`` unless the project's trace has the step."""
    where = (traces.c.project_id == project_id) & (traces.c.id == trace_id)
    steps = connection.scalar(sa.select(traces.c.steps).where(where)) or 0
    if not 0 <= step < steps:
        raise StoreError(f"'step' {step}: the trace has steps 0 to {steps - 1}")


class Assignments(Repository):
    """Repository of assignments. An item is never with more annotators than the protocol asks for."""

    def next(self, project_id: int, user_id: int, rng: random.Random) -> Assignment | None:
        """The next item for the user: the one leased to them, then the queue; ``None`` if there is none.

        Raises ``ForbiddenError`` if the user is not a member of the project.
        """
        with self._connections.write() as connection:
            project, at = locked_project(connection, project_id), self._now
            pseudonym_in(connection, project_id, user_id)
            if project.archived:
                return None
            live = (_A.user_id == user_id) & (_A.state == "leased") & (_A.leased_until > at)
            query = sa.select(assignments).where(_A.project_id == project_id, live).order_by(_A.id).limit(1)
            for held in rows_of(connection, Assignment, query):
                return lease(connection, project, held.item_id, held.chosen_by, user_id, at)
            chosen = _choose(connection, project, user_id, rng, at)
            return chosen and lease(connection, project, *chosen, user_id, at)

    def skip(self, project_id: int, item_id: int, user_id: int, reason: str) -> Assignment:
        """Leave the item to another annotator; the user never gets it again.

        Raises ``ForbiddenError`` if it was never assigned to them, ``ConflictError`` if it no longer is.
        """
        checked_text("reason", reason)
        with self._connections.write() as connection:
            project, at = locked_project(connection, project_id), self._now
            pseudonym_in(connection, project_id, user_id)
            assignment = renewed(connection, project, item_in(connection, project_id, item_id), user_id, at)
            return change(connection, assignment.id, state="skipped", reason=reason, finished=at)

    def skipped(self, project_id: int, limit: int = 100) -> list[dict[str, Any]]:
        """The latest skipped items: trace, annotator, reason and time."""
        query = (
            sa.select(_I.trace_id, members.c.pseudonym.label("by"), _A.reason, _A.finished)
            .join_from(assignments, items, _I.id == _A.item_id)
            .join(members, sa.and_(members.c.user_id == _A.user_id, members.c.project_id == _A.project_id))
            .where(_A.project_id == project_id, _A.state == "skipped")
        )
        return [row._asdict() for row in self._all(query.order_by(_A.finished.desc()).limit(limit))]

    def progress(self, project_id: int, users: Collection[int] | None = None) -> Progress:
        """Progress of the project and of ``users`` (default: all). Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            project = project_in(connection, project_id)
            normal = (_I.project_id == project_id) & ~_I.has_known
            finished = (
                sa.select(sa.func.count().label("done"))
                .join_from(assignments, items, _I.id == _A.item_id)
                .where(_A.project_id == project_id, _A.state == "done", normal)
                .group_by(_A.item_id)
                .subquery()
            )
            full = sa.func.count().filter(finished.c.done >= project.protocol.annotators)
            counts = sa.select(sa.func.coalesce(sa.func.sum(finished.c.done), 0), full)
            done, complete = connection.execute(counts.select_from(finished)).one()
            number = connection.scalar(sa.select(sa.func.count()).where(normal)) or 0
            live = (_A.project_id == project_id) & (_A.state == "leased") & (_A.leased_until > self._now)
            return Progress(
                items=number,
                done=int(done),
                complete=complete,
                needed=number * project.protocol.annotators,
                leased=connection.scalar(sa.select(sa.func.count()).where(live)) or 0,
                annotators=tuple(_annotators(connection, project_id, users)),
            )


def _choose(
    connection: sa.Connection, project: Project, user_id: int, rng: random.Random, at: datetime
) -> tuple[int, ChosenBy] | None:
    """The item for the user, and what selected it; ``None`` if none is left.

    The number of draws from ``rng`` does not depend on the items left, so that a seed gives one order.
    """
    protocol = project.protocol
    is_check, at_random = rng.random() < protocol.known_share, rng.random() < protocol.random_share
    fraction = rng.random()
    item_id: int | None
    if is_check:
        item_id = _at(connection, _open_to(project, user_id, at, has_known=True), fraction)
        if item_id is not None:
            return item_id, "known"
    query = _open_to(project, user_id, at, has_known=False)
    policy = "random" if at_random else protocol.queue
    if policy == "random":
        item_id = _at(connection, query, fraction)
    else:
        if policy != "order":
            query = query.order_by(_I.priority.desc().nulls_last())
        item_id = connection.scalar(query.order_by(_I.id).limit(1))
    return None if item_id is None else (item_id, policy)


def _open_to(project: Project, user_id: int, at: datetime, *, has_known: bool) -> sa.Select[int]:
    """Query for the items that the user may get: not finished or skipped, and not full."""
    over = sa.exists().where(_A.item_id == _I.id, _A.user_id == user_id, _A.state.in_(["done", "skipped"]))
    query = sa.select(_I.id).where(_I.project_id == project.id, _I.has_known.is_(has_known), ~over)
    if has_known:
        return query  # they go to everybody
    occupied = sa.select(sa.func.count()).where(_A.item_id == _I.id, _occupies(at)).scalar_subquery()
    return query.where(occupied < project.protocol.annotators)


def _at(connection: sa.Connection, query: sa.Select[int], fraction: float) -> int | None:
    count = connection.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0
    return connection.scalar(query.order_by(_I.id).offset(int(fraction * count)).limit(1))


def _occupies(at: datetime) -> sa.ColumnElement[bool]:
    """Whether an assignment occupies one of the item's places: done, or leased right now."""
    return sa.or_(_A.state == "done", sa.and_(_A.state == "leased", _A.leased_until > at))


def lease(
    connection: sa.Connection, project: Project, item_id: int, by: ChosenBy, user_id: int, at: datetime
) -> Assignment:
    """Lease the item to the user, who had it before at most on a lease that expired."""
    until = at + timedelta(seconds=project.protocol.lease_seconds)
    users_lease = (_A.item_id == item_id) & (_A.user_id == user_id)
    # chosen_by stays as it was: labels of the earlier lease carry it
    renewal = sa.update(assignments).where(users_lease).values(leased_until=until, state="leased")
    for assignment in rows_of(connection, Assignment, renewal.returning(assignments)):
        return assignment
    row = {"project_id": project.id, "item_id": item_id, "user_id": user_id, "chosen_by": by}
    return inserted(
        connection, Assignment, assignments, **row, state="leased", leased_until=until, created=at
    )


def renewed(
    connection: sa.Connection, project: Project, item: Item, user_id: int, at: datetime
) -> Assignment:
    """The user's lease of the item, renewed; an expired one is renewed while there is room.

    Raises ``ForbiddenError`` if the item was never assigned to them, ``ConflictError`` if it is finished or
    skipped, or went to others meanwhile.
    """
    if project.archived:
        raise ConflictError("the project is archived and does not accept labels")
    assignment = assignment_of(connection, item.id, user_id)
    if assignment.state != "leased":
        raise ConflictError(f"item {item.id} is {assignment.state} for this user; undo to reopen it")
    if assignment.leased_until <= at and not item.known:
        other_holders = (_A.item_id == item.id) & (_A.user_id != user_id) & _occupies(at)
        count = connection.scalar(sa.select(sa.func.count()).where(other_holders)) or 0
        if count >= project.protocol.annotators:
            raise ConflictError(f"item {item.id} is with {count} others, as many as the protocol asks for")
    return lease(connection, project, item.id, assignment.chosen_by, user_id, at)


def assignment_of(connection: sa.Connection, item_id: int, user_id: int) -> Assignment:
    """The user's assignment of the item. Raises ``ForbiddenError`` if there is none."""
    query = sa.select(assignments).where(_A.item_id == item_id, _A.user_id == user_id)
    for assignment in rows_of(connection, Assignment, query):
        return assignment
    raise ForbiddenError(f"item {item_id} was not assigned to user {user_id}; ask for the next one")


def change(connection: sa.Connection, assignment_id: int, **values: Any) -> Assignment:
    """Update an assignment and return it."""
    query = sa.update(assignments).where(_A.id == assignment_id).values(values).returning(assignments)
    return rows_of(connection, Assignment, query)[0]


def _annotators(
    connection: sa.Connection, project_id: int, users: Collection[int] | None
) -> Iterator[AnnotatorProgress]:
    """By pseudonym, without those to whom nothing was assigned."""
    label = labels.c
    work = sa.select(_A.user_id, _A.state, _A.milliseconds, _A.finished).where(_A.project_id == project_id)
    counts = sa.select(label.user_id, sa.func.count()).where(
        label.project_id == project_id, label.is_current, label.item_id.is_not(None)
    )
    if users is not None:
        work, counts = work.where(_A.user_id.in_(users)), counts.where(label.user_id.in_(users))
    assigned = defaultdict[int, list[Any]](list)
    for row in connection.execute(work):
        assigned[row.user_id].append(row)
    labelled = {row[0]: row[1] for row in connection.execute(counts.group_by(label.user_id))}
    names = sa.select(members.c.user_id, members.c.pseudonym).where(members.c.project_id == project_id)
    for user_id, annotator in connection.execute(names.order_by(members.c.pseudonym)):
        if assignments := assigned.get(user_id):
            done = [row for row in assignments if row.state == "done"]
            times = [row.milliseconds for row in done if row.milliseconds is not None]
            yield AnnotatorProgress(
                user_id=user_id,
                annotator=annotator,
                done=len(done),
                skipped=sum(row.state == "skipped" for row in assignments),
                labels=labelled.get(user_id, 0),
                milliseconds=int(median(times)) if times else None,
                last=max((row.finished for row in assignments if row.finished), default=None),
            )
