"""Tool calls can wait for a person's decision."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0007"
down_revision = "r0006"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """The queue of held calls, empty."""
    op.create_table(
        "held_calls",
        sa.Column("id", BIG, nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("key_id", BIG, nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("decided", sa.BigInteger(), nullable=True),
        sa.Column("user_id", BIG, nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_held_calls_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_held_calls")),
    )
    op.create_index(op.f("ix_held_calls_state_id"), "held_calls", ["state", "id"])


def downgrade() -> None:
    """Drop the queue with what was decided."""
    op.drop_table("held_calls")
