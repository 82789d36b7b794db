"""All tables of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None

# Spelled out here, not imported: a migration must keep its meaning when the tables change.
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.BigInteger
"""Microseconds since 1970."""
TABLES = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

sa.Table(
    "audit_log",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("created", TIME, nullable=False),
    sa.Column("user_id", BIG),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("project_id", BIG, index=True),
    sa.Column("detail", sa.Text, nullable=False),
)

sa.Table(
    "counters",
    TABLES,
    sa.Column("hour", TIME, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Float, nullable=False),
)

sa.Table(
    "gateway_requests",
    TABLES,
    sa.Column("created", TIME, nullable=False),
    sa.Column("endpoint", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("strategy", sa.Text, nullable=False),
    sa.Column("policy", sa.Text),
    sa.Column("scorer", sa.Text),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("failed", sa.Boolean, nullable=False),
    sa.Column("latency_ms", sa.Float, nullable=False),
    sa.Column("candidates", sa.Integer, nullable=False),
    sa.Column("tokens", BIG, nullable=False),
    sa.Column("key_id", BIG),
    sa.Column("project_id", BIG),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index(None, "created"),
    sa.Index(None, "project_id", "created"),
    sa.Index(None, "strategy", "created"),
)

sa.Table(
    "projects",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("instructions", sa.Text, nullable=False),
    sa.Column("protocol", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("archived", sa.Boolean, nullable=False),
    sa.Column("created", TIME, nullable=False),
)

sa.Table(
    "users",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("active", sa.Boolean, nullable=False),
    sa.Column("created", TIME, nullable=False),
    sa.Column("password", sa.Text),
)

sa.Table(
    "api_keys",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("prefix", sa.String(16), nullable=False, unique=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id")),
    sa.Column("project_id", BIG, sa.ForeignKey("projects.id")),
    sa.Column("rate_limit", sa.Integer),
    sa.Column("revoked", TIME),
    sa.Column("last_used", TIME),
    sa.Column("created", TIME, nullable=False),
    sa.Column("key_hash", sa.String(64), nullable=False),
)

sa.Table(
    "gateway_candidates",
    TABLES,
    sa.Column(
        "request_id", sa.Text, sa.ForeignKey("gateway_requests.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("chosen", sa.Boolean, nullable=False),
    sa.Column("from_client", sa.Boolean, nullable=False),
    sa.Column("score", sa.Float),
    sa.Column("payload", sa.Text, nullable=False),
)

sa.Table(
    "members",
    TABLES,
    sa.Column("project_id", BIG, sa.ForeignKey("projects.id"), primary_key=True),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id"), primary_key=True, index=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("pseudonym", sa.String(40), nullable=False),
    sa.Column("active", sa.Boolean, nullable=False),
    sa.UniqueConstraint("project_id", "pseudonym"),
)

sa.Table(
    "problems",
    TABLES,
    sa.Column("project_id", BIG, sa.ForeignKey("projects.id"), primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("created", TIME, nullable=False),
)

sa.Table(
    "sessions",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("csrf", sa.String(64), nullable=False),
    sa.Column("created", TIME, nullable=False),
    sa.Column("expires", TIME, nullable=False, index=True),
    sa.Column("token_hash", sa.String(64), nullable=False, unique=True),
)

sa.Table(
    "user_roles",
    TABLES,
    sa.Column("user_id", BIG, sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("role", sa.String(16), primary_key=True),
)

sa.Table(
    "items",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("project_id", BIG, sa.ForeignKey("projects.id"), nullable=False),
    sa.Column("problem_id", sa.Text, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("step", sa.Integer),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("known", sa.Text, nullable=False),
    sa.Column("active", sa.Boolean, nullable=False),
    sa.Column("created", TIME, nullable=False),
    sa.Column("digest", sa.String(32), nullable=False),
    sa.ForeignKeyConstraint(["project_id", "problem_id"], ["problems.project_id", "problems.id"]),
    sa.UniqueConstraint("project_id", "digest"),
    sa.UniqueConstraint("project_id", "id"),
)

sa.Table(
    "traces",
    TABLES,
    sa.Column("project_id", BIG, sa.ForeignKey("projects.id"), primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("problem_id", sa.Text, nullable=False),
    sa.Column("policy", sa.Text),
    sa.Column("outcome", sa.Boolean),
    sa.Column("steps", sa.Integer, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("created", TIME, nullable=False),
    sa.ForeignKeyConstraint(["project_id", "problem_id"], ["problems.project_id", "problems.id"]),
    sa.Index(None, "project_id", "problem_id"),
)

sa.Table(
    "assignments",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("project_id", BIG, nullable=False),
    sa.Column("item_id", BIG, nullable=False),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id"), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("chosen_by", sa.String(32), nullable=False),
    sa.Column("leased_until", TIME, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("milliseconds", BIG),
    sa.Column("created", TIME, nullable=False),
    sa.Column("finished", TIME),
    sa.ForeignKeyConstraint(["project_id", "item_id"], ["items.project_id", "items.id"]),
    sa.UniqueConstraint("item_id", "user_id"),
    sa.Index(None, "project_id", "user_id"),
)

sa.Table(
    "comments",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("item_id", BIG, nullable=False),
    sa.Column("trace_id", sa.Text),
    sa.Column("step", sa.Integer),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id"), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("created", TIME, nullable=False),
    sa.Column("resolved", TIME),
    sa.Column("project_id", BIG, nullable=False),
    sa.ForeignKeyConstraint(["project_id", "item_id"], ["items.project_id", "items.id"]),
    sa.ForeignKeyConstraint(["project_id", "trace_id"], ["traces.project_id", "traces.id"]),
    sa.Index(None, "project_id", "item_id"),
)

sa.Table(
    "item_traces",
    TABLES,
    sa.Column("project_id", BIG, nullable=False),
    sa.Column("item_id", BIG, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("trace_id", sa.Text, nullable=False),
    sa.ForeignKeyConstraint(["project_id", "item_id"], ["items.project_id", "items.id"]),
    sa.ForeignKeyConstraint(["project_id", "trace_id"], ["traces.project_id", "traces.id"]),
    sa.Index(None, "project_id", "trace_id"),
)

sa.Table(
    "priorities",
    TABLES,
    sa.Column("project_id", BIG, nullable=False),
    sa.Column("item_id", BIG, primary_key=True),
    sa.Column("policy", sa.String(32), primary_key=True),
    sa.Column("value", sa.Float, nullable=False),
    sa.ForeignKeyConstraint(["project_id", "item_id"], ["items.project_id", "items.id"]),
)

sa.Table(
    "step_scores",
    TABLES,
    sa.Column("project_id", BIG, primary_key=True),
    sa.Column("trace_id", sa.Text, primary_key=True),
    sa.Column("scorer", sa.Text, primary_key=True),
    sa.Column("lowest", sa.Float),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("created", TIME, nullable=False),
    sa.ForeignKeyConstraint(["project_id", "trace_id"], ["traces.project_id", "traces.id"]),
    sa.Index(None, "project_id", "scorer", "lowest"),
)

sa.Table(
    "submissions",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("project_id", BIG, nullable=False),
    sa.Column("item_id", BIG, nullable=False),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id"), nullable=False),
    sa.Column("key", sa.String(200), nullable=False),
    sa.Column("digest", sa.String(32), nullable=False),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("finished", sa.Boolean, nullable=False),
    sa.Column("undoes", BIG, sa.ForeignKey("submissions.id"), unique=True),
    sa.Column("created", TIME, nullable=False),
    sa.CheckConstraint("(action = 'undo') = (undoes IS NOT NULL)", name="undoes"),
    sa.ForeignKeyConstraint(["project_id", "item_id"], ["items.project_id", "items.id"]),
    sa.UniqueConstraint("project_id", "user_id", "key"),
    sa.Index(None, "item_id", "user_id"),
    sqlite_autoincrement=True,
)

sa.Table(
    "choices",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("item_id", BIG, nullable=False),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id"), nullable=False),
    sa.Column("trace_id", sa.Text, nullable=False),
    sa.Column("text", sa.Text),
    sa.Column("created", TIME, nullable=False),
    sa.Column("project_id", BIG, nullable=False),
    sa.Column("submission_id", BIG, sa.ForeignKey("submissions.id"), nullable=False),
    sa.ForeignKeyConstraint(["project_id", "trace_id"], ["traces.project_id", "traces.id"]),
    sa.ForeignKeyConstraint(["project_id", "item_id"], ["items.project_id", "items.id"]),
    sa.Index(None, "project_id", "item_id"),
)

sa.Table(
    "labels",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("item_id", BIG),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id")),
    sa.Column("milliseconds", BIG),
    sa.Column("chosen_by", sa.String(32)),
    sa.Column("meta", sa.Text, nullable=False),
    sa.Column("project_id", BIG, sa.ForeignKey("projects.id"), nullable=False),
    sa.Column("trace_id", sa.Text, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("submission_id", BIG, sa.ForeignKey("submissions.id"), index=True),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("value", sa.Float),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("digest", sa.String(32)),
    sa.Column("created", TIME, nullable=False),
    sa.ForeignKeyConstraint(["project_id", "item_id"], ["items.project_id", "items.id"]),
    sa.ForeignKeyConstraint(["project_id", "trace_id"], ["traces.project_id", "traces.id"]),
    sa.UniqueConstraint("project_id", "digest"),
    sa.Index(None, "item_id", "user_id"),
    sa.Index(None, "project_id", "trace_id", "step"),
    sqlite_autoincrement=True,
)

sa.Table(
    "adjudications",
    TABLES,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("item_id", BIG, nullable=False),
    sa.Column("trace_id", sa.Text, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("value", sa.Integer),
    sa.Column("label_id", BIG, sa.ForeignKey("labels.id")),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id"), nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("created", TIME, nullable=False),
    sa.Column("project_id", BIG, nullable=False),
    sa.ForeignKeyConstraint(["project_id", "item_id"], ["items.project_id", "items.id"]),
    sa.ForeignKeyConstraint(["project_id", "trace_id"], ["traces.project_id", "traces.id"]),
    sa.Index(None, "project_id", "item_id", "trace_id", "step"),
)


def upgrade() -> None:
    """Create the tables."""
    TABLES.create_all(op.get_bind(), checkfirst=False)


def downgrade() -> None:
    """Drop them, with everything in them."""
    TABLES.drop_all(op.get_bind(), checkfirst=False)
