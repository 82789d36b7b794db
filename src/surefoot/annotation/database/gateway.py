"""The gateway's trace store: requests with all their candidates, and the monitor's counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, insert, select

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._errors import NotFoundError
from surefoot.annotation.database._gateway_rows import rows_of, statements_of
from surefoot.annotation.database.gateway_record import GatewayCandidate, GatewayRecord


@dataclass(frozen=True, kw_only=True)
class GatewayRow:
    """A request in a list; ``Gateway.get`` has the rest."""

    request_id: str
    created: datetime
    endpoint: str
    model: str
    strategy: str
    policy: str | None
    scorer: str | None
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


@dataclass(frozen=True, kw_only=True)
class ScoredRequest:
    """Step scores of a request's answers, one behind the other."""

    created: datetime
    request_id: str
    scores: tuple[float | None, ...]


class Gateway:
    """Repository of the gateway; its ``write_all`` is the ``GatewayLog`` protocol."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def write_all(self, records: Sequence[GatewayRecord]) -> None:
        """Keep requests with their candidates, and add their tallies to the counters, in one transaction: on
        disk when this returns.

        An id that is there already is left as it is. Several requests in one call cost one flush to disk.
        Raises ``StoreError`` for text that cannot be kept (none of the requests is kept then).
        """
        if not records:
            return
        rows = [rows_of(record) for record in records]
        with self._connections.write() as connection:
            statements = statements_of(connection.dialect.name)
            new = set(connection.scalars(statements.request, [request for request, _ in rows]))
            counts: dict[tuple[datetime, str], float] = {}
            candidates = []
            for record, (_, considered) in zip(records, rows, strict=True):
                if record.request_id not in new:
                    continue
                new.discard(record.request_id)  # the same id may come twice in one call
                candidates += considered
                hour = record.created.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
                for name, value in record.tally.items():
                    counts[hour, name] = counts.get((hour, name), 0.0) + value
            if candidates:
                connection.execute(insert(t.gateway_candidates), candidates)
            # in one order, so that two writers never wait for each other's rows crosswise
            counters = [
                {"hour": hour, "name": name, "value": value} for (hour, name), value in sorted(counts.items())
            ]
            if counters:
                connection.execute(statements.count, counters)

    def prune(self, before: datetime, *, most: int = 1000) -> int:
        """Delete requests of before a time with their candidates, the oldest ``most`` of them; how many.

        Call it again until it says 0, so that others get their turn. The counters of the hours stay.
        """
        g = t.gateway_requests.c
        old = select(g.id).where(g.created < before).order_by(g.created).limit(most)
        with self._connections.write() as connection:
            return connection.execute(delete(t.gateway_requests).where(g.id.in_(old))).rowcount

    def ping(self) -> None:
        """Return if the database takes writes now. Raises ``UnavailableError``."""
        with self._connections.write() as connection:
            connection.execute(select(t.counters.c.hour).limit(1))

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
        policy: str | None = None,
        scorer: str | None = None,
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
        pairs = (
            (g.strategy, strategy),
            (g.model, model),
            (g.policy, policy),
            (g.scorer, scorer),
            (g.key_id, key_id),
            (g.project_id, project_id),
        )
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

    def scores(
        self,
        *,
        policy: str,
        scorer: str,
        since: datetime | None = None,
        latest: bool = False,
        limit: int = 2000,
    ) -> list[ScoredRequest]:
        """Scored answers by ``policy`` and scored solutions that clients gave, by request, oldest first.

        Those of the first ``limit`` requests from ``since`` on, or of the ``latest``.
        """
        g, c = t.gateway_requests.c, t.gateway_candidates.c
        wanted = [g.policy == policy, g.scorer == scorer]
        if since is not None:
            wanted.append(g.created >= since)
        order = (g.created.desc(), g.id.desc()) if latest else (g.created, g.id)
        found = select(g.id, g.created).where(*wanted).order_by(*order).limit(limit).subquery()
        query = (
            select(found.c.created, found.c.id, c.payload)
            .join(found, found.c.id == c.request_id)
            .where(c.chosen | c.given)
            .order_by(found.c.created, found.c.id, c.position)
        )
        scores: dict[tuple[datetime, str], list[float | None]] = {}
        with self._connections.read() as connection:
            for moment, request_id, payload in connection.execute(query):
                candidate = GatewayCandidate.model_validate_json(payload)
                if candidate.scores is not None:
                    scores.setdefault((moment, request_id), []).extend(candidate.scores.scores)
        return [
            ScoredRequest(created=moment, request_id=request_id, scores=tuple(values))
            for (moment, request_id), values in scores.items()
        ]

    def counters(self, since: datetime | None = None) -> list[Counter]:
        """Counters by hour and name."""
        c = t.counters.c
        query = select(t.counters).order_by(c.hour, c.name)
        if since is not None:
            query = query.where(c.hour >= since)
        with self._connections.read() as connection:
            return [Counter(**row) for row in connection.execute(query).mappings()]
