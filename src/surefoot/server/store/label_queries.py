"""Labels and choices, with retractions applied or all ever submitted, and which labels count."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, false, func, select, update

from surefoot.records import StepLabel
from surefoot.server.store import labelling as t
from surefoot.server.store.labelling import StepChoice, StoredLabel
from surefoot.server.store.schema import as_data, columns_of, matching, rows_of

_UNDO = t.submissions.alias("undo")


def labels_in(
    connection: Connection, project_id: int, *conditions: ColumnElement[bool], retracted: bool = False
) -> list[StoredLabel]:
    """Labels of the project that count, in the order they were submitted; on request all ever submitted."""
    retraction = _UNDO.c.id.is_not(None) if retracted else false()
    query = (
        select(
            *columns_of(StoredLabel, t.labels),
            t.labels.c.payload,
            t.items.c.role,
            retraction.label("retracted"),
        )
        .join(t.items, t.items.c.id == t.labels.c.item_id, isouter=True)
        .where(t.labels.c.project_id == project_id, *conditions)
        .order_by(t.labels.c.id)
    )
    if retracted:
        query = query.join(_UNDO, _UNDO.c.undoes == t.labels.c.submission_id, isouter=True)
    else:
        query = query.where(t.labels.c.is_current)
    return [
        as_data(
            StoredLabel,
            row,
            record=StepLabel.model_validate_json(row["payload"]),
            retracted=bool(row["retracted"]),
        )
        for row in connection.execute(query).mappings()
    ]


def refresh_current(connection: Connection, item_id: int, user_id: int) -> None:
    """Mark the user's labels of the item that count: of each step the latest that is not undone.

    To be called in the transaction that adds a submission or an undo. Imported labels always count.
    """
    label = t.labels.c
    own_labels = (label.item_id == item_id) & (label.user_id == user_id)
    latest = (
        select(func.max(label.id))
        .join(_UNDO, _UNDO.c.undoes == label.submission_id, isouter=True)
        .where(own_labels, _UNDO.c.id.is_(None))
        .group_by(label.trace_id, label.step)
    )
    counts = label.id.in_(list(connection.scalars(latest)))
    connection.execute(
        update(t.labels).where(own_labels, label.is_current != counts).values(is_current=counts)
    )


def choices_in(
    connection: Connection, project_id: int, *, item_id: int | None = None, user_id: int | None = None
) -> list[StepChoice]:
    """Choices that were not undone, in the order they were made."""
    query = (
        select(t.choices)
        .join(_UNDO, _UNDO.c.undoes == t.choices.c.submission_id, isouter=True)
        .where(t.choices.c.project_id == project_id, _UNDO.c.id.is_(None))
        .where(*matching(t.choices, item_id=item_id, user_id=user_id))
        .order_by(t.choices.c.id)
    )
    return rows_of(connection, StepChoice, query)


def last_submission(connection: Connection, item_id: int, user_id: int) -> int:
    """Id of the user's latest submission or undo for the item; 0 if there is none."""
    where = (t.submissions.c.item_id == item_id) & (t.submissions.c.user_id == user_id)
    return connection.scalar(select(func.max(t.submissions.c.id)).where(where)) or 0
