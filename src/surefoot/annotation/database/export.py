"""Out of the store: the package's own records, for files and for every other part of the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from sqlalchemy import Table, select, tuple_

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._entries import counting, labels_in
from surefoot.annotation.database._submit import HUMAN
from surefoot.annotation.database.annotation import Adjudication, StoredLabel
from surefoot.annotation.database.projects import project_in
from surefoot.annotation.database.reviews import decisions
from surefoot.records import Evidence, Problem, Record, StepLabel, StepScores, Trace

R = TypeVar("R", bound=Record)

ADJUDICATED = f"{HUMAN}:adjudicated"
"""``StepLabel.source`` of a decision."""

_ROWS = 500


class Export:
    """Everything of one project as records. Pages hold back what annotators must not see; this does not."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def problems(self, project_id: int) -> Iterator[Problem]:
        """All problems, by id. Raises ``NotFoundError``, like the others."""
        return self._all(project_id, t.problems, Problem)

    def traces(self, project_id: int) -> Iterator[Trace]:
        """All traces, those of steps written by hand too, by id."""
        return self._all(project_id, t.traces, Trace)

    def scores(self, project_id: int) -> Iterator[StepScores]:
        """All step scores, by trace and scorer."""
        return self._all(project_id, t.step_scores, StepScores)

    def labels(
        self, project_id: int, *, controls: bool = False, imported: bool = True, settled: bool = False
    ) -> list[StepLabel]:
        """Labels that count, by trace and step: of an annotator's labels of a step the latest.

        ``evidence.rater`` is the pseudonym and ``evidence.message`` the comment. ``controls``: items with
        known answers, too; ``imported``: labels of other sources, too. ``settled``: where a step was
        decided, the decision (source ``human:adjudicated``) in place of the annotators' labels.
        """
        with self._connections.read() as connection:
            project_in(connection, project_id)
            stored = counting(labels_in(connection, project_id))
            decided = decisions(connection, project_id) if settled else {}
            names = select(t.members.c.user_id, t.members.c.pseudonym)
            rows = connection.execute(names.where(t.members.c.project_id == project_id))
            people = {row.user_id: row.pseudonym for row in rows}
        made = [decision_label(decision, people.get(decision.user_id)) for decision in decided.values()]
        for label in stored:
            if label.item_id is None:
                keep = imported
            else:
                place = (label.item_id, label.record.trace_id, label.record.step)
                keep = (controls or label.role == "normal") and place not in decided
            if keep:
                made.append(label.record)
        return sorted(made, key=lambda record: (record.trace_id, record.step))

    def stored(self, project_id: int) -> list[StoredLabel]:
        """All labels ever sent, in order, retracted ones too, with time taken and queue policy."""
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return labels_in(connection, project_id, retracted=True)

    def _all(self, project_id: int, table: Table, kind: type[R]) -> Iterator[R]:
        with self._connections.read() as connection:
            project_in(connection, project_id)
        return self._pages(project_id, table, kind)

    def _pages(self, project_id: int, table: Table, kind: type[R]) -> Iterator[R]:
        # Page by page: a slow reader holds no transaction open.
        own = [column for column in table.primary_key.columns if column.name != "project_id"]
        query = select(table.c.payload, *own).where(table.c.project_id == project_id)
        query = query.order_by(*own).limit(_ROWS)
        last: tuple[object, ...] | None = None
        while True:
            page = query if last is None else query.where(tuple_(*own) > last)
            with self._connections.read() as connection:
                rows = connection.execute(page).all()
            for row in rows:
                yield kind.model_validate_json(row.payload)
            if len(rows) < _ROWS:
                return
            last = tuple(rows[-1][1:])


def decision_label(decision: Adjudication, pseudonym: str | None) -> StepLabel:
    """A decision as a label; ``rater`` is who decided, if they are a member of the project."""
    return StepLabel(
        trace_id=decision.trace_id,
        step=decision.step,
        kind="correctness",
        value=decision.value,
        reason=None if decision.value is not None else decision.note,
        source=ADJUDICATED,
        evidence=Evidence(rater=pseudonym, message=decision.note or None),
        created=decision.created,
    )
