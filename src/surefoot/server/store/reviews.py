"""Comparing annotators' labels: ratings for agreement, disagreements, decisions; comments and flags."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, and_, delete, func, literal, select, tuple_, update

from surefoot.errors import ConflictError, NotFoundError, StoreError
from surefoot.server.store import labelling as t
from surefoot.server.store.accounts import members
from surefoot.server.store.engine import Repository
from surefoot.server.store.labelling import Adjudication, Comment, CommentKind, Disagreement, KnownLabel
from surefoot.server.store.projects import locked_project, project_in, pseudonym_in
from surefoot.server.store.queue import check_step, item_in
from surefoot.server.store.schema import checked_text, inserted, matching, rows_of

Place = tuple[int, int]
"""(item, step)."""
_NO_VALUE = 9
"""Stands for a label without a value, which SQL would not count."""
_L, _R = t.labels.c, t.comments.c


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """Ratings as an array [raters, units]; a unit is a step of an item without known labels."""

    matrix: NDArray[np.float64]
    """NaN where a rater gave a unit no value."""
    raters: tuple[str, ...]
    """Pseudonyms, sorted."""
    items: NDArray[np.int64]
    """[units]"""


class Reviews(Repository):
    """Repository of disagreements and adjudications. Not for annotators."""

    def ratings(self, project_id: int) -> Ratings:
        """The ratings that count, by annotators who finished the item."""
        query = _finished(project_id, False, _L.item_id, _L.step, members.c.pseudonym, _L.value)
        rows = self._all(query.order_by(_L.item_id, _L.step))
        units = {unit: column for column, unit in enumerate(dict.fromkeys((row[0], row[1]) for row in rows))}
        raters = {name: row for row, name in enumerate(sorted({row[2] for row in rows}))}
        matrix = np.full((len(raters), len(units)), math.nan)
        for item_id, step, name, value in rows:
            matrix[raters[name], units[item_id, step]] = math.nan if value is None else value
        items = np.array([item_id for item_id, _ in units], dtype=np.int64)
        return Ratings(matrix=matrix, raters=tuple(raters), items=items)

    def known_labels(self, project_id: int) -> list[KnownLabel]:
        """Labels of known steps, of annotators who finished the item, in the order they were submitted."""
        query = _finished(project_id, True, _L.step, _L.value, members.c.pseudonym, t.items.c.known)
        return [
            KnownLabel(annotator=row.pseudonym, value=row.value, known=answer.value)
            for row in self._all(query.order_by(_L.id))
            for answer in row.known
            if answer.step == row.step
        ]

    def disagreements(
        self, project_id: int, *, item_ids: Collection[int] | None = None, decided: bool | None = False
    ) -> list[Disagreement]:
        """Steps that annotators who finished labelled differently: open ones by default, decided ones, or
        both (``None``).

        A step that only one of them labelled (the others stopped at an earlier error) does not count.
        """
        step_key = (_L.item_id, _L.step)
        values = func.count(func.coalesce(_L.value, _NO_VALUE).distinct())
        disputed = _finished(project_id, False, *step_key).group_by(*step_key).having(values > 1)
        if item_ids is not None:
            disputed = disputed.where(_L.item_id.in_(item_ids))
        query = _finished(project_id, False, *step_key, _L.trace_id, members.c.pseudonym, _L.value)
        query = query.where(tuple_(*step_key).in_(disputed)).order_by(*step_key, members.c.pseudonym)
        with self._connections.read() as connection:
            rows = connection.execute(query).all()
            settled = decisions(connection, project_id)
        disputes = [
            Disagreement(
                item_id=item_id,
                trace_id=trace_id,
                step=step,
                values=tuple((row.pseudonym, None if row.value is None else int(row.value)) for row in group),
                adjudication=settled.get((item_id, step)),
            )
            for (item_id, step, trace_id), group in groupby(rows, key=lambda row: tuple(row[:3]))
        ]
        return [step for step in disputes if decided in (None, step.adjudication is not None)]

    def adjudicate(
        self,
        project_id: int,
        item_id: int,
        user_id: int,
        step: int,
        value: Literal[-1, 0, 1] | None,
        *,
        note: str = "",
        after: int | None = None,
    ) -> Adjudication:
        """Decide a step; the latest decision counts, and all are kept.

        ``after`` is the id of the decision that the sender saw (0 for none). The caller checks whether the
        user may decide.

        Raises ``ConflictError`` if the step was decided since, ``StoreError`` for a step that the item lacks,
        or if there is neither a value nor a note.
        """
        checked_text("note", note)
        if value is None and not note.strip():
            raise StoreError("a decision without a value needs a 'note'")
        if value not in (None, -1, 0, 1):
            raise StoreError(f"'value' must be -1, 0, 1 or None, not {value}")
        a = t.adjudications.c
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            item = item_in(connection, project_id, item_id)
            check_step(connection, item, step)
            where = (a.item_id == item_id) & (a.step == step)
            last = connection.scalar(select(func.max(a.id)).where(where)) or 0
            if after is not None and after != last:
                raise ConflictError(f"step {step} was decided since (number {last}); reload it")
            target = {"project_id": project_id, "item_id": item_id, "trace_id": item.trace_id, "step": step}
            decision = {"value": value, "user_id": user_id, "note": note, "created": self._now}
            return inserted(connection, Adjudication, t.adjudications, **target, **decision)

    def undo(self, project_id: int, decision_id: int, user_id: int) -> None:
        """Take back one's own decision, so that the one before counts again, or the labels.

        Raises ``ConflictError`` unless it is the user's, and the latest of its step.
        """
        a = t.adjudications.c
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            latest = {decision.id: decision for decision in decisions(connection, project_id).values()}
            decision = latest.get(decision_id)
            if decision is None or decision.user_id != user_id:
                raise ConflictError(f"decision {decision_id} is not your latest of its step; reload the page")
            connection.execute(delete(t.adjudications).where(a.id == decision_id))

    def adjudications(self, project_id: int) -> list[Adjudication]:
        """The decisions that count, by item and step."""
        with self._connections.read() as connection:
            return [decision for _, decision in sorted(decisions(connection, project_id).items())]


def _finished(project_id: int, has_known: bool, *columns: Any) -> Select[Any]:
    """Columns of the labels that count, with their members and items, by annotators who finished these."""
    item, assignment = t.items.c, t.assignments.c
    finished = and_(assignment.item_id == _L.item_id, assignment.user_id == _L.user_id)
    return (
        select(*columns)
        .select_from(t.labels)
        .join(t.items, item.id == _L.item_id)
        .join(t.assignments, finished)
        .join(members, and_(members.c.user_id == _L.user_id, members.c.project_id == _L.project_id))
        .where(_L.project_id == project_id, _L.is_current)
        .where(item.has_known.is_(has_known), assignment.state == "done")
    )


def decisions(connection: Connection, project_id: int) -> dict[Place, Adjudication]:
    """The latest decision of each step. Raises ``NotFoundError`` for an unknown project."""
    project_in(connection, project_id)
    a = t.adjudications.c
    query = select(t.adjudications).where(a.project_id == project_id).order_by(a.id)
    return {(row.item_id, row.step): row for row in rows_of(connection, Adjudication, query)}


class Comments(Repository):
    """Repository of comments and flags. An annotator may see only their own."""

    def add(
        self,
        project_id: int,
        item_id: int,
        user_id: int,
        kind: CommentKind,
        text: str,
        *,
        step: int | None = None,
    ) -> Comment:
        """Append a comment or flag on an item or one of its steps.

        Raises ``ForbiddenError`` if the user is not a member, ``StoreError`` naming the field that is wrong.
        """
        if kind not in ("comment", "flag") or not text.strip():
            raise StoreError("a comment needs a 'kind' (comment or flag) and a 'text'")
        row = {"step": step, "user_id": user_id, "kind": kind, "text": checked_text("text", text)}
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            pseudonym_in(connection, project_id, user_id)
            item = item_in(connection, project_id, item_id)
            if step is not None:
                check_step(connection, item, step)
            target = {"project_id": project_id, "item_id": item_id, "created": self._now}
            return inserted(connection, Comment, t.comments, **target, **row)

    def list(
        self,
        project_id: int,
        *,
        item_id: int | None = None,
        user_id: int | None = None,
        kind: CommentKind | None = None,
        resolved: bool | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> list[Comment]:
        """Comments and flags in the order they were made, with an id above ``after``; at most ``limit``.

        For an annotator, pass their ``user_id``.
        """
        conditions = matching(t.comments, item_id=item_id, user_id=user_id, kind=kind)
        query = select(t.comments).where(_R.project_id == project_id, _R.id > after, *conditions)
        if resolved is not None:
            query = query.where(_R.resolved.is_not(None) if resolved else _R.resolved.is_(None))
        return self._rows(Comment, query.order_by(_R.id).limit(limit))

    def open_flags(self, project_id: int) -> int:
        """Number of unresolved flags. Comments are not counted: they do not require action."""
        unresolved = (_R.kind == "flag") & _R.resolved.is_(None)
        query = select(func.count()).where(_R.project_id == project_id, unresolved)
        return int(self._all(query)[0][0])

    def resolve(self, project_id: int, comment_id: int) -> None:
        """Mark a flag or comment as resolved; a second time changes nothing. Raises ``NotFoundError``."""
        where = (_R.project_id == project_id) & (_R.id == comment_id)
        at = func.coalesce(_R.resolved, literal(self._now, _R.resolved.type))
        if not self._change(update(t.comments).where(where).values(resolved=at)):
            raise NotFoundError(f"project {project_id} does not have the comment or flag {comment_id}")
