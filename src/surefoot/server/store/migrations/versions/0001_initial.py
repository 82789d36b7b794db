"""The tables of the first release, and the base of later migrations.

``open_database`` creates the tables of a new database from their declarations, so this revision does nothing.
"""

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A database at this revision has all its tables."""
