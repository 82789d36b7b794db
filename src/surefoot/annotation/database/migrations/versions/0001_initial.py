"""All tables, as declared until the first release.

The first migration after it must freeze them here, spelled out: this one has to keep its meaning when the
declarations change.
"""

from __future__ import annotations

from alembic import op

from surefoot.annotation.database.schema import METADATA

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    METADATA.create_all(op.get_bind(), checkfirst=False)


def downgrade() -> None:
    """Drop them, with everything in them."""
    METADATA.drop_all(op.get_bind(), checkfirst=False)
