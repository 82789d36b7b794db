"""The gateway's trace store: requests with all their candidates, and the monitor's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from surefoot.errors import StoreError
from surefoot.store.database import _tables as t
from surefoot.store.database._checks import checked_name, checked_text, payload_of
from surefoot.store.database._engine import Connections
from surefoot.store.database._errors import NotFoundError
from surefoot.store.database.gateway_record import GatewayCandidate, GatewayRecord


@dataclass(frozen=True, kw_only=True)
class GatewayRow:
    """A request in a list; ``Gateway.get`` has the rest."""

    request_id: str
    created: datetime
    endpoint: str
    model: str
    strategy: str
    status: int
    failed: bool
    latency_ms: float
    candidates: int
    tokens: int
    key_id: int | None
    project_id: int | None


@dataclass(frozen=True, kw_only=True)
class Counter:
    """What was counted under a name in one hour (UTC)."""

    hour: datetime
    name: str
    value: float


class Gateway:
    """Repository of the gateway; its ``write`` is the ``GatewayLog`` protocol."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def write(self, record: GatewayRecord) -> None:
        """Keep one request; see ``write_all``."""
        self.write_all([record])

    def write_all(self, records: Sequence[GatewayRecord]) -> None:
        """Keep requests with their candidates in one transaction: on disk when this returns.

        An id that is there already is left as it is. Several requests in one call cost one flush to disk.
        Raises ``StoreError`` for text that cannot be kept (none of the requests is kept then).
        """
        rows = [_rows(record) for record in records]
        with self._connections.write() as connection:
            for request, candidates in rows:
                query = _dialect_insert(connection, t.gateway_requests).values(request)
                query = query.on_conflict_do_nothing()
                new = connection.scalar(query.returning(t.gateway_requests.c.id)) is not None
                if new and candidates:
                    connection.execute(insert(t.gateway_candidates), candidates)

    def get(self, request_id: str) -> GatewayRecord:
        """The whole record. Raises ``NotFoundError``."""
        g, c = t.gateway_requests.c, t.gateway_candidates.c
        with self._connections.read() as connection:
            payload = connection.scalar(select(g.payload).where(g.id == request_id))
            if payload is None:
                raise NotFoundError(f"there is no request '{request_id}'")
            query = select(c.payload).where(c.request_id == request_id).order_by(c.position)
            candidates = [GatewayCandidate.model_validate_json(row) for row in connection.scalars(query)]
        record = GatewayRecord.model_validate_json(payload)
        return record.model_copy(update={"candidates": tuple(candidates)})

    def find(
        self,
        *,
        strategy: str | None = None,
        model: str | None = None,
        key_id: int | None = None,
        project_id: int | None = None,
        failed: bool | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: tuple[datetime, str] | None = None,
        limit: int = 100,
    ) -> list[GatewayRow]:
        """Requests, newest first; ``before`` is (created, request_id) of the last row of the page before."""
        g = t.gateway_requests.c
        wanted = []
        pairs = ((g.strategy, strategy), (g.model, model), (g.key_id, key_id), (g.project_id, project_id))
        for column, value in pairs:
            if value is not None:
                wanted.append(column == value)
        if failed is not None:
            wanted.append(g.failed.is_(failed))
        if since is not None:
            wanted.append(g.created >= since)
        if until is not None:
            wanted.append(g.created < until)
        if before is not None:
            wanted.append((g.created < before[0]) | ((g.created == before[0]) & (g.id < before[1])))
        columns = [column for column in t.gateway_requests.columns if column.name not in ("payload", "id")]
        query = select(g.id.label("request_id"), *columns).where(*wanted)
        query = query.order_by(g.created.desc(), g.id.desc()).limit(limit)
        with self._connections.read() as connection:
            return [GatewayRow(**row) for row in connection.execute(query).mappings()]

    def count(self, values: Mapping[str, float], at: datetime | None = None) -> None:
        """Add ``values`` to the counters of the hour of ``at`` (now by default); safe from many writers."""
        moment = at or self._connections.clock()
        hour = moment.replace(minute=0, second=0, microsecond=0)
        # in one order, so that two writers never wait for each other's rows crosswise
        rows = [
            {"hour": hour, "name": checked_name("name", name), "value": float(value)}
            for name, value in sorted(values.items())
        ]
        with self._connections.write() as connection:
            for row in rows:
                query = _dialect_insert(connection, t.counters).values(row)
                total = t.counters.c.value + query.excluded.value
                connection.execute(
                    query.on_conflict_do_update(index_elements=["hour", "name"], set_={"value": total})
                )

    def counters(self, since: datetime | None = None) -> list[Counter]:
        """Counters by hour and name."""
        c = t.counters.c
        query = select(t.counters).order_by(c.hour, c.name)
        if since is not None:
            query = query.where(c.hour >= since)
        with self._connections.read() as connection:
            return [Counter(**row) for row in connection.execute(query).mappings()]


def _rows(record: GatewayRecord) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    for field in ("endpoint", "model", "strategy"):
        checked_text(field, getattr(record, field))
    if record.created.tzinfo is None:
        raise StoreError("'created' has no time zone; use datetime.now(UTC)")
    request = {
        "id": checked_name("request_id", record.request_id),
        "created": record.created,
        "endpoint": record.endpoint,
        "model": record.model,
        "strategy": record.strategy,
        "status": record.status,
        "failed": record.error is not None or record.status >= 400,
        "latency_ms": record.latency_ms,
        "key_id": record.key_id,
        "project_id": record.project_id,
        "candidates": len(record.candidates),
        "tokens": record.usage.tokens,
        "payload": payload_of(record.model_copy(update={"candidates": ()})),
    }
    candidates = [
        {
            "request_id": record.request_id,
            "position": position,
            "chosen": candidate.chosen,
            "score": candidate.score,
            "payload": payload_of(candidate),
        }
        for position, candidate in enumerate(record.candidates)
    ]
    return request, candidates


def _dialect_insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    sqlite_here = connection.dialect.name == "sqlite"
    return sqlite.insert(table) if sqlite_here else postgresql.insert(table)
