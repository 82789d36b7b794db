"""Tables of the gateway: requests with their candidates, and the counters of the monitor."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, Table, Text

from surefoot.annotation.database._columns import BIG, METADATA, Moment, created

# The log must not fail because a key or a project is gone: numbers without foreign keys.
gateway_requests = Table(
    "gateway_requests",
    METADATA,
    Column("id", Text, primary_key=True),
    created(),
    Column("endpoint", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("strategy", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("failed", Boolean, nullable=False),
    Column("latency_ms", Float, nullable=False),
    Column("key_id", BIG),
    Column("project_id", BIG),
    Column("candidates", Integer, nullable=False),
    Column("tokens", BIG, nullable=False),
    Column("payload", Text, nullable=False),
    Column("policy", Text),
    Column("scorer", Text),
    Index(None, "created"),
    Index(None, "strategy", "created"),
    Index(None, "project_id", "created"),
)

gateway_candidates = Table(
    "gateway_candidates",
    METADATA,
    Column("request_id", Text, ForeignKey("gateway_requests.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("chosen", Boolean, nullable=False),
    Column("score", Float),
    Column("payload", Text, nullable=False),
    Column("given", Boolean, nullable=False),
)

counters = Table(
    "counters",
    METADATA,
    Column("hour", Moment, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Float, nullable=False),
)
