"""Problems, traces and the scores that reward models gave their steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select

from surefoot.errors import NotFoundError, StoreError
from surefoot.records import Problem, Record, StepScores, Trace
from surefoot.server.store import labelling as t
from surefoot.server.store.engine import Connections, Repository
from surefoot.server.store.projects import locked_project, project_in
from surefoot.server.store.schema import (
    checked_name,
    checked_text,
    like,
    matching,
    payload_of,
)

R = TypeVar("R", bound=Record)

CHUNK: Final = 200
"""Records per transaction: small enough that others get their turn."""

_REASONS_KEPT: Final = 20


@dataclass(frozen=True, kw_only=True)
class Added:
    """What became of records: ``new`` + ``same`` + ``replaced`` + ``refused`` is how many there were."""

    new: int = 0
    same: int = 0
    """Already there, and equal."""
    replaced: int = 0
    """Scores that took the place of older ones of the same scorer."""
    refused: int = 0
    reasons: tuple[tuple[str, str], ...] = ()
    """(id, reason) of the first 20 that were refused."""

    def __add__(self, other: Added) -> Added:
        return Added(
            new=self.new + other.new,
            same=self.same + other.same,
            replaced=self.replaced + other.replaced,
            refused=self.refused + other.refused,
            reasons=(self.reasons + other.reasons)[:_REASONS_KEPT],
        )


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """A trace in a list: its record, and how many labels count on it."""

    trace: Trace
    problem: str
    """Text of its problem."""
    labels: int


class Traces(Repository):
    """Repository of problems, traces and scores. Only scores ever change."""

    def add_problems(self, project_id: int, problems: Iterable[Problem]) -> Added:
        """Add problems; one whose id exists with other content is refused. Raises ``NotFoundError``."""
        return self._add_each(project_id, problems, self._add_problem)

    def add_traces(self, project_id: int, traces: Iterable[Trace]) -> Added:
        """Add traces; a trace is refused if its problem is unknown or its id exists with other content."""
        return self._add_each(project_id, traces, self._add_trace)

    def add_scores(self, project_id: int, scores: Iterable[StepScores]) -> Added:
        """Add scores; newer ones replace older ones of the same scorer and trace.

        Those of an unknown trace, or of another number of steps than the trace has, are refused.
        """
        return self._add_each(project_id, scores, self._add_scores)

    def problem(self, project_id: int, problem_id: str) -> Problem:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return record_in(connection, t.problems, Problem, project_id, problem_id)

    def trace(self, project_id: int, trace_id: str) -> Trace:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return record_in(connection, t.traces, Trace, project_id, trace_id)

    def count(self, project_id: int) -> int:
        """Number of traces of the project."""
        query = select(func.count()).select_from(t.traces).where(t.traces.c.project_id == project_id)
        with self._connections.read() as connection:
            return connection.scalar(query) or 0

    def find(
        self,
        project_id: int,
        *,
        problem_id: str | None = None,
        policy: str | None = None,
        outcome: bool | None = None,
        scorer: str | None = None,
        min_score: float | None = None,
        max_score: float | None = None,
        text: str | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[TraceRow]:
        """Traces in order of id, starting after ``after``.

        ``min_score`` and ``max_score`` bound the lowest step score of ``scorer`` and need it; ``text`` must
        occur in the problem. Raises ``StoreError`` for a bound without a scorer.
        """
        conditions = [t.traces.c.project_id == project_id, t.traces.c.id > after]
        conditions += matching(t.traces, problem_id=problem_id, policy=policy, outcome=outcome)
        if text is not None:
            conditions.append(_contains(text))
        if scorer is not None:
            conditions.append(_scored(project_id, scorer, min_score, max_score))
        elif min_score is not None or max_score is not None:
            raise StoreError("'min_score' and 'max_score' need a 'scorer'")
        label_count = (
            select(func.count())
            .where(t.labels.c.project_id == project_id, t.labels.c.trace_id == t.traces.c.id)
            .where(t.labels.c.is_current)
            .scalar_subquery()
        )
        query = (
            select(t.traces.c.payload, t.problems.c.payload.label("problem"), label_count.label("labels"))
            .join_from(t.traces, t.problems)
            .where(*conditions)
            .order_by(t.traces.c.id)
            .limit(limit)
        )
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return [
                TraceRow(
                    trace=Trace.model_validate_json(row.payload),
                    problem=Problem.model_validate_json(row.problem).text,
                    labels=row.labels,
                )
                for row in connection.execute(query)
            ]

    def problems_of(self, project_id: int, ids: Collection[str]) -> dict[str, Problem]:
        """Problems by id, without those that the project lacks."""
        with self._connections.read() as connection:
            return records_in(connection, t.problems, Problem, project_id, ids)

    def traces_of(self, project_id: int, ids: Collection[str]) -> dict[str, Trace]:
        """Traces by id, without those that the project lacks."""
        with self._connections.read() as connection:
            return records_in(connection, t.traces, Trace, project_id, ids)

    def outcomes_of(self, project_id: int, ids: Collection[str]) -> dict[str, bool | None]:
        """Whether the final answers of traces are right, by id; ``None`` = not judged."""
        trace = t.traces.c
        where = (trace.project_id == project_id) & trace.id.in_(ids)
        with self._connections.read() as connection:
            rows = connection.execute(select(trace.id, trace.outcome).where(where))
            return {row.id: row.outcome for row in rows}

    def scores_of(
        self, project_id: int, ids: Collection[str], *, scorer: str | None = None
    ) -> dict[str, list[StepScores]]:
        """Scores by trace, each by name of the scorer; of one ``scorer`` on request."""
        s = t.step_scores.c
        scores: dict[str, list[StepScores]] = {trace_id: [] for trace_id in ids}
        query = select(s.payload).where(s.project_id == project_id, s.trace_id.in_(ids))
        query = query.where(*matching(t.step_scores, scorer=scorer)).order_by(s.scorer)
        with self._connections.read() as connection:
            for payload in connection.scalars(query):
                record = StepScores.model_validate_json(payload)
                scores[record.trace_id].append(record)
        return scores

    def scores(self, project_id: int, trace_id: str) -> list[StepScores]:
        """The scores of the trace, by name of the scorer. Raises ``NotFoundError``."""
        self.trace(project_id, trace_id)
        return self.scores_of(project_id, [trace_id])[trace_id]

    def scorers(self, project_id: int) -> list[str]:
        """Names of all scorers of the project."""
        s = t.step_scores.c
        # from name to name in the index: DISTINCT would read every score
        lowest = select(func.min(s.scorer).label("name")).where(s.project_id == project_id)
        names = lowest.cte("names", recursive=True)
        following = lowest.where(s.scorer > names.c.name).scalar_subquery()
        names = names.union_all(select(following).where(names.c.name.is_not(None)))
        query = select(names.c.name).where(names.c.name.is_not(None)).order_by(names.c.name)
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return list(connection.scalars(query))

    def _add_problem(self, connection: Connection, project_id: int, problem: Problem) -> Added:
        searchable = checked_text("text", problem.text.replace("\x00", ""))
        return self._put(connection, t.problems, project_id, problem, text=searchable)

    def _add_trace(self, connection: Connection, project_id: int, trace: Trace) -> Added:
        record_in(connection, t.problems, Problem, project_id, checked_name("problem_id", trace.problem_id))
        return self._put(
            connection,
            t.traces,
            project_id,
            trace,
            problem_id=trace.problem_id,
            policy=None if trace.policy is None else checked_text("policy", trace.policy),
            outcome=trace.outcome,
            steps=len(trace.steps),
        )

    def _add_scores(self, connection: Connection, project_id: int, scores: StepScores) -> Added:
        checked_name("trace_id", scores.trace_id)
        trace = record_in(connection, t.traces, Trace, project_id, scores.trace_id)
        if len(trace.steps) != len(scores.scores):
            raise StoreError(f"{len(scores.scores)} scores for a trace of {len(trace.steps)} steps")
        key = {
            "project_id": project_id,
            "trace_id": trace.id,
            "scorer": checked_name("scorer", scores.scorer),
        }
        payload, where = payload_of(scores), matching(t.step_scores, **key)
        stored = connection.scalar(select(t.step_scores.c.payload).where(*where))
        if stored == payload:
            return Added(same=1)
        connection.execute(delete(t.step_scores).where(*where))
        finite = [score for score in scores.scores if score is not None and math.isfinite(score)]
        row = {"lowest": min(finite, default=None), "payload": payload, "created": self._connections.clock()}
        connection.execute(insert(t.step_scores).values(**key, **row))
        return Added(new=1) if stored is None else Added(replaced=1)

    def _put(
        self,
        connection: Connection,
        table: Table,
        project_id: int,
        record: Problem | Trace,
        **columns: Any,
    ) -> Added:
        """Add a row with an id and a payload, unless it exists. Raises ``StoreError`` if it differs."""
        key = {"project_id": project_id, "id": checked_name("id", record.id)}
        payload = payload_of(record)
        stored = connection.scalar(select(table.c.payload).where(*matching(table, **key)))
        if stored == payload:
            return Added(same=1)
        if stored is not None:
            raise StoreError("the project has a record with this id and other content; use another id")
        created = self._connections.clock()
        connection.execute(insert(table).values(**key, payload=payload, created=created, **columns))
        return Added(new=1)

    def _add_each(
        self, project_id: int, records: Iterable[R], add: Callable[[Connection, int, R], Added]
    ) -> Added:
        """Pass each record to ``add``, which may refuse it with a ``StoreError`` before it writes."""

        def add_part(connection: Connection, project_id: int, part: Sequence[R]) -> Added:
            added = Added()
            for record in part:
                try:
                    added += add(connection, project_id, record)
                except StoreError as error:
                    added += refused(record, error)
            return added

        return add_chunks(self._connections, project_id, records, add_part)


def _contains(text: str) -> ColumnElement[bool]:
    return t.problems.c.text.ilike(like(checked_text("text", text)), escape="\\")


def _scored(project_id: int, scorer: str, low: float | None, high: float | None) -> ColumnElement[bool]:
    s = t.step_scores
    # the project by its number: a reference to the outer row would run the query again for every trace
    query = select(s.c.trace_id).where(s.c.project_id == project_id, s.c.scorer == scorer)
    if low is not None:
        query = query.where(s.c.lowest >= low)
    if high is not None:
        query = query.where(s.c.lowest <= high)
    return t.traces.c.id.in_(query)


def add_chunks(
    connections: Connections,
    project_id: int,
    records: Iterable[R],
    add: Callable[[Connection, int, Sequence[R]], Added],
) -> Added:
    """Pass ``CHUNK`` records at a time to ``add``, each time in a transaction under the project's lock.

    Raises ``NotFoundError``.
    """
    total, remaining = Added(), iter(records)
    with connections.read() as connection:
        project_in(connection, project_id)
    while chunk := list(islice(remaining, CHUNK)):
        with connections.write() as connection:
            locked_project(connection, project_id)
            total += add(connection, project_id, chunk)
    return total


def record_in(connection: Connection, table: Table, kind: type[R], project_id: int, record_id: str) -> R:
    """The record of a ``payload`` column, in the caller's transaction. Raises ``NotFoundError``."""
    query = select(table.c.payload).where(table.c.project_id == project_id, table.c.id == record_id)
    payload = connection.scalar(query)
    if payload is None:
        raise NotFoundError(f"project {project_id} has no {kind.__name__.lower()} '{record_id}'")
    return kind.model_validate_json(payload)


def records_in(
    connection: Connection, table: Table, kind: type[R], project_id: int, ids: Collection[str]
) -> dict[str, R]:
    """Records of a ``payload`` column by id, without those that the project lacks."""
    where = (table.c.project_id == project_id) & table.c.id.in_(ids)
    records = connection.execute(select(table.c.id, table.c.payload).where(where))
    return {row.id: kind.model_validate_json(row.payload) for row in records}


def refused(record: Record, error: StoreError) -> Added:
    """One record that was refused, and why."""
    name = getattr(record, "id", None) or getattr(record, "trace_id", "")
    return Added(refused=1, reasons=((str(name), str(error)),))
