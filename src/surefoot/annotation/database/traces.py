"""Problems, traces and the scores that reward models gave their steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from surefoot.annotation.database import _tables as t
from surefoot.annotation.database._checks import checked_name, checked_text, like, payload_of
from surefoot.annotation.database._engine import Connections
from surefoot.annotation.database._records import Added, add_in_chunks, put_record, put_trace, record_in
from surefoot.annotation.database.projects import project_in
from surefoot.errors import StoreError
from surefoot.records import Problem, StepScores, Trace


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """A trace in a list: its record, and how many labels count on it."""

    trace: Trace
    problem: str
    """Text of its problem."""
    labels: int


class Traces:
    """Repository of the material: nothing here is changed once it is in, scores excepted."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def add_problems(self, project_id: int, problems: Iterable[Problem]) -> Added:
        """Add problems; one with a known id and other content is refused. Raises ``NotFoundError``."""
        return add_in_chunks(self._connections, project_id, problems, self._add_problem)

    def add_traces(self, project_id: int, traces: Iterable[Trace]) -> Added:
        """Add traces; refused are those of an unknown problem, and a known id with other content."""
        return add_in_chunks(self._connections, project_id, traces, self._add_trace)

    def add_scores(self, project_id: int, scores: Iterable[StepScores]) -> Added:
        """Add scores, the newer in place of the older of one scorer and trace.

        Refused are those of an unknown trace, and those whose number is not that of the trace's steps.
        """
        return add_in_chunks(self._connections, project_id, scores, self._add_scores)

    def problem(self, project_id: int, problem_id: str) -> Problem:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return record_in(connection, t.problems, Problem, project_id, problem_id)

    def problems(
        self, project_id: int, *, after: str = "", limit: int = 100, text: str | None = None
    ) -> list[Problem]:
        """Problems in the order of their ids, from the one after ``after``; ``text`` must occur in them."""
        query = (
            select(t.problems.c.payload)
            .where(t.problems.c.project_id == project_id, t.problems.c.id > after)
            .order_by(t.problems.c.id)
            .limit(limit)
        )
        if text is not None:
            query = query.where(_holds(text))
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return [Problem.model_validate_json(row) for row in connection.scalars(query)]

    def trace(self, project_id: int, trace_id: str) -> Trace:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return record_in(connection, t.traces, Trace, project_id, trace_id)

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
        """Traces in the order of their ids, from the one after ``after``.

        ``min_score`` and ``max_score`` bound the lowest step score of ``scorer`` and need it; ``text`` must
        occur in the problem. Raises ``StoreError`` for a bound without a scorer.
        """
        wanted = [t.traces.c.project_id == project_id, t.traces.c.id > after]
        for column, value in ((t.traces.c.problem_id, problem_id), (t.traces.c.policy, policy)):
            if value is not None:
                wanted.append(column == value)
        if outcome is not None:
            wanted.append(t.traces.c.outcome.is_(outcome))
        if text is not None:
            wanted.append(_holds(text))
        if scorer is not None:
            wanted.append(_scored(scorer, min_score, max_score))
        elif min_score is not None or max_score is not None:
            raise StoreError("'min_score' and 'max_score' need a 'scorer'")
        undone = select(t.submissions.c.undoes).where(t.submissions.c.undoes.is_not(None))
        counted = (
            select(func.count())
            .where(t.labels.c.project_id == project_id, t.labels.c.trace_id == t.traces.c.id)
            .where(t.labels.c.submission_id.is_(None) | t.labels.c.submission_id.not_in(undone))
            .scalar_subquery()
        )
        query = (
            select(t.traces.c.payload, t.problems.c.payload.label("problem"), counted.label("labels"))
            .join_from(
                t.traces,
                t.problems,
                (t.problems.c.project_id == t.traces.c.project_id)
                & (t.problems.c.id == t.traces.c.problem_id),
            )
            .where(*wanted)
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

    def scores(self, project_id: int, trace_id: str) -> list[StepScores]:
        """What each scorer said of the trace, by scorer. Raises ``NotFoundError``."""
        where = (t.step_scores.c.project_id == project_id) & (t.step_scores.c.trace_id == trace_id)
        query = select(t.step_scores.c.payload).where(where).order_by(t.step_scores.c.scorer)
        with self._connections.read() as connection:
            record_in(connection, t.traces, Trace, project_id, trace_id)
            return [StepScores.model_validate_json(row) for row in connection.scalars(query)]

    def scorers(self, project_id: int) -> list[str]:
        """Names of all scorers of the project."""
        column = t.step_scores.c.scorer
        query = select(column).where(t.step_scores.c.project_id == project_id).distinct().order_by(column)
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return list(connection.scalars(query))

    def _add_problem(self, connection: Connection, project_id: int, problem: Problem) -> Added:
        searched = problem.text.replace("\x00", "")
        columns = {"id": checked_name("id", problem.id), "text": checked_text("text", searched)}
        at = self._connections.clock()
        return put_record(connection, t.problems, project_id, problem, columns, at)

    def _add_trace(self, connection: Connection, project_id: int, trace: Trace) -> Added:
        return put_trace(connection, project_id, trace, self._connections.clock())

    def _add_scores(self, connection: Connection, project_id: int, scores: StepScores) -> Added:
        checked_name("trace_id", scores.trace_id)
        trace = record_in(connection, t.traces, Trace, project_id, scores.trace_id)
        if len(trace.steps) != len(scores.scores):
            raise StoreError(f"{len(scores.scores)} scores for a trace of {len(trace.steps)} steps")
        key = {"trace_id": trace.id, "scorer": checked_name("scorer", scores.scorer)}
        payload = payload_of(scores)
        where = [t.step_scores.c.project_id == project_id]
        where += [t.step_scores.c[name] == value for name, value in key.items()]
        before = connection.scalar(select(t.step_scores.c.payload).where(*where))
        if before == payload:
            return Added(same=1)
        connection.execute(delete(t.step_scores).where(*where))
        known = [score for score in scores.scores if score is not None and math.isfinite(score)]
        row = {"lowest": min(known, default=None), "payload": payload, "created": self._connections.clock()}
        connection.execute(insert(t.step_scores).values(project_id=project_id, **key, **row))
        return Added(new=1) if before is None else Added(replaced=1)


def _holds(text: str) -> ColumnElement[bool]:
    return t.problems.c.text.ilike(like(checked_text("text", text)), escape="\\")


def _scored(scorer: str, low: float | None, high: float | None) -> ColumnElement[bool]:
    s = t.step_scores
    query = select(s.c.trace_id).where(s.c.project_id == t.traces.c.project_id, s.c.scorer == scorer)
    if low is not None:
        query = query.where(s.c.lowest >= low)
    if high is not None:
        query = query.where(s.c.lowest <= high)
    return t.traces.c.id.in_(query)
