"""What annotators' labels say together: the matrix for agreement, disagreements, and what was decided."""

from __future__ import annotations

import json
from typing import Literal

from sqlalchemy import Connection, and_, func, insert, select

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._checks import checked_text
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._entries import counting_ids, steps_of_trace
from surefoot.annotation.database._errors import ConflictError
from surefoot.annotation.database._items import item_in
from surefoot.annotation.database._records import record_in
from surefoot.annotation.database.annotation import Adjudication, Disagreement, MatrixCell
from surefoot.annotation.database.projects import locked_project, project_in
from surefoot.errors import StoreError
from surefoot.records import Trace

Place = tuple[int, str, int]
"""(item, trace, step)."""


class Reviews:
    """Repository of what is decided about labels. Not for annotators."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def matrix(self, project_id: int, *, controls: bool = True, unfinished: bool = False) -> list[MatrixCell]:
        """The ratings that count, in the order they came: input of ``surefoot.stats.agreement``.

        ``controls``: items with known answers, too; ``unfinished``: also of items that their annotator has
        not finished. ``ratings`` makes the array of it.
        """
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return _cells(connection, project_id, controls=controls, unfinished=unfinished)

    def disagreements(self, project_id: int, *, adjudicated: bool = False) -> list[Disagreement]:
        """Steps of normal items with different labels of annotators who finished; the open ones by default.

        A step that only one of them labelled (the others stopped at an earlier error) is none.
        """
        with self._connections.read() as connection:
            project_in(connection, project_id)
            cells = _cells(connection, project_id, controls=False, unfinished=False)
            decided = decisions(connection, project_id)
        places: dict[Place, list[MatrixCell]] = {}
        for cell in cells:
            places.setdefault((cell.item_id, cell.trace_id, cell.step), []).append(cell)
        return [
            Disagreement(
                item_id=place[0],
                trace_id=place[1],
                step=place[2],
                values=tuple(sorted((cell.annotator, cell.value) for cell in given)),
                label_ids=tuple(cell.label_id for cell in sorted(given, key=lambda c: c.annotator)),
                adjudication=decided.get(place),
            )
            for place, given in sorted(places.items())
            if len({cell.value for cell in given}) > 1 and (adjudicated or place not in decided)
        ]

    def adjudicate(
        self,
        project_id: int,
        item_id: int,
        user_id: int,
        trace_id: str,
        step: int,
        value: Literal[-1, 0, 1] | None,
        *,
        note: str = "",
        label_id: int | None = None,
        after: int | None = None,
    ) -> Adjudication:
        """Decide a step; the latest decision counts, and all are kept.

        ``label_id`` names the annotator's label that was chosen. ``after`` is the number of the decision
        that the sender saw (0 for none). Whether the user may decide is for the caller to ask.

        Raises ``ConflictError`` if somebody decided since, ``StoreError`` for a step or label that is not
        the item's, or no value and no note.
        """
        checked_text("note", note)
        if value is None and not note.strip():
            raise StoreError("a decision without a value needs a 'note'")
        if value not in (None, -1, 0, 1):
            raise StoreError(f"'value' is -1, 0, 1 or None, not {value}")
        a = t.adjudications.c
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            item = item_in(connection, project_id, item_id)
            if trace_id not in item.trace_ids:
                raise StoreError(f"'trace_id' is no trace of item {item_id}")
            steps = len(record_in(connection, t.traces, Trace, project_id, trace_id).steps)
            if not 0 <= step < steps:
                raise StoreError(f"'step' {step}: the trace has steps 0 to {steps - 1}")
            _refuse_foreign_label(connection, label_id, (item_id, trace_id, step))
            where = (a.item_id == item_id) & (a.trace_id == trace_id) & (a.step == step)
            last = connection.scalar(select(func.max(a.id)).where(where)) or 0
            if after is not None and after != last:
                raise ConflictError(f"step {step} was decided since (number {last}); read it again")
            row = {
                "project_id": project_id,
                "item_id": item_id,
                "trace_id": trace_id,
                "step": step,
                "value": value,
                "label_id": label_id,
                "user_id": user_id,
                "note": note,
                "created": self._connections.clock(),
            }
            made = connection.execute(insert(t.adjudications).values(row).returning(a.id)).scalar_one()
            return decisions(connection, project_id, made)[item_id, trace_id, step]

    def adjudications(self, project_id: int) -> list[Adjudication]:
        """The decisions that count, by item, trace and step."""
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return [decision for _, decision in sorted(decisions(connection, project_id).items())]


def _cells(connection: Connection, project_id: int, *, controls: bool, unfinished: bool) -> list[MatrixCell]:
    label, member, given = t.labels.c, t.members.c, t.assignments.c
    same_user = and_(member.user_id == label.user_id, member.project_id == label.project_id)
    same_item = and_(given.item_id == label.item_id, given.user_id == label.user_id)
    query = (
        select(
            *(label.id, label.item_id, label.trace_id, label.step, label.user_id, label.value),
            *(label.created, label.chosen_by, label.milliseconds, member.pseudonym),
            *(t.items.c.role, t.items.c.known, steps_of_trace().label("steps")),
        )
        .join_from(t.labels, t.items, t.items.c.id == label.item_id)
        .join(t.members, same_user)
        .join(t.assignments, same_item)
        .where(label.project_id == project_id, label.id.in_(counting_ids(project_id)))
        .order_by(label.id)
    )
    if not controls:
        query = query.where(t.items.c.role == "normal")
    if not unfinished:
        query = query.where(given.state == "done")
    known: dict[int, dict[tuple[str, int], int]] = {}
    cells = []
    for row in connection.execute(query):
        if row.item_id not in known:
            answers = json.loads(row.known)
            known[row.item_id] = {(a["trace_id"], a["step"]): a["value"] for a in answers}
        cells.append(
            MatrixCell(
                label_id=row.id,
                item_id=row.item_id,
                trace_id=row.trace_id,
                step=row.step,
                steps=row.steps,
                user_id=row.user_id,
                annotator=row.pseudonym,
                value=None if row.value is None else int(row.value),
                created=row.created,
                role=row.role,
                chosen_by=row.chosen_by,
                milliseconds=row.milliseconds,
                known=known[row.item_id].get((row.trace_id, row.step)),
            )
        )
    return cells


def decisions(connection: Connection, project_id: int, only: int | None = None) -> dict[Place, Adjudication]:
    """The latest decision of each step, or the one with the number ``only``."""
    a = t.adjudications.c
    query = select(t.adjudications).where(a.project_id == project_id).order_by(a.id)
    if only is not None:
        query = query.where(a.id == only)
    return {
        (row["item_id"], row["trace_id"], row["step"]): Adjudication(
            **{name: value for name, value in row.items() if name != "project_id"}
        )
        for row in connection.execute(query).mappings()
    }


def _refuse_foreign_label(connection: Connection, label_id: int | None, place: Place) -> None:
    if label_id is None:
        return
    label = t.labels.c
    query = select(label.item_id, label.trace_id, label.step).where(label.id == label_id)
    row = connection.execute(query).one_or_none()
    if row is None or tuple(row) != place:
        raise StoreError(f"'label_id' {label_id} is no label of step {place[2]} of item {place[0]}")
