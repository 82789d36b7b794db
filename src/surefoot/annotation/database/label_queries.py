"""Reading labels and choices: with retractions applied, or everything ever submitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, func, select

from surefoot.annotation.database import labelling as t
from surefoot.annotation.database.labelling import StepChoice, StoredLabel
from surefoot.annotation.database.schema import as_data, columns_of, matching, rows_of
from surefoot.records import StepLabel

_UNDO = t.submissions.alias("undo")


def labels_in(
    connection: Connection, project_id: int, *conditions: ColumnElement[bool], retracted: bool = False
) -> list[StoredLabel]:
    """Labels of the project in the order they were submitted; retracted ones only on request."""
    retraction = _UNDO.c.id.is_not(None)
    query = (
        select(
            *columns_of(StoredLabel, t.labels),
            t.labels.c.payload,
            t.items.c.role,
            retraction.label("retracted"),
        )
        .join(t.items, t.items.c.id == t.labels.c.item_id, isouter=True)
        .join(_UNDO, _UNDO.c.undoes == t.labels.c.submission_id, isouter=True)
        .where(t.labels.c.project_id == project_id, *conditions)
        .order_by(t.labels.c.id)
    )
    if not retracted:
        query = query.where(~retraction)
    return [
        as_data(
            StoredLabel,
            row,
            record=StepLabel.model_validate_json(row["payload"]),
            retracted=bool(row["retracted"]),
        )
        for row in connection.execute(query).mappings()
    ]


def counting(labels: Iterable[StoredLabel]) -> list[StoredLabel]:
    """The latest of each annotator's labels of a step, and all imported labels."""
    latest: dict[Any, StoredLabel] = {}
    for label in labels:
        if label.retracted:
            continue
        own = (label.item_id, label.user_id, label.record.trace_id, label.record.step)
        latest[label.id if label.user_id is None else own] = label
    return sorted(latest.values(), key=lambda label: label.id)


def counting_ids(project_id: int) -> Select[int]:
    """Query for the ids of the annotators' labels that ``counting`` returns."""
    retracted = select(t.submissions.c.undoes).where(
        t.submissions.c.project_id == project_id, t.submissions.c.undoes.is_not(None)
    )
    label = t.labels.c
    return (
        select(func.max(label.id))
        .where(label.project_id == project_id, label.user_id.is_not(None))
        .where(label.submission_id.not_in(retracted))
        .group_by(label.item_id, label.user_id, label.trace_id, label.step)
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


def steps_of_trace() -> ScalarSelect[int]:
    """Number of steps of the trace of a row of ``labels``."""
    same = (t.traces.c.project_id == t.labels.c.project_id) & (t.traces.c.id == t.labels.c.trace_id)
    return select(t.traces.c.steps).where(same).correlate(t.labels).scalar_subquery()
