"""Tool calls that the gateway's guard holds until a person decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, get_args

from sqlalchemy import Column, Index, Text, delete, func, insert, select, update

from surefoot.concurrency import in_share
from surefoot.errors import ConflictError, NotFoundError
from surefoot.guard import Review
from surefoot.server.records import HeldCall
from surefoot.server.store.engine import Repository
from surefoot.server.store.schema import Mark, UserId, as_data, checked_text, payload_of, rows_of, table

HeldState = Literal["waiting", "approved", "delivered", "denied", "abandoned"]
"""delivered: approved, and the client has the call, which no request gets a second time; abandoned: the
client disconnected before a decision, or a day passed without one."""
_LONGEST_WAIT: Final = timedelta(days=1)
_DECIDED: tuple[HeldState, ...] = ("approved", "delivered", "denied")


@dataclass(frozen=True, kw_only=True)
class HeldRow:
    """A held call as the queue lists it; ``HeldCalls.held`` returns all of it."""

    id: Annotated[int, Mark.KEY]
    created: datetime
    key_id: int | None
    """Key of the request; the call outlives it."""
    state: HeldState
    comment: str
    """Comment of the person who decided; after a denial, the model sees it."""
    decided: datetime | None
    """When it was decided, or the client disconnected."""
    user_id: UserId | None
    """The person who decided."""


held_calls = table(
    "held_calls",
    HeldRow,
    Column("payload", Text, nullable=False),
    Index(None, "state", "id"),
)


class HeldCalls(Repository):
    """Repository of held calls."""

    def hold(self, held: HeldCall, *, most: int) -> int | None:
        """Add a call and return its number; ``None`` where ``most`` calls wait already, unless its key has
        less than an equal share of them (:class:`surefoot.concurrency.Shares`).

        A call that waits for more than a day leaves the queue first: its client has gone.
        """
        h, now = held_calls.c, self._connections.clock()
        waiting = select(h.key_id, func.count()).where(h.state == "waiting").group_by(h.key_id)
        late = update(held_calls).where(h.state == "waiting", h.created < now - _LONGEST_WAIT)
        row = {
            "created": held.created,
            "key_id": held.key_id,
            "state": "waiting",
            "comment": "",
            "payload": payload_of(held),
        }
        with self._connections.write() as connection:
            connection.execute(late.values(state="abandoned", decided=now))
            by_key = {row[0]: int(row[1]) for row in connection.execute(waiting)}
            running, owners = by_key.get(held.key_id, 0), by_key.keys() | {held.key_id}
            if not in_share(most, 1, sum(by_key.values()), running, len(owners)):
                return None
            return int(connection.execute(insert(held_calls).values(row).returning(h.id)).scalar_one())

    def reviews(self, numbers: Sequence[int]) -> dict[int, Review]:
        """Decisions about these calls, as far as there are any."""
        h = held_calls.c
        query = select(held_calls).where(h.id.in_(numbers), h.state.in_(_DECIDED))
        with self._connections.read() as connection:
            return {row.id: _review(row) for row in rows_of(connection, HeldRow, query)}

    def held(self, number: int, *, key_id: int | None) -> HeldCall:
        """A call that a request with this key waits for. Raises ``NotFoundError``, also for another key."""
        call, row = self.get(number)
        if row.key_id != key_id:
            raise NotFoundError(f"held call {number} does not exist")
        return call

    def get(self, number: int) -> tuple[HeldCall, HeldRow]:
        """A call with its review, and its row. Raises ``NotFoundError``."""
        query = select(held_calls).where(held_calls.c.id == number)
        with self._connections.read() as connection:
            stored = connection.execute(query).mappings().one_or_none()
        if stored is None:
            raise NotFoundError(f"held call {number} does not exist")
        row = as_data(HeldRow, stored)
        review = _review(row) if row.state in _DECIDED else None
        return HeldCall.model_validate_json(stored["payload"]).model_copy(update={"review": review}), row

    def abandon(self, number: int) -> None:
        """The client of a call has disconnected: an undecided call can no longer be decided."""
        h, now = held_calls.c, self._connections.clock()
        change = update(held_calls).where(h.id == number, h.state == "waiting")
        with self._connections.write() as connection:
            connection.execute(change.values(state="abandoned", decided=now))

    def deliver(self, number: int) -> bool:
        """Mark an approved call as delivered; ``False`` if it is not approved, or was delivered before."""
        h = held_calls.c
        change = update(held_calls).where(h.id == number, h.state == "approved").values(state="delivered")
        with self._connections.write() as connection:
            return bool(connection.execute(change).rowcount)

    def find(
        self, *, state: HeldState | None = None, past: int | None = None, limit: int = 50
    ) -> list[HeldRow]:
        """Calls in order, those after the number ``past``: waiting ones oldest first, others newest first."""
        h, queue = held_calls.c, state == "waiting"
        query = select(held_calls).order_by(h.id.asc() if queue else h.id.desc()).limit(limit)
        if state is not None:
            query = query.where(h.state == state)
        if past is not None:
            query = query.where(h.id > past if queue else h.id < past)
        with self._connections.read() as connection:
            return rows_of(connection, HeldRow, query)

    def count(self) -> dict[HeldState, int]:
        """Calls by state."""
        h = held_calls.c
        query = select(h.state, func.count()).group_by(h.state)
        with self._connections.read() as connection:
            rows = connection.execute(query).all()
        return {**dict.fromkeys(get_args(HeldState), 0), **{row[0]: row[1] for row in rows}}

    def decide(self, number: int, user_id: int | None, *, approved: bool, comment: str = "") -> None:
        """Decide about a call, once. Raises ``NotFoundError``, or ``ConflictError`` if it is decided."""
        checked_text("comment", comment)
        h = held_calls.c
        values = {
            "state": "approved" if approved else "denied",
            "comment": comment,
            "user_id": user_id,
            "decided": self._connections.clock(),
        }
        change = update(held_calls).where(h.id == number, h.state == "waiting").values(values)
        with self._connections.write() as connection:
            if connection.execute(change).rowcount:
                return
            state = connection.scalar(select(h.state).where(h.id == number))
        if state is None:
            raise NotFoundError(f"held call {number} does not exist")
        if state == "abandoned":
            raise ConflictError(f"held call {number} cannot be delivered: its client has disconnected")
        raise ConflictError(f"held call {number} has been {state} already")

    def prune(self, before: datetime) -> int:
        """Delete the calls that were held before a time, decided or not; their number."""
        with self._connections.write() as connection:
            return connection.execute(delete(held_calls).where(held_calls.c.created < before)).rowcount


def _review(row: HeldRow) -> Review:
    by = "" if row.user_id is None else f"user {row.user_id}"
    return Review(approved=row.state in ("approved", "delivered"), comment=row.comment, by=by)
