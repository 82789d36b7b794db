"""Quotas of keys, and what they have used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Keys that exist have no quotas; what they have stored before does not count."""
    for name in ("daily_requests", "daily_tokens", "max_stored_bytes"):
        op.add_column("api_keys", sa.Column(name, BIG, nullable=True))
    op.add_column("gateway_requests", sa.Column("bytes", BIG, nullable=False, server_default="0"))
    op.create_table(
        "key_usage",
        sa.Column("key_id", BIG, nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("requests", BIG, nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.Column("stored_bytes", BIG, nullable=False),
        sa.PrimaryKeyConstraint("key_id", "day", name=op.f("pk_key_usage")),
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_table("key_usage")
    op.drop_column("gateway_requests", "bytes")
    for name in ("max_stored_bytes", "daily_tokens", "daily_requests"):
        op.drop_column("api_keys", name)
