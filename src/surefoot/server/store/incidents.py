"""Incidents: opened from a request or an alert, with a timeline and a decision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from sqlalchemy import Index, insert, select, update

from surefoot.errors import ConflictError, NotFoundError
from surefoot.records import FrozenModel
from surefoot.server.records import GatewayRecord
from surefoot.server.store.engine import Repository
from surefoot.server.store.gateway_log import RequestLog
from surefoot.server.store.schema import Mark, checked_name, checked_text, one_of, rows_of, table

IncidentDecision = Literal["fixed", "accepted", "false alarm"]

_COMPARED = 200
_SIMILAR = 5


class IncidentEvent(FrozenModel):
    """An entry of a timeline."""

    at: datetime
    by: str
    """Name of the person, or ``monitor``."""
    text: str


@dataclass(frozen=True, kw_only=True)
class IncidentRow:
    """What happened, when, and the decision about it."""

    id: Annotated[int, Mark.KEY]
    created: datetime
    title: str
    request_id: str | None
    """The request that it was opened from, or the last one before the alert."""
    alert: str | None
    """The alarm that opened it."""
    timeline: tuple[IncidentEvent, ...]
    decision: IncidentDecision | None
    """``None`` while it is open."""


incidents = table("incidents", IncidentRow, Index(None, "decision", "id"))


class Incidents(Repository):
    """Repository of incidents."""

    def open(self, title: str, by: str, *, request_id: str | None = None, alert: str | None = None) -> int:
        """Open an incident and return its number; an alarm whose incident is open adds to its timeline.

        Raises ``StoreError`` for a text that cannot be stored.
        """
        i, event = incidents.c, self._event(by, title)
        with self._connections.write() as connection:
            if alert is not None:
                query = select(incidents).where(i.alert == alert, i.decision.is_(None))
                if same := rows_of(connection, IncidentRow, query):
                    timeline = (*same[0].timeline, event)
                    connection.execute(update(incidents).where(i.id == same[0].id).values(timeline=timeline))
                    return same[0].id
            row = {
                "created": event.at,
                "title": checked_name("title", title),
                "request_id": request_id,
                "alert": alert,
                "timeline": (event,),
                "decision": None,
            }
            return int(connection.execute(insert(incidents).values(row).returning(i.id)).scalar_one())

    def note(self, number: int, by: str, text: str, decision: IncidentDecision | None = None) -> None:
        """Add to the timeline, and close with a decision if there is one.

        Raises ``NotFoundError``, and ``ConflictError`` for a closed incident.
        """
        with self._connections.write() as connection:
            query = select(incidents).where(incidents.c.id == number)
            incident = one_of(connection, IncidentRow, query, f"incident {number} does not exist")
            if incident.decision is not None:
                raise ConflictError(f"incident {number} is closed; open another one")
            timeline = (*incident.timeline, self._event(by, f"{decision}: {text}" if decision else text))
            changed = update(incidents).where(incidents.c.id == number)
            connection.execute(changed.values(timeline=timeline, decision=decision))

    def get(self, number: int) -> IncidentRow:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            query = select(incidents).where(incidents.c.id == number)
            return one_of(connection, IncidentRow, query, f"incident {number} does not exist")

    def similar(self, request_id: str) -> list[GatewayRecord]:
        """Latest requests that share most words of the prompt, those with the same flags first."""
        log = RequestLog(self._connections)
        try:
            origin = log.get(request_id)
        except NotFoundError:  # pruned
            return []
        rows = log.find(limit=_COMPARED)
        records = [log.get(row.request_id) for row in rows if row.request_id != request_id]
        return sorted(records, key=lambda record: _distance(origin, record))[:_SIMILAR]

    def find(self, *, is_open: bool = True, limit: int = 50) -> list[IncidentRow]:
        """Open or closed incidents, newest first."""
        i = incidents.c
        query = select(incidents).where(i.decision.is_(None) if is_open else i.decision.is_not(None))
        with self._connections.read() as connection:
            return rows_of(connection, IncidentRow, query.order_by(i.id.desc()).limit(limit))

    def _event(self, by: str, text: str) -> IncidentEvent:
        return IncidentEvent(at=self._connections.clock(), by=by, text=checked_text("text", text))


def _distance(first: GatewayRecord, second: GatewayRecord) -> tuple[bool, float]:
    flags = [
        {flag.name for candidate in record.candidates for flag in candidate.flags}
        for record in (first, second)
    ]
    words = [set(record.problem.text.split()) if record.problem else set() for record in (first, second)]
    shared = len(words[0] & words[1]) / (len(words[0] | words[1]) or 1)
    return not (flags[0] & flags[1]), -shared
