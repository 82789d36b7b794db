"""Labels say themselves whether they count, and indices hold what is filtered and counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0006"
down_revision = "r0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of an annotator's labels of a step the latest that is not undone counts, and every imported label."""
    op.add_column("labels", sa.Column("is_current", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.execute(
        "UPDATE labels SET is_current = false "
        "WHERE EXISTS (SELECT 1 FROM submissions AS undo WHERE undo.undoes = labels.submission_id)"
    )
    # a later label that is itself replaced has one after it that is not, so the order of rows is no matter
    op.execute(
        "UPDATE labels SET is_current = false WHERE user_id IS NOT NULL AND is_current AND EXISTS ("
        "SELECT 1 FROM labels AS later WHERE later.item_id = labels.item_id "
        "AND later.user_id = labels.user_id AND later.trace_id = labels.trace_id "
        "AND later.step = labels.step AND later.id > labels.id AND NOT EXISTS ("
        "SELECT 1 FROM submissions AS undo WHERE undo.undoes = later.submission_id))"
    )
    op.create_index(
        op.f("ix_labels_project_id_user_id_is_current"), "labels", ["project_id", "user_id", "is_current"]
    )
    op.create_index(op.f("ix_items_project_id_role_id"), "items", ["project_id", "role", "id"])
    op.drop_index(op.f("ix_step_scores_project_id_scorer_lowest"), "step_scores")
    op.create_index(
        op.f("ix_step_scores_project_id_scorer_lowest_trace_id"),
        "step_scores",
        ["project_id", "scorer", "lowest", "trace_id"],
    )


def downgrade() -> None:
    """Whether a label counts is computed again from submissions and undos."""
    op.drop_index(op.f("ix_step_scores_project_id_scorer_lowest_trace_id"), "step_scores")
    op.create_index(
        op.f("ix_step_scores_project_id_scorer_lowest"), "step_scores", ["project_id", "scorer", "lowest"]
    )
    op.drop_index(op.f("ix_items_project_id_role_id"), "items")
    op.drop_index(op.f("ix_labels_project_id_user_id_is_current"), "labels")
    op.drop_column("labels", "is_current")
