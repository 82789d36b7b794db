"""Keys expire, and may do less than their role."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keys that exist never expire, and do what their role may."""
    op.add_column("api_keys", sa.Column("expires", sa.BigInteger(), nullable=True))
    op.add_column("api_keys", sa.Column("scopes", sa.Text(), nullable=True))


def downgrade() -> None:
    """Forget both."""
    op.drop_column("api_keys", "scopes")
    op.drop_column("api_keys", "expires")
