"""Items as they are read: whole, for administrators, and what of them an annotator may see."""

from __future__ import annotations

import json
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, select

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._entries import choices_in, counting, labels_in, last_submission
from surefoot.annotation.database._errors import ForbiddenError, NotFoundError
from surefoot.annotation.database._records import record_in
from surefoot.annotation.database.accounts import Project
from surefoot.annotation.database.annotation import AnnotatorItem, Item, KnownAnswer
from surefoot.annotation.database.projects import pseudonym_in
from surefoot.records import Problem, Trace


def item_in(connection: Connection, project_id: int, item_id: int) -> Item:
    """The item, in the caller's transaction. Raises ``NotFoundError``."""
    found = items_in(connection, project_id, t.items.c.id == item_id, limit=1)
    if not found:
        raise NotFoundError(f"project {project_id} has no item {item_id}")
    return found[0]


def items_in(connection: Connection, project_id: int, *wanted: ColumnElement[bool], limit: int) -> list[Item]:
    """Items by number, in the caller's transaction."""
    query = select(t.items).where(t.items.c.project_id == project_id, *wanted)
    rows = connection.execute(query.order_by(t.items.c.id).limit(limit)).mappings().all()
    traces: dict[int, list[str]] = {row["id"]: [] for row in rows}
    of_items = select(t.item_traces).where(
        t.item_traces.c.project_id == project_id, t.item_traces.c.item_id.in_(traces)
    )
    for part in connection.execute(of_items.order_by(t.item_traces.c.position)):
        traces[part.item_id].append(part.trace_id)
    return [
        Item(
            id=row["id"],
            project_id=project_id,
            problem_id=row["problem_id"],
            kind=row["kind"],
            step=row["step"],
            role=row["role"],
            known=tuple(KnownAnswer(**answer) for answer in json.loads(row["known"])),
            trace_ids=tuple(traces[row["id"]]),
            active=row["active"],
            created=row["created"],
        )
        for row in rows
    ]


def annotator_item(connection: Connection, project: Project, item: Item, user_id: int) -> AnnotatorItem:
    """What the user may see of ``item``. Raises ``ForbiddenError`` if it was never given to them."""
    pseudonym_in(connection, project.id, user_id)
    mine = (t.assignments.c.item_id == item.id) & (t.assignments.c.user_id == user_id)
    row = connection.execute(select(t.assignments).where(mine)).mappings().one_or_none()
    if row is None:
        raise ForbiddenError(f"item {item.id} was not given to user {user_id}; ask for the next one")
    problem = record_in(connection, t.problems, Problem, project.id, item.problem_id)
    traces = (record_in(connection, t.traces, Trace, project.id, name) for name in item.trace_ids)
    entries = (t.labels.c.item_id == item.id) & (t.labels.c.user_id == user_id)
    chosen = choices_in(connection, project.id, item_id=item.id, user_id=user_id)
    show = project.protocol.show_answer
    return AnnotatorItem(
        item_id=item.id,
        kind=item.kind,
        step=item.step,
        problem=problem.model_copy(
            update={"answer": problem.answer if show else None, "meta": {}, "source": None}
        ),
        traces=tuple(_blinded(trace, show) for trace in traces),
        state=row["state"],
        leased_until=row["leased_until"],
        labels=tuple(
            replace(label, chosen_by=None, role=None)
            for label in counting(labels_in(connection, project.id, entries))
        ),
        choice=chosen[-1] if chosen else None,
        last=last_submission(connection, item.id, user_id),
    )


def _blinded(trace: Trace, show_answer: bool) -> Trace:
    hidden: dict[str, object] = {"meta": {}, "policy": None, "seed": None, "error": None}
    return trace.model_copy(update=hidden if show_answer else {**hidden, "outcome": None})
