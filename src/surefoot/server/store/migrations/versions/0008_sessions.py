"""Requests can be turns of a session."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0008"
down_revision = "r0007"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Requests so far belong to none."""
    op.add_column("gateway_requests", sa.Column("session", sa.Text(), nullable=True))
    op.add_column("gateway_requests", sa.Column("turn", BIG, nullable=True))
    op.create_index(
        op.f("ix_gateway_requests_session_key_id_created"),
        "gateway_requests",
        ["session", "key_id", "created"],
    )


def downgrade() -> None:
    """Forget which requests belong together; their records still say it."""
    op.drop_index(op.f("ix_gateway_requests_session_key_id_created"), "gateway_requests")
    op.drop_column("gateway_requests", "turn")
    op.drop_column("gateway_requests", "session")
