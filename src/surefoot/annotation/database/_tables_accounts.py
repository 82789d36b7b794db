"""Tables of people, keys and projects."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Integer, String, Table, Text, UniqueConstraint

from surefoot.annotation.database._columns import BIG, METADATA, Moment, created, refers, row_id

users = Table(
    "users",
    METADATA,
    row_id(),
    Column("name", Text, nullable=False, unique=True),
    Column("password", Text),
    Column("active", Boolean, nullable=False),
    created(),
)

user_roles = Table(
    "user_roles",
    METADATA,
    refers("user_id", "users", part=True, primary_key=True),
    Column("role", String(16), primary_key=True),
)

sessions = Table(
    "sessions",
    METADATA,
    row_id(),
    Column("token_hash", String(64), nullable=False, unique=True),
    refers("user_id", "users", part=True, index=True),
    Column("csrf", String(64), nullable=False),
    created(),
    Column("expires", Moment, nullable=False, index=True),
)

projects = Table(
    "projects",
    METADATA,
    row_id(),
    Column("name", Text, nullable=False, unique=True),
    Column("instructions", Text, nullable=False),
    Column("protocol", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("archived", Boolean, nullable=False),
    created(),
)

members = Table(
    "members",
    METADATA,
    refers("project_id", "projects", primary_key=True),
    refers("user_id", "users", primary_key=True, index=True),
    Column("role", String(16), nullable=False),
    Column("pseudonym", String(40), nullable=False),
    Column("active", Boolean, nullable=False),
    UniqueConstraint("project_id", "pseudonym"),
)

api_keys = Table(
    "api_keys",
    METADATA,
    row_id(),
    Column("prefix", String(16), nullable=False, unique=True),
    Column("key_hash", String(64), nullable=False),
    Column("name", Text, nullable=False),
    Column("role", String(16), nullable=False),
    refers("user_id", "users", null=True),
    refers("project_id", "projects", null=True),
    Column("rate_limit", Integer),
    Column("revoked", Moment),
    Column("last_used", Moment),
    created(),
)

# No foreign keys: what was done stays written whatever becomes of who did it.
audit_log = Table(
    "audit_log",
    METADATA,
    row_id(),
    created(),
    Column("user_id", BIG),
    Column("action", Text, nullable=False),
    Column("project_id", BIG, index=True),
    Column("detail", Text, nullable=False),
)
