"""Requests of the gateway as rows, and the statements that write them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._checks import checked_name, checked_text, payload_of
from surefoot.annotation.database.gateway_record import GatewayRecord
from surefoot.errors import StoreError


@dataclass(frozen=True)
class Statements:
    """Built once: building costs more than running."""

    request: ReturningInsert[Any]
    count: Insert


@cache
def statements_of(dialect: str) -> Statements:
    """For SQLite or PostgreSQL, by its name."""
    make = sqlite.insert if dialect == "sqlite" else postgresql.insert
    count = make(t.counters)
    total = t.counters.c.value + count.excluded.value
    return Statements(
        make(t.gateway_requests).on_conflict_do_nothing().returning(t.gateway_requests.c.id),
        count.on_conflict_do_update(index_elements=["hour", "name"], set_={"value": total}),
    )


def rows_of(record: GatewayRecord) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of a request and those of its candidates. Raises ``StoreError`` for what cannot be kept."""
    for field in ("endpoint", "model", "strategy"):
        checked_text(field, getattr(record, field))
    if record.created.tzinfo is None:
        raise StoreError("'created' has no time zone; use datetime.now(UTC)")
    for name in record.tally:
        checked_name("tally", name)
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
        "policy": record.policy,
        "scorer": record.scorer,
        "payload": payload_of(record.model_copy(update={"candidates": ()})),
    }
    candidates = [
        {
            "request_id": record.request_id,
            "position": position,
            "chosen": candidate.chosen,
            "given": candidate.choice is None,
            "score": candidate.score,
            "payload": payload_of(candidate),
        }
        for position, candidate in enumerate(record.candidates)
    ]
    return request, candidates
