"""Comparing annotators' labels: ratings for agreement, disagreements, and the decisions that settle them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Select, and_, func, insert, select, tuple_, update

from surefoot.errors import ConflictError, StoreError
from surefoot.records import Evidence, StepLabel
from surefoot.server.store.accounts import locked_project, members, project_in
from surefoot.server.store.engine import Repository
from surefoot.server.store.labels import HUMAN, IS_DECISION, columns_of_label, labels_in, note_errors
from surefoot.server.store.queue import StoredLabel, assignments, check_step, items, labels
from surefoot.server.store.schema import checked_text

ADJUDICATED: Final = f"{HUMAN}:adjudicated"
"""``StepLabel.source`` of a decision."""
_NO_VALUE: Final = 9
"""Stands for a label without a value, which SQL would not count."""
_L = labels.c


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """Ratings as an array [raters, units]; a unit is a step of an item without known labels."""

    matrix: NDArray[np.float64]
    """NaN where a rater gave a unit no value."""
    raters: tuple[str, ...]
    """Pseudonyms, sorted."""
    items: NDArray[np.int64]
    """[units]"""


@dataclass(frozen=True, kw_only=True)
class KnownLabel:
    """An annotator's label of a step whose label is known, and that label."""

    annotator: str
    value: float | None
    known: int


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A step to which annotators who finished gave different labels."""

    item_id: int
    trace_id: str
    step: int
    values: tuple[tuple[str, int | None], ...]
    """(pseudonym, value), by pseudonym."""
    decision: StoredLabel | None


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
        rated = np.array([item_id for item_id, _ in units], dtype=np.int64)
        return Ratings(matrix=matrix, raters=tuple(raters), items=rated)

    def known_labels(self, project_id: int) -> list[KnownLabel]:
        """Labels of known steps, of annotators who finished the item, in the order they were submitted."""
        query = _finished(project_id, True, _L.step, _L.value, members.c.pseudonym, items.c.known)
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
            project_in(connection, project_id)
            found = labels_in(connection, project_id, IS_DECISION)
        settled = {(label.record.trace_id, label.record.step): label for label in found}
        disputes = [
            Disagreement(
                item_id=item_id,
                trace_id=trace_id,
                step=step,
                values=tuple((row.pseudonym, None if row.value is None else int(row.value)) for row in group),
                decision=settled.get((trace_id, step)),
            )
            for (item_id, step, trace_id), group in groupby(rows, key=lambda row: tuple(row[:3]))
        ]
        return [step for step in disputes if decided in (None, step.decision is not None)]

    def adjudicate(
        self,
        project_id: int,
        trace_id: str,
        user_id: int,
        step: int,
        value: Literal[-1, 0, 1] | None,
        *,
        note: str = "",
        after: int | None = None,
    ) -> StoredLabel:
        """Decide a step of a trace; the latest decision counts, and all are kept.

        ``after`` is the id of the decision that the sender saw (0 for none). The caller checks whether the
        user may decide.

        Raises ``ConflictError`` if the step was decided since, ``StoreError`` for a step that the trace
        lacks, or if there is neither a value nor a note.
        """
        checked_text("note", note)
        if value is None and not note.strip():
            raise StoreError("a decision without a value needs a 'note'")
        if value not in (None, -1, 0, 1):
            raise StoreError(f"'value' must be -1, 0, 1 or None, not {value}")
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            check_step(connection, project_id, trace_id, step)
            of_step = and_(_L.project_id == project_id, _L.trace_id == trace_id, _L.step == step)
            last = connection.scalar(select(func.max(_L.id)).where(of_step, IS_DECISION)) or 0
            if after is not None and after != last:
                raise ConflictError(f"step {step} was decided since (number {last}); reload it")
            of_member = (members.c.project_id == project_id) & (members.c.user_id == user_id)
            record = StepLabel(
                trace_id=trace_id,
                step=step,
                kind="correctness",
                value=value,
                reason=None if value is not None else note,
                source=ADJUDICATED,
                evidence=Evidence(
                    rater=connection.scalar(select(members.c.pseudonym).where(of_member)),
                    message=note or None,
                ),
                created=self._now,
            )
            row = {"project_id": project_id, "user_id": user_id, "created": record.created}
            row |= columns_of_label(record)
            number = connection.scalar(insert(labels).values(row).returning(_L.id))
            note_errors(connection, project_id, [trace_id])
            return labels_in(connection, project_id, _L.id == number)[0]

    def undo(self, project_id: int, decision_id: int, user_id: int) -> None:
        """Take back one's own decision, so that the one before counts again, or the labels.

        Raises ``ConflictError`` unless it is the user's, and the latest of its step.
        """
        latest = select(func.max(_L.id)).where(_L.project_id == project_id, IS_DECISION)
        latest = latest.group_by(_L.trace_id, _L.step)
        own = and_(_L.id == decision_id, _L.user_id == user_id, _L.id.in_(latest))
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            undone = update(labels).where(own).values(is_current=False).returning(_L.trace_id)
            trace_id = connection.scalar(undone)
            if trace_id is None:
                raise ConflictError(f"decision {decision_id} is not your latest of its step; reload the page")
            note_errors(connection, project_id, [trace_id])


def _finished(project_id: int, has_known: bool, *columns: Any) -> Select[Any]:
    """Columns of the labels that count, with their members and items, by annotators who finished these."""
    item, assignment = items.c, assignments.c
    finished = and_(assignment.item_id == _L.item_id, assignment.user_id == _L.user_id)
    return (
        select(*columns)
        .select_from(labels)
        .join(items, item.id == _L.item_id)
        .join(assignments, finished)
        .join(members, and_(members.c.user_id == _L.user_id, members.c.project_id == _L.project_id))
        .where(_L.project_id == project_id, _L.is_current)
        .where(item.has_known.is_(has_known), assignment.state == "done")
    )
