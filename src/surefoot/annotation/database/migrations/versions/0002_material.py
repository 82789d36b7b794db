"""Problems, traces, scores and the items made of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Types are spelled out here, not imported: a migration must go on meaning what it meant. Times are
# microseconds since 1970.
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
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
        "items",
        sa.Column("id", BIG, autoincrement=True, nullable=False),
        sa.Column("project_id", BIG, nullable=False),
        sa.Column("problem_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("known", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=32), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
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


def downgrade() -> None:
    """Drop them, with all that is in them."""
    op.drop_table("step_scores")
    op.drop_table("priorities")
    op.drop_table("item_traces")
    op.drop_table("traces")
    op.drop_table("items")
    op.drop_table("problems")
