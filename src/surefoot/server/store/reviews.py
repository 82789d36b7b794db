"""Comparing annotators' labels: ratings for agreement, disagreements, decisions; comments and flags."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, and_, func, select, tuple_, update

from surefoot.errors import ConflictError, NotFoundError, StoreError
from surefoot.server.store import labelling as t
from surefoot.server.store.accounts import members
from surefoot.server.store.engine import Repository
from surefoot.server.store.items import check_step, item_in
from surefoot.server.store.labelling import Adjudication, Comment, CommentKind, Disagreement, MatrixCell
from surefoot.server.store.projects import locked_project, project_in, pseudonym_in
from surefoot.server.store.schema import as_data, checked_text, inserted, matching, rows_of

Place = tuple[int, int]
"""(item, step)."""

_ROWS_AT_ONCE: Final = 20_000
_CANNOT_TELL: Final = 9
"""Stands for a label without a value where values are compared: it differs from all of them."""


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """Ratings of normal items as an array [raters, units]; a unit is a step of a trace in an item."""

    matrix: NDArray[np.float64]
    """NaN where a rater gave a unit no value."""
    raters: tuple[str, ...]
    """Pseudonyms, sorted."""
    traces: NDArray[np.int64]
    """[units]: a number for each trace, the same for all its steps."""
    steps: NDArray[np.int64]
    """[units]"""


class Reviews(Repository):
    """Repository of disagreements and adjudications. Not for annotators."""

    def ratings(self, project_id: int) -> Ratings:
        """The ratings that count, of items without known answers, as an array; some 150 bytes a rating."""
        label = t.labels.c
        columns = (label.item_id, label.trace_id, label.step, members.c.pseudonym, label.value)
        with self._connections.read() as connection:
            project_in(connection, project_id)
            query = _ratings(project_id).where(t.items.c.role == "normal")
            # in one query: paging would repeat the joins for each page
            rows = connection.execute(
                query.with_only_columns(*columns), execution_options={"yield_per": _ROWS_AT_ONCE}
            )
            items, traces, steps, raters = (array("q") for _ in range(4))
            values = array("d")
            trace_numbers: dict[str, int] = {}
            names: dict[str, int] = {}
            for row in rows:
                items.append(row.item_id)
                traces.append(trace_numbers.setdefault(row.trace_id, len(trace_numbers)))
                steps.append(row.step)
                raters.append(names.setdefault(row.pseudonym, len(names)))
                values.append(math.nan if row.value is None else row.value)
        positions = np.array([items, traces, steps], dtype=np.int64)
        units, unit_of = np.unique(positions, axis=1, return_inverse=True)
        order = sorted(names)
        row_of = np.array([order.index(name) for name in names], dtype=np.int64)
        matrix = np.full((len(order), units.shape[1]), math.nan)
        matrix[row_of[np.array(raters)], unit_of.reshape(-1)] = values
        return Ratings(matrix=matrix, raters=tuple(order), traces=units[1], steps=units[2])

    def cells(self, project_id: int, *, known: bool | None = None) -> list[MatrixCell]:
        """The ratings that count, in the order they were submitted.

        ``known``: only ratings of items with known answers (true), or of other items (false).
        """
        query = _ratings(project_id)
        if known is not None:
            normal = t.items.c.role == "normal"
            query = query.where(~normal if known else normal)
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return _cells(connection, query)

    def disagreements(
        self, project_id: int, *, item_id: int | None = None, adjudicated: bool = False
    ) -> list[Disagreement]:
        """Steps of normal items that annotators who finished labelled differently; open ones by default.

        A step that only one of them labelled (the others stopped at an earlier error) does not count.
        """
        with self._connections.read() as connection:
            project_in(connection, project_id)
            of_item = () if item_id is None else (t.labels.c.item_id == item_id,)
            rating = _ratings(project_id).where(t.items.c.role == "normal", *of_item)
            label = t.labels.c
            value = func.coalesce(label.value, _CANNOT_TELL)
            position = (label.item_id, label.step)
            disputed = rating.with_only_columns(*position).group_by(*position)
            disputed = disputed.having(func.min(value) != func.max(value))
            cells = _cells(connection, rating.where(tuple_(*position).in_(disputed)))
            decided = decisions(connection, project_id)
        by_position: dict[Place, list[MatrixCell]] = {}
        for cell in cells:
            by_position.setdefault((cell.item_id, cell.step), []).append(cell)
        return [
            Disagreement(
                item_id=position[0],
                trace_id=group[0].trace_id,
                step=position[1],
                values=tuple(sorted((cell.annotator, cell.value) for cell in group)),
                adjudication=decided.get(position),
            )
            for position, group in sorted(by_position.items())
            if adjudicated or position not in decided
        ]

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
            return inserted(
                connection,
                Adjudication,
                t.adjudications,
                project_id=project_id,
                item_id=item_id,
                trace_id=item.trace_id,
                step=step,
                value=value,
                user_id=user_id,
                note=note,
                created=self._connections.clock(),
            )

    def adjudications(self, project_id: int) -> list[Adjudication]:
        """The decisions that count, by item and step."""
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return [decision for _, decision in sorted(decisions(connection, project_id).items())]


def _ratings(project_id: int) -> Select[Any]:
    """Query for the labels that count of annotators who have finished the item."""
    label, member, assignment = t.labels.c, members.c, t.assignments.c
    same_user = and_(member.user_id == label.user_id, member.project_id == label.project_id)
    same_item = and_(assignment.item_id == label.item_id, assignment.user_id == label.user_id)
    return (
        select(
            *(label.item_id, label.trace_id, label.step, label.value),
            *(member.pseudonym.label("annotator"), t.items.c.role, t.items.c.known),
        )
        .join_from(t.labels, t.items, t.items.c.id == label.item_id)
        .join(members, same_user)
        .join(t.assignments, same_item)
        .where(label.project_id == project_id, label.is_current, assignment.state == "done")
    )


def _cells(connection: Connection, query: Select[Any]) -> list[MatrixCell]:
    """The labels of ``_ratings`` in the order they were submitted."""
    cells = []
    for row in connection.execute(query.order_by(t.labels.c.id)).mappings():
        value = None if row["value"] is None else int(row["value"])
        answer = next((answer.value for answer in row["known"] if answer.step == row["step"]), None)
        cells.append(as_data(MatrixCell, row, value=value, known=answer))
    return cells


def decisions(connection: Connection, project_id: int) -> dict[Place, Adjudication]:
    """The latest decision of each step."""
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
        checked_text("text", text)
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            pseudonym_in(connection, project_id, user_id)
            item = item_in(connection, project_id, item_id)
            if step is not None:
                check_step(connection, item, step)
            return inserted(
                connection,
                Comment,
                t.comments,
                project_id=project_id,
                item_id=item_id,
                step=step,
                user_id=user_id,
                kind=kind,
                text=text,
                created=self._connections.clock(),
            )

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
        r = t.comments.c
        conditions = matching(t.comments, item_id=item_id, user_id=user_id, kind=kind)
        query = select(t.comments).where(r.project_id == project_id, r.id > after, *conditions)
        if resolved is not None:
            query = query.where(r.resolved.is_not(None) if resolved else r.resolved.is_(None))
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return rows_of(connection, Comment, query.order_by(r.id).limit(limit))

    def open_flags(self, project_id: int) -> int:
        """Number of unresolved flags. Comments are not counted: they do not require action."""
        r = t.comments.c
        query = select(func.count()).where(r.project_id == project_id, r.kind == "flag", r.resolved.is_(None))
        with self._connections.read() as connection:
            return connection.scalar(query) or 0

    def resolve(self, project_id: int, comment_id: int) -> None:
        """Mark a flag or comment as resolved; a second time changes nothing. Raises ``NotFoundError``."""
        r = t.comments.c
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            where = (r.project_id == project_id) & (r.id == comment_id)
            if connection.scalar(select(r.id).where(where)) is None:
                raise NotFoundError(f"project {project_id} does not have the comment or flag {comment_id}")
            at = self._connections.clock()
            connection.execute(update(t.comments).where(where, r.resolved.is_(None)).values(resolved=at))
