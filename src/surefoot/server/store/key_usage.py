"""What keys used, by day: read by their quotas, and added to in the transactions of others."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Insert, Select, bindparam, case, func, select
from sqlalchemy.dialects import postgresql, sqlite

from surefoot.server.gateway.records import KeyUse
from surefoot.server.store.accounts import key_usage

_COUNTS = ("requests", "tokens", "stored_bytes")


def add_uses(connection: Connection, uses: Iterable[KeyUse]) -> None:
    """Add to the days of keys."""
    days: dict[tuple[int, datetime], dict[str, int]] = {}
    for use in uses:
        counts = days.setdefault((use.key_id, day_of(use.created)), dict.fromkeys(_COUNTS, 0))
        for name in _COUNTS:
            counts[name] += getattr(use, name)
    # sorted, so that two writers never wait for each other's rows crosswise
    rows: list[dict[str, Any]] = [
        {"key_id": key_id, "day": day, **counts} for (key_id, day), counts in sorted(days.items())
    ]
    if rows:
        connection.execute(_increment(connection.dialect.name), rows)


def usage_of(connection: Connection, moment: datetime, key_id: int | None = None) -> dict[int, KeyUse]:
    """Requests and tokens of the day of ``moment``, and all bytes that are stored, by key.

    Of all keys, or of one. A key that was never used is not in it.
    """
    wanted = {"today": day_of(moment), "key_id": key_id}
    return {
        key: KeyUse(
            key_id=key, created=moment, requests=int(requests), tokens=int(tokens), stored_bytes=int(size)
        )
        for key, requests, tokens, size in connection.execute(_query(one=key_id is not None), wanted)
    }


def day_of(moment: datetime) -> datetime:
    """When its day (UTC) began."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@cache
def _query(*, one: bool) -> Select[Any]:
    u = key_usage.c
    today = u.day == bindparam("today")
    sums = (
        func.sum(case((today, u.requests), else_=0)),
        func.sum(case((today, u.tokens), else_=0)),
        func.sum(u.stored_bytes),
    )
    query = select(u.key_id, *sums).group_by(u.key_id)
    return query.where(u.key_id == bindparam("key_id")) if one else query


@cache
def _increment(dialect: str) -> Insert:
    add = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(key_usage)
    totals = {name: key_usage.c[name] + add.excluded[name] for name in _COUNTS}
    return add.on_conflict_do_update(index_elements=["key_id", "day"], set_=totals)
