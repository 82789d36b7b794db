"""How far a project is, and each of its annotators."""

from __future__ import annotations

from datetime import datetime
from statistics import median
from typing import Any

from sqlalchemy import Connection, and_, func, select

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._entries import counting_ids
from surefoot.annotation.database.accounts import Project
from surefoot.annotation.database.annotation import AnnotatorProgress, Progress

_A = t.assignments.c


def progress_of(connection: Connection, project: Project, at: datetime) -> Progress:
    """Counts over active normal items; per annotator over all items."""
    wanted = project.protocol.annotators
    normal = and_(t.items.c.project_id == project.id, t.items.c.role == "normal", t.items.c.active.is_(True))
    finished = (
        select(t.items.c.id, func.count(_A.id).label("done"))
        .join(t.assignments, and_(_A.item_id == t.items.c.id, _A.state == "done"), isouter=True)
        .where(normal)
        .group_by(t.items.c.id)
        .subquery()
    )
    counts = connection.execute(
        select(
            func.count(),
            func.coalesce(func.sum(finished.c.done), 0),
            func.count().filter(finished.c.done >= wanted),
        ).select_from(finished)
    ).one()
    live = (_A.project_id == project.id) & (_A.state == "leased") & (_A.leased_until > at)
    return Progress(
        items=counts[0],
        done=int(counts[1]),
        complete=counts[2],
        needed=counts[0] * wanted,
        leased=connection.scalar(select(func.count()).where(live)) or 0,
        annotators=tuple(_annotators(connection, project.id)),
    )


def _annotators(connection: Connection, project_id: int) -> list[AnnotatorProgress]:
    label = t.labels.c
    counted = select(label.user_id, func.count()).where(label.id.in_(counting_ids(project_id)))
    labels = {user: count for user, count in connection.execute(counted.group_by(label.user_id))}  # noqa: C416
    work = select(_A.user_id, _A.state, _A.milliseconds, _A.finished).where(_A.project_id == project_id)
    given: dict[int, list[Any]] = {}
    for row in connection.execute(work):
        given.setdefault(row.user_id, []).append(row)
    people = select(t.members.c.user_id, t.members.c.pseudonym).where(t.members.c.project_id == project_id)
    made = []
    for user_id, pseudonym in connection.execute(people.order_by(t.members.c.pseudonym)):
        own = given.get(user_id, [])
        if not own:
            continue
        done = [row for row in own if row.state == "done"]
        times = [row.milliseconds for row in done if row.milliseconds is not None]
        made.append(
            AnnotatorProgress(
                user_id=user_id,
                annotator=pseudonym,
                done=len(done),
                skipped=sum(row.state == "skipped" for row in own),
                labels=labels.get(user_id, 0),
                milliseconds=int(median(times)) if times else None,
                last=max((row.finished for row in own if row.finished), default=None),
            )
        )
    return made
