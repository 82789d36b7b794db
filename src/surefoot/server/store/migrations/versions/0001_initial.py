"""The first tables.

Spelled out, not taken from the declarations: a migration keeps its meaning when they change.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""Only ``INTEGER`` counts up by itself in SQLite, where it has 64 bits, too."""


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "audit_log",
        sa.Column("id", BIG, nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("user_id", BIG, nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("project_id", BIG, nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index(op.f("ix_audit_log_project_id"), "audit_log", ["project_id"], unique=False)
    op.create_table(
        "counters",
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "name", name=op.f("pk_counters")),
    )
    op.create_table(
        "gateway_requests",
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("strategy", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("scorer", sa.Text(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("latency_ms", sa.Float(), nullable=False),
        sa.Column("candidates", sa.Integer(), nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.Column("key_id", BIG, nullable=True),
        sa.Column("project_id", BIG, nullable=True),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gateway_requests")),
    )
    op.create_index(op.f("ix_gateway_requests_created"), "gateway_requests", ["created"], unique=False)
    op.create_index(
        op.f("ix_gateway_requests_project_id_created"),
        "gateway_requests",
        ["project_id", "created"],
        unique=False,
    )
    op.create_index(
        op.f("ix_gateway_requests_strategy_created"),
        "gateway_requests",
        ["strategy", "created"],
        unique=False,
    )
    op.create_table(
        "projects",
        sa.Column("id", BIG, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("instructions", sa.Text(), nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "users",
        sa.Column("id", BIG, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("password", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", BIG, nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("user_id", BIG, nullable=True),
        sa.Column("project_id", BIG, nullable=True),
        sa.Column("rate_limit", sa.Integer(), nullable=True),
        sa.Column("revoked", sa.BigInteger(), nullable=True),
        sa.Column("last_used", sa.BigInteger(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_api_keys_project_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_api_keys_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("prefix", name=op.f("uq_api_keys_prefix")),
    )
    op.create_table(
        "gateway_candidates",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("chosen", sa.Boolean(), nullable=False),
        sa.Column("from_client", sa.Boolean(), nullable=False),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["gateway_requests.id"],
            name=op.f("fk_gateway_candidates_request_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("request_id", "position", name=op.f("pk_gateway_candidates")),
    )
    op.create_table(
        "members",
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("pseudonym", sa.String(length=40), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_members_project_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_members_user_id")),
        sa.PrimaryKeyConstraint("project_id", "user_id", name=op.f("pk_members")),
        sa.UniqueConstraint("project_id", "pseudonym", name=op.f("uq_members_project_id_pseudonym")),
    )
    op.create_index(op.f("ix_members_user_id"), "members", ["user_id"], unique=False)
    op.create_table(
        "problems",
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_problems_project_id")),
        sa.PrimaryKeyConstraint("project_id", "id", name=op.f("pk_problems")),
    )
    op.create_table(
        "sessions",
        sa.Column("id", BIG, nullable=False),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("csrf", sa.String(length=64), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_sessions_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_sessions_token_hash")),
    )
    op.create_index(op.f("ix_sessions_expires"), "sessions", ["expires"], unique=False)
    op.create_index(op.f("ix_sessions_user_id"), "sessions", ["user_id"], unique=False)
    op.create_table(
        "user_roles",
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_user_roles_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "role", name=op.f("pk_user_roles")),
    )
    op.create_table(
        "items",
        sa.Column("id", BIG, nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("problem_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("known", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "problem_id"],
            ["problems.project_id", "problems.id"],
            name=op.f("fk_items_project_id_problem_id"),
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_items_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_items")),
        sa.UniqueConstraint("project_id", "digest", name=op.f("uq_items_project_id_digest")),
        sa.UniqueConstraint("project_id", "id", name=op.f("uq_items_project_id_id")),
    )
    op.create_table(
        "traces",
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("problem_id", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Boolean(), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "problem_id"],
            ["problems.project_id", "problems.id"],
            name=op.f("fk_traces_project_id_problem_id"),
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_traces_project_id")),
        sa.PrimaryKeyConstraint("project_id", "id", name=op.f("pk_traces")),
    )
    op.create_index(
        op.f("ix_traces_project_id_problem_id"), "traces", ["project_id", "problem_id"], unique=False
    )
    op.create_table(
        "assignments",
        sa.Column("id", BIG, nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("chosen_by", sa.String(length=32), nullable=False),
        sa.Column("leased_until", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("milliseconds", BIG, nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("finished", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id", "item_id"],
            ["items.project_id", "items.id"],
            name=op.f("fk_assignments_project_id_item_id"),
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_assignments_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_assignments")),
        sa.UniqueConstraint("item_id", "user_id", name=op.f("uq_assignments_item_id_user_id")),
    )
    op.create_index(
        op.f("ix_assignments_project_id_user_id"), "assignments", ["project_id", "user_id"], unique=False
    )
    op.create_table(
        "comments",
        sa.Column("id", BIG, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("resolved", sa.BigInteger(), nullable=True),
        sa.Column("project_id", BIG, nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "item_id"],
            ["items.project_id", "items.id"],
            name=op.f("fk_comments_project_id_item_id"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "trace_id"],
            ["traces.project_id", "traces.id"],
            name=op.f("fk_comments_project_id_trace_id"),
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_comments_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comments")),
    )
    op.create_index(
        op.f("ix_comments_project_id_item_id"), "comments", ["project_id", "item_id"], unique=False
    )
    op.create_table(
        "item_traces",
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "item_id"],
            ["items.project_id", "items.id"],
            name=op.f("fk_item_traces_project_id_item_id"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "trace_id"],
            ["traces.project_id", "traces.id"],
            name=op.f("fk_item_traces_project_id_trace_id"),
        ),
        sa.PrimaryKeyConstraint("item_id", "position", name=op.f("pk_item_traces")),
    )
    op.create_index(
        op.f("ix_item_traces_project_id_trace_id"), "item_traces", ["project_id", "trace_id"], unique=False
    )
    op.create_table(
        "priorities",
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("policy", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "item_id"],
            ["items.project_id", "items.id"],
            name=op.f("fk_priorities_project_id_item_id"),
        ),
        sa.PrimaryKeyConstraint("item_id", "policy", name=op.f("pk_priorities")),
    )
    op.create_table(
        "step_scores",
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("scorer", sa.Text(), nullable=False),
        sa.Column("lowest", sa.Float(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "trace_id"],
            ["traces.project_id", "traces.id"],
            name=op.f("fk_step_scores_project_id_trace_id"),
        ),
        sa.PrimaryKeyConstraint("project_id", "trace_id", "scorer", name=op.f("pk_step_scores")),
    )
    op.create_index(
        op.f("ix_step_scores_project_id_scorer_lowest"),
        "step_scores",
        ["project_id", "scorer", "lowest"],
        unique=False,
    )
    op.create_table(
        "submissions",
        sa.Column("id", BIG, nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=32), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.Column("undoes", BIG, nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("(action = 'undo') = (undoes IS NOT NULL)", name=op.f("ck_submissions_undoes")),
        sa.ForeignKeyConstraint(
            ["project_id", "item_id"],
            ["items.project_id", "items.id"],
            name=op.f("fk_submissions_project_id_item_id"),
        ),
        sa.ForeignKeyConstraint(["undoes"], ["submissions.id"], name=op.f("fk_submissions_undoes")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_submissions_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_submissions")),
        sa.UniqueConstraint(
            "project_id", "user_id", "key", name=op.f("uq_submissions_project_id_user_id_key")
        ),
        sa.UniqueConstraint("undoes", name=op.f("uq_submissions_undoes")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_submissions_item_id_user_id"), "submissions", ["item_id", "user_id"], unique=False
    )
    op.create_table(
        "choices",
        sa.Column("id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("submission_id", BIG, nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "item_id"],
            ["items.project_id", "items.id"],
            name=op.f("fk_choices_project_id_item_id"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "trace_id"],
            ["traces.project_id", "traces.id"],
            name=op.f("fk_choices_project_id_trace_id"),
        ),
        sa.ForeignKeyConstraint(["submission_id"], ["submissions.id"], name=op.f("fk_choices_submission_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_choices_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_choices")),
    )
    op.create_index(op.f("ix_choices_project_id_item_id"), "choices", ["project_id", "item_id"], unique=False)
    op.create_table(
        "labels",
        sa.Column("id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=True),
        sa.Column("user_id", BIG, nullable=True),
        sa.Column("milliseconds", BIG, nullable=True),
        sa.Column("chosen_by", sa.String(length=32), nullable=True),
        sa.Column("meta", sa.Text(), nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("submission_id", BIG, nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=32), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "item_id"],
            ["items.project_id", "items.id"],
            name=op.f("fk_labels_project_id_item_id"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "trace_id"],
            ["traces.project_id", "traces.id"],
            name=op.f("fk_labels_project_id_trace_id"),
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_labels_project_id")),
        sa.ForeignKeyConstraint(["submission_id"], ["submissions.id"], name=op.f("fk_labels_submission_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_labels_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_labels")),
        sa.UniqueConstraint("project_id", "digest", name=op.f("uq_labels_project_id_digest")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_labels_item_id_user_id"), "labels", ["item_id", "user_id"], unique=False)
    op.create_index(
        op.f("ix_labels_project_id_trace_id_step"), "labels", ["project_id", "trace_id", "step"], unique=False
    )
    op.create_index(op.f("ix_labels_submission_id"), "labels", ["submission_id"], unique=False)
    op.create_table(
        "adjudications",
        sa.Column("id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("value", sa.Integer(), nullable=True),
        sa.Column("label_id", BIG, nullable=True),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_adjudications_label_id")),
        sa.ForeignKeyConstraint(
            ["project_id", "item_id"],
            ["items.project_id", "items.id"],
            name=op.f("fk_adjudications_project_id_item_id"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "trace_id"],
            ["traces.project_id", "traces.id"],
            name=op.f("fk_adjudications_project_id_trace_id"),
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_adjudications_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adjudications")),
    )
    op.create_index(
        op.f("ix_adjudications_project_id_item_id_trace_id_step"),
        "adjudications",
        ["project_id", "item_id", "trace_id", "step"],
        unique=False,
    )


def downgrade() -> None:
    """Drop them, with everything in them."""
    op.drop_table("adjudications")
    op.drop_table("labels")
    op.drop_table("choices")
    op.drop_table("submissions")
    op.drop_table("step_scores")
    op.drop_table("priorities")
    op.drop_table("item_traces")
    op.drop_table("comments")
    op.drop_table("assignments")
    op.drop_table("traces")
    op.drop_table("items")
    op.drop_table("user_roles")
    op.drop_table("sessions")
    op.drop_table("problems")
    op.drop_table("members")
    op.drop_table("gateway_candidates")
    op.drop_table("api_keys")
    op.drop_table("users")
    op.drop_table("projects")
    op.drop_table("gateway_requests")
    op.drop_table("counters")
    op.drop_table("audit_log")
