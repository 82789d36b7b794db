"""Attempts to sign in are counted here, and what the server signs has its key here."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Nothing has been counted or signed yet."""
    op.create_table(
        "server_secrets",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_server_secrets")),
    )
    op.create_table(
        "sign_in_attempts",
        sa.Column("id", BIG, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sign_in_attempts")),
    )
    op.create_index(op.f("ix_sign_in_attempts_digest_expires"), "sign_in_attempts", ["digest", "expires"])
    op.create_index(op.f("ix_sign_in_attempts_expires"), "sign_in_attempts", ["expires"])


def downgrade() -> None:
    """Forget the attempts, and end what was signed."""
    op.drop_table("sign_in_attempts")
    op.drop_table("server_secrets")
