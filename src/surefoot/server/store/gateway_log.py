"""The gateway's request log: requests with all their candidates."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from sqlalchemy import Column, Float, Index, Select, Text, delete, func, select

from surefoot.errors import NotFoundError, StoreError
from surefoot.records import Trace
from surefoot.server.records import GatewayCandidate, GatewayRecord
from surefoot.server.store.engine import Repository, insert_missing
from surefoot.server.store.schema import (
    Count,
    Mark,
    checked_name,
    checked_text,
    columns_of,
    matching,
    payload_of,
    rows_of,
    table,
)


@dataclass(frozen=True, kw_only=True)
class GatewayRow:
    """A request in a list; ``RequestLog.get`` returns all of it."""

    request_id: Annotated[str, Mark.COMPUTED]
    created: datetime
    endpoint: str
    model: str
    strategy: str
    policy: str | None
    scorer: str | None
    status: Count
    failed: bool
    latency_ms: float
    candidates: Count
    tokens: int
    trees: bool
    """Whether the search tree of an answer is stored."""
    key_id: int | None
    project_id: int | None
    session: str | None
    turn: int | None


# The log must not fail because a key or a project is gone: ids without foreign keys.
gateway_requests = table(
    "gateway_requests",
    GatewayRow,
    Column("id", Text, primary_key=True),
    Column("score", Float),
    Column("payload", Text, nullable=False),
    Index(None, "created"),
    Index(None, "strategy", "created"),
    Index(None, "project_id", "created"),
    Index(None, "session", "key_id", "created"),
)

_PING_BYTES: Final = 10_000
_AT_ONCE: Final = 50


class RequestLog(Repository):
    """Repository of the gateway's requests."""

    def write_all(self, records: Sequence[GatewayRecord]) -> None:
        """Store requests with their candidates in one transaction: on disk when this returns.

        Existing ids are left unchanged, and the first of an id counts. Several requests in one call cost one
        flush to disk. Raises ``StoreError`` for text that cannot be stored; then none of the requests is
        stored.
        """
        rows = [_row(record) for record in records]
        with self._connections.write() as connection:
            insert_missing(connection, gateway_requests, rows)

    def prune(self, before: datetime, *, project_id: int | None = None, most: int = 1000) -> int:
        """Delete the oldest requests before a time, at most ``most``, with their candidates; their number.

        ``project_id``: only requests of this project's keys.

        Call it until it returns 0, so that others get their turn in between.
        """
        g = gateway_requests.c
        of_project = matching(gateway_requests, project_id=project_id)
        old = select(g.id).where(g.created < before, *of_project).order_by(g.created).limit(most)
        with self._connections.write() as connection:
            return connection.execute(delete(gateway_requests).where(g.id.in_(old))).rowcount

    def ping(self) -> None:
        """Return if the database can store a request now. Raises ``UnavailableError``.

        A request of some pages is really stored and deleted, as a full disk refuses only that.
        """
        padding = secrets.token_hex(_PING_BYTES // 2)
        trial = GatewayRecord(
            request_id=f"ping-{padding[:32]}",
            created=datetime.fromtimestamp(0, UTC),
            endpoint="",
            model="",
            strategy="",
            status=503,
            latency_ms=0,
            candidates=(GatewayCandidate(trace=Trace(problem_id="", text=padding), chosen=False),),
            request={"padding": padding},
        )
        self.write_all([trial])
        with self._connections.write() as connection:
            connection.execute(delete(gateway_requests).where(gateway_requests.c.id == trial.request_id))

    def get(self, request_id: str) -> GatewayRecord:
        """The whole record. Raises ``NotFoundError``."""
        g = gateway_requests.c
        records = self._records(select(g.payload).where(g.id == request_id))
        if not records:
            raise NotFoundError(f"request '{request_id}' does not exist")
        return records[0]

    def session(self, name: str, *, key_id: int | None, limit: int = 1000) -> list[GatewayRecord]:
        """The latest turns of a session that this key (``None``: no key) had recorded, oldest first; other
        keys' sessions of the same name are others."""
        g = gateway_requests.c
        turns = select(g.payload).where(g.session == name, g.key_id == key_id)
        return self._records(turns.order_by(g.created.desc(), g.id.desc()).limit(limit))[::-1]

    def _records(self, query: Select[str]) -> list[GatewayRecord]:
        with self._connections.read() as connection:
            return [GatewayRecord.model_validate_json(payload) for payload in connection.scalars(query)]

    def sessions(self) -> list[tuple[str, int | None]]:
        """Names and keys of the sessions, by their first turn."""
        g = gateway_requests.c
        query = select(g.session, g.key_id).where(g.session.is_not(None))
        query = query.group_by(g.session, g.key_id).order_by(func.min(g.created), g.session, g.key_id)
        with self._connections.read() as connection:
            return [(row.session, row.key_id) for row in connection.execute(query)]

    def find(
        self, *, before: str | None = None, limit: int = 100, **equal: str | int | None
    ) -> list[GatewayRow]:
        """Requests, newest first, those that follow the request ``before``.

        ``equal``: values that fields of the row must have (``model``, ``strategy``, ``failed`` …); ``None`` =
        any.
        """
        g = gateway_requests.c
        conditions = matching(gateway_requests, **equal)
        if before is not None:
            created = select(g.created).where(g.id == before).scalar_subquery()
            conditions.append((g.created < created) | ((g.created == created) & (g.id < before)))
        query = select(g.id.label("request_id"), *columns_of(GatewayRow, gateway_requests)).where(*conditions)
        query = query.order_by(g.created.desc(), g.id.desc()).limit(limit)
        with self._connections.read() as connection:
            return rows_of(connection, GatewayRow, query)

    def history(
        self, *, policy: str, since: datetime | None = None, first: int = 1000, latest: int = 1000
    ) -> Iterator[GatewayRecord]:
        """The ``first`` requests since ``since``, then the ``latest`` of the others, oldest first.

        A few records at a time are in memory.
        """
        g = gateway_requests.c
        conditions = [g.policy == policy, *([g.created >= since] if since is not None else [])]
        query = select(g.id).where(*conditions)
        with self._connections.read() as connection:
            ids = list(connection.scalars(query.order_by(g.created, g.id).limit(first)))
            last = list(connection.scalars(query.order_by(g.created.desc(), g.id.desc()).limit(latest)))
        ids = list(dict.fromkeys([*ids, *reversed(last)]))
        for start in range(0, len(ids), _AT_ONCE):
            page = ids[start : start + _AT_ONCE]
            records = self._records(select(g.payload).where(g.id.in_(page)))
            yield from sorted(records, key=lambda record: page.index(record.request_id))


_COMPUTED = ("request_id", "failed", "candidates", "tokens", "trees", "session", "turn")
_COPIED = tuple(field.name for field in fields(GatewayRow) if field.name not in _COMPUTED)


def _row(record: GatewayRecord) -> dict[str, Any]:
    """The row of a request. Raises ``StoreError`` for text that cannot be stored."""
    for field in ("endpoint", "model", "strategy"):
        checked_text(field, getattr(record, field))
    if record.created.tzinfo is None:
        raise StoreError("'created' lacks a time zone; use datetime.now(UTC)")
    scores = [answer.score for answer in record.candidates if answer.chosen and answer.score is not None]
    return {
        "id": checked_name("request_id", record.request_id),
        **{name: getattr(record, name) for name in _COPIED},
        "failed": record.error is not None or record.status >= 400,
        "candidates": len(record.candidates),
        "tokens": record.usage.tokens,
        "trees": bool(record.trees),
        "session": checked_name("session", record.session.session) if record.session else None,
        "turn": record.session.turn if record.session else None,
        "score": scores[-1] if scores else None,
        "payload": payload_of(record),
    }
