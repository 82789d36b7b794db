"""Whether an annotator knows the answers of the screening items."""

from __future__ import annotations

import json

from sqlalchemy import Connection, select

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._entries import counting_ids
from surefoot.annotation.database.accounts import Project


def passed_screening(connection: Connection, project: Project, user_id: int) -> bool:
    """Whether the user got the asked-for share of known labels right; a step left out is not right."""
    if project.protocol.screening_pass == 0:
        return True
    items = (
        (t.items.c.project_id == project.id) & (t.items.c.role == "screening") & t.items.c.active.is_(True)
    )
    known = {
        (item_id, answer["trace_id"], answer["step"]): answer["value"]
        for item_id, text in connection.execute(select(t.items.c.id, t.items.c.known).where(items))
        for answer in json.loads(text)
    }
    label = t.labels.c
    query = select(label.item_id, label.trace_id, label.step, label.value).where(
        label.id.in_(counting_ids(project.id)), label.user_id == user_id
    )
    given = {(row.item_id, row.trace_id, row.step): row.value for row in connection.execute(query)}
    right = sum(given.get(place) == value for place, value in known.items())
    return bool(right >= project.protocol.screening_pass * len(known))
