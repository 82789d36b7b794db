"""Assignments, labels, choices, remarks and decisions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Types are spelled out here, not imported: a migration must go on meaning what it meant. Times are
# microseconds since 1970.
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "assignments",
        sa.Column("id", BIG, autoincrement=True, nullable=False),
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
        "remarks",
        sa.Column("id", BIG, autoincrement=True, nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("resolved", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id", "item_id"],
            ["items.project_id", "items.id"],
            name=op.f("fk_remarks_project_id_item_id"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "trace_id"],
            ["traces.project_id", "traces.id"],
            name=op.f("fk_remarks_project_id_trace_id"),
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_remarks_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_remarks")),
    )
    op.create_index(op.f("ix_remarks_project_id_item_id"), "remarks", ["project_id", "item_id"], unique=False)
    op.create_table(
        "submissions",
        sa.Column("id", BIG, autoincrement=True, nullable=False),
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
        sa.Column("id", BIG, autoincrement=True, nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("submission_id", BIG, nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
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
        sa.Column("id", BIG, autoincrement=True, nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=True),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("user_id", BIG, nullable=True),
        sa.Column("submission_id", BIG, nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("milliseconds", BIG, nullable=True),
        sa.Column("chosen_by", sa.String(length=32), nullable=True),
        sa.Column("meta", sa.Text(), nullable=False),
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
        sa.Column("id", BIG, autoincrement=True, nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("item_id", BIG, nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("value", sa.Integer(), nullable=True),
        sa.Column("label_id", BIG, nullable=True),
        sa.Column("user_id", BIG, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
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
    """Drop them, with all that is in them."""
    op.drop_table("adjudications")
    op.drop_table("labels")
    op.drop_table("choices")
    op.drop_table("submissions")
    op.drop_table("remarks")
    op.drop_table("assignments")
