"""Who wrote and who scored what the gateway answered, and which solutions the client gave."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; requests of before have none."""
    op.add_column("gateway_requests", sa.Column("policy", sa.Text(), nullable=True))
    op.add_column("gateway_requests", sa.Column("scorer", sa.Text(), nullable=True))
    op.add_column(
        "gateway_candidates", sa.Column("given", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    """Take them away."""
    op.drop_column("gateway_candidates", "given")
    op.drop_column("gateway_requests", "scorer")
    op.drop_column("gateway_requests", "policy")
