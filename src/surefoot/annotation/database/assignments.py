"""Who has which item: leases that run out, finishing, skipping, and how far a project is."""

from __future__ import annotations

import random
from datetime import datetime

from sqlalchemy import Connection, RowMapping, select

from surefoot.annotation.database import _queue
from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._checks import checked_text
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._entries import choices_in, counting_ids
from surefoot.annotation.database._errors import ConflictError
from surefoot.annotation.database._items import item_in
from surefoot.annotation.database._progress import progress_of
from surefoot.annotation.database._screening import passed_screening
from surefoot.annotation.database.accounts import Project
from surefoot.annotation.database.annotation import Assignment, Offer, Progress
from surefoot.annotation.database.projects import locked_project, project_in, pseudonym_in
from surefoot.errors import StoreError

_A = t.assignments.c


class Assignments:
    """Repository of assignments. An item is never with more annotators than the protocol asks for."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def next(self, project_id: int, user_id: int, rng: random.Random) -> Offer:
        """The next item for the user: the one they hold, then screening, then control, then the queue.

        Raises ``ForbiddenError`` if the user is no member of the project.
        """
        with self._connections.write() as connection:
            project, at = locked_project(connection, project_id), self._connections.clock()
            pseudonym_in(connection, project_id, user_id)
            if project.archived:
                return Offer(assignment=None, why="empty")
            mine = (_A.project_id == project_id) & (_A.user_id == user_id)
            live = mine & (_A.state == "leased") & (_A.leased_until > at)
            query = select(t.assignments).where(live).order_by(_A.id).limit(1)
            row = connection.execute(query).mappings().one_or_none()
            if row is not None:
                row = _queue.lease(connection, project, row["item_id"], user_id, row["chosen_by"], at)
                return Offer(assignment=_assignment(row), why="resumed")
            screening = _queue.open_to(project, user_id, "screening", at)
            item_id = connection.scalar(screening.order_by(t.items.c.id).limit(1))
            if item_id is not None:
                chosen = (item_id, "screening")
            elif not passed_screening(connection, project, user_id):
                return Offer(assignment=None, why="screening")
            else:
                found = _queue.choose(connection, project, user_id, rng, at)
                if found is None:
                    return Offer(assignment=None, why="empty")
                chosen = found
            row = _queue.lease(connection, project, chosen[0], user_id, chosen[1], at)
            return Offer(assignment=_assignment(row), why="leased")

    def assign(self, project_id: int, item_id: int, user_id: int) -> Assignment:
        """Give an item to a member, past the queue.

        Raises ``ConflictError`` if it is with as many as asked, or the user finished or skipped it;
        ``ForbiddenError`` if they are no member.
        """
        with self._connections.write() as connection:
            project, at = locked_project(connection, project_id), self._connections.clock()
            pseudonym_in(connection, project_id, user_id)
            item = item_in(connection, project_id, item_id)
            state = connection.scalar(select(_A.state).where(_A.item_id == item_id, _A.user_id == user_id))
            if state in ("done", "skipped"):
                raise ConflictError(f"user {user_id} has item {item_id} as {state} already")
            _queue.refuse_full(connection, project, item, user_id, at)
            by = "order" if item.role == "normal" else item.role
            return _assignment(_queue.lease(connection, project, item_id, user_id, by, at))

    def renew(self, project_id: int, item_id: int, user_id: int) -> Assignment:
        """Prolong the lease; one that ran out is given back while there is room.

        Raises ``ForbiddenError`` if the item was never theirs, ``ConflictError`` if it is no longer. So
        do ``finish``, ``skip`` and ``release``.
        """
        with self._connections.write() as connection:
            return _assignment(self._held(connection, project_id, item_id, user_id))

    def finish(
        self, project_id: int, item_id: int, user_id: int, milliseconds: int | None = None
    ) -> Assignment:
        """The user is done with the item. Raises ``StoreError`` if nothing in it has a label or choice."""
        with self._connections.write() as connection:
            row = self._held(connection, project_id, item_id, user_id)
            return finish_in(connection, row, milliseconds, self._connections.clock())

    def skip(self, project_id: int, item_id: int, user_id: int, reason: str) -> Assignment:
        """The user does not want the item: it goes to somebody else, and never to them again."""
        checked_text("reason", reason)
        with self._connections.write() as connection:
            row = self._held(connection, project_id, item_id, user_id)
            at = self._connections.clock()
            made = _queue.change(connection, row["id"], state="skipped", reason=reason, finished=at)
            return _assignment(made)

    def release(self, project_id: int, item_id: int, user_id: int) -> Assignment:
        """Hand the item back at once; the user may be given it again."""
        with self._connections.write() as connection:
            row = self._held(connection, project_id, item_id, user_id)
            at = self._connections.clock()
            return _assignment(_queue.change(connection, row["id"], leased_until=at))

    def mine(self, project_id: int, user_id: int, limit: int = 100) -> list[Assignment]:
        """What the user was given, newest first."""
        where = (_A.project_id == project_id) & (_A.user_id == user_id)
        query = select(t.assignments).where(where).order_by(_A.id.desc()).limit(limit)
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return [_assignment(row) for row in connection.execute(query).mappings()]

    def progress(self, project_id: int) -> Progress:
        """How far the project and each annotator are. Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            project = project_in(connection, project_id)
            return progress_of(connection, project, self._connections.clock())

    def _held(self, connection: Connection, project_id: int, item_id: int, user_id: int) -> RowMapping:
        project: Project = locked_project(connection, project_id)
        pseudonym_in(connection, project_id, user_id)
        item = item_in(connection, project_id, item_id)
        return _queue.held(connection, project, item, user_id, self._connections.clock())


def finish_in(connection: Connection, row: RowMapping, milliseconds: int | None, at: datetime) -> Assignment:
    """Finish an assignment that is held, in the caller's transaction. Raises ``StoreError`` if empty."""
    if milliseconds is not None and milliseconds < 0:
        raise StoreError(f"'milliseconds' is {milliseconds}; time taken is at least 0")
    own = (t.labels.c.item_id == row["item_id"]) & (t.labels.c.user_id == row["user_id"])
    counted = counting_ids(row["project_id"]).where(own).limit(1)
    if connection.scalar(counted) is None and not choices_in(
        connection, row["project_id"], item_id=row["item_id"], user_id=row["user_id"]
    ):
        raise StoreError("nothing in this item has a label yet; label a step, or skip the item")
    values = {"state": "done", "finished": at, "milliseconds": milliseconds}
    return _assignment(_queue.change(connection, row["id"], **values))


def _assignment(row: RowMapping) -> Assignment:
    return Assignment(**row)
