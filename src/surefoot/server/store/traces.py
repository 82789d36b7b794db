"""Problems, traces and the scores that reward models gave their steps."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from textwrap import shorten
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import sqlalchemy as sa

from surefoot.errors import NotFoundError, StoreError
from surefoot.images import checked
from surefoot.records import Problem, Record, StepScores, Trace
from surefoot.segment import trace_blocks
from surefoot.server.store.accounts import locked_project, project_in
from surefoot.server.store.engine import Connections, Repository, changed_by, insert_missing
from surefoot.server.store.schema import (
    BIG,
    METADATA,
    Count,
    Mark,
    Moment,
    checked_name,
    checked_text,
    columns_of,
    matching,
    of_project,
    payload_of,
    rows_of,
    storable,
    table,
)

R = TypeVar("R", bound=Record)

problems = sa.Table(
    "problems",
    METADATA,
    sa.Column("project_id", BIG, sa.ForeignKey("projects.id"), primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("created", Moment, nullable=False),
)

RunKind = Literal["solution", "agent", "program"]
"""A text, a run of messages, or a text that is a program with tests."""


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """A trace in a list; ``Traces.trace`` returns all of it."""

    project_id: Annotated[int, Mark.KEY, sa.ForeignKey("projects.id")]
    id: Annotated[str, Mark.KEY]
    problem_id: str
    title: str
    """First line of the user's message or of the problem."""
    kind: RunKind
    policy: str | None
    outcome: bool | None
    steps: Count
    first_error: Count | None
    """The first wrong step, from 0, of its verdict."""
    tokens: Count
    """Tokens that the policy read and wrote; 0 = unknown."""
    outcome_word: str
    """What its data set calls the outcome, such as *safe*; else empty."""
    created: datetime


traces = table(
    "traces",
    TraceRow,
    sa.Column("payload", sa.Text, nullable=False),
    of_project("problem_id", "problems"),
    sa.Index(None, "project_id", "problem_id"),
    # lists are counted and sorted without reading payloads
    sa.Index(None, "project_id", "kind", "outcome", "policy", "steps", "first_error", "created", "id"),
)

# The words of traces, for full-text search; ``create_search`` makes it, as each database has its own kind.
trace_search = sa.table("trace_search", sa.column("project_id"), sa.column("trace_id"), sa.column("words"))

step_scores = sa.Table(
    "step_scores",
    METADATA,
    sa.Column("project_id", BIG, primary_key=True),
    sa.Column("trace_id", sa.Text, primary_key=True),
    sa.Column("scorer", sa.Text, primary_key=True),
    sa.Column("lowest", sa.Float),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("created", Moment, nullable=False),
    of_project("trace_id", "traces"),
    sa.Index(None, "project_id", "scorer", "lowest", "trace_id"),
)

image_files = sa.Table(
    "images",
    METADATA,
    sa.Column("project_id", BIG, sa.ForeignKey("projects.id"), primary_key=True),
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("media_type", sa.String(16), nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

request_images = sa.Table(
    "request_images",
    METADATA,
    # of the key; 0 without one
    sa.Column("project_id", BIG, primary_key=True),
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("used", Moment, nullable=False, index=True),
    sa.Column("media_type", sa.String(16), nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
"""Images of the gateway's requests, with the time of the latest that has them."""

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
class RunFilter:
    """Conditions on the traces of a list; ``None`` sets none. ``facets`` are those that the list counts."""

    problem_id: str | None = None
    text: str | None = None
    """Words that all occur in the problem, the trace or its id."""
    error: tuple[int, int | None] | None = None
    """Bounds of the first wrong step of the run's verdict, from 0."""
    no_error: bool = False
    """Whether no step is wrong."""
    tool: str | None = None
    """Name of a tool that the run calls."""
    scorer: str | None = None
    min_score: float | None = None
    """Bounds of the lowest step score of ``scorer``, which they need."""
    max_score: float | None = None
    facets: Mapping[Facet, str] = field(default_factory=dict)
    """Values as ``facets`` of the repository names them."""


Facet = Literal["outcome", "kind", "model"]
RunOrder = Literal["newest", "oldest", "shortest", "longest"]
_NO_MODEL: Final = "unknown"
_LONGEST_TITLE: Final = 300
_SEARCHED: Final = 100_000
"""Characters of a trace that are searched; PostgreSQL keeps at most a megabyte of words."""


def image_hashes(trace: Trace) -> set[str]:
    """Hashes of the images of a trace."""
    attached = (each for message in trace.messages for each in message.attachments)
    digests = (each.sha256 for each in attached if each.kind == "image")
    return {digest for digest in digests if digest and storable(digest)}


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

    def add_image(self, project_id: int, content: bytes, name: str) -> bool:
        """Keep an image for the traces that hold its hash; whether it is new.

        Raises ``RecordError`` as :func:`surefoot.images.checked`, and ``NotFoundError`` for the project.
        """
        media_type, digest = checked(content, name), hashlib.sha256(content).hexdigest()
        row = {"project_id": project_id, "sha256": digest, "media_type": media_type, "content": content}
        with self._connections.write() as connection:
            project_in(connection, project_id)
            return changed_by(connection, insert_missing(connection, image_files).values(row)) > 0

    def image(self, project_id: int | None, digest: str) -> tuple[bytes, str]:
        """Bytes and media type of a kept image, or without a project of a request's.

        Raises ``NotFoundError``.
        """
        table = image_files if project_id else request_images
        where = matching(table, project_id=project_id, sha256=storable_text(digest))
        for row in self._all(sa.select(table.c.content, table.c.media_type).where(*where).limit(1)):
            return bytes(row.content), row.media_type
        raise NotFoundError("this image is not kept here")

    def images_of(self, project_id: int | None, trace: Trace) -> set[str]:
        """Hashes of the images of a trace that are kept, as for :meth:`image`."""
        table = image_files if project_id else request_images
        where = (*matching(table, project_id=project_id), table.c.sha256.in_(image_hashes(trace)))
        return {row.sha256 for row in self._all(sa.select(table.c.sha256).where(*where))}

    def take_images(self, project_id: int, traces: Iterable[Trace]) -> None:
        """Keep the images of requests to the gateway that these traces hold."""
        r, names = request_images.c, ["project_id", "sha256", "media_type", "content"]
        query = sa.select(sa.literal(project_id), r.sha256, r.media_type, r.content)
        for digests in filter(None, map(image_hashes, traces)):
            with self._connections.write() as connection:
                new = insert_missing(connection, image_files)
                connection.execute(new.from_select(names, query.where(r.sha256.in_(digests))))

    def problem(self, project_id: int, problem_id: str) -> Problem:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return record_in(connection, problems, Problem, project_id, problem_id)

    def trace(self, project_id: int, trace_id: str) -> Trace:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return record_in(connection, traces, Trace, project_id, trace_id)

    def find(
        self,
        project_id: int,
        where: RunFilter | None = None,
        *,
        order: RunOrder = "newest",
        offset: int = 0,
        limit: int = 100,
    ) -> list[TraceRow]:
        """Traces of a list. Raises ``StoreError`` for a bound or an order that lacks its scorer."""
        where, trace = where or RunFilter(), traces.c
        query = sa.select(trace.id).where(*self._conditions(project_id, where), *_of_facets(where.facets))
        orders: dict[RunOrder, Any] = {
            "newest": trace.created.desc(), "oldest": trace.created,
            "longest": trace.steps.desc(), "shortest": trace.steps,
        }  # fmt: skip
        # ids are sorted in the index, and only the rows of the page are read
        page = query.order_by(orders[order], trace.id).offset(offset).limit(limit)
        with self._connections.read() as connection:
            ids = list(connection.scalars(page))
            listed = sa.select(*columns_of(TraceRow, traces))
            listed = listed.where(trace.project_id == project_id, trace.id.in_(ids))
            rows = {row.id: row for row in rows_of(connection, TraceRow, listed)}
            return [rows[trace_id] for trace_id in ids]

    def facets(self, project_id: int, where: RunFilter) -> tuple[int, dict[Facet, dict[str, int]]]:
        """How many traces match, and by facet how many have each value and match all other conditions."""
        trace = traces.c
        groups = (trace.outcome, trace.kind, trace.policy)
        query = (
            sa.select(*groups, sa.func.count().label("number"))
            .where(*self._conditions(project_id, where))
            .group_by(*groups)
        )
        counts: dict[Facet, Counter[str]] = {name: Counter() for name in get_args(Facet)}
        total = 0
        for row in self._all(query):
            outcome, model = _OUTCOMES[row.outcome], row.policy or _NO_MODEL
            values: dict[Facet, str] = {"outcome": outcome, "kind": row.kind, "model": model}
            misses = [name for name, value in where.facets.items() if values[name] != value]
            total += 0 if misses else row.number
            for name, value in values.items():
                if misses in ([], [name]):
                    counts[name][value] += row.number
        return total, {name: dict(of.most_common()) for name, of in counts.items()}

    def _conditions(self, project_id: int, where: RunFilter) -> list[sa.ColumnElement[bool]]:
        trace = traces.c
        conditions = matching(traces, project_id=project_id, problem_id=where.problem_id)
        if where.text is not None:
            conditions.append(trace.id.in_(self._containing(project_id, _words(where.text))))
        if where.no_error:
            conditions.append(trace.first_error.is_(None))
        elif where.error is not None:
            low, high = where.error
            conditions.append(trace.first_error.between(low, trace.steps if high is None else high))
        if where.tool is not None:
            conditions.append(trace.id.in_(self._containing(project_id, _words(where.tool))))
            called = f'"name":{json.dumps(where.tool, ensure_ascii=False)},"arguments":'
            conditions.append(trace.payload.contains(called, autoescape=True))
        if where.scorer is not None and (where.min_score, where.max_score) != (None, None):
            conditions.append(_scored(project_id, where.scorer, where.min_score, where.max_score))
        elif where.min_score is not None or where.max_score is not None:
            raise StoreError("'min_score' and 'max_score' need a 'scorer'")
        return conditions

    def _containing(self, project_id: int, words: str) -> sa.Select[Any]:
        search = trace_search.c
        if self._connections.sqlite:
            # each word in quotes, so that none is an operator of FTS5
            matches = search.words.op("MATCH")(" ".join(f'"{word}"' for word in words.split()) or '""')
        else:
            matches = search.words.op("@@")(sa.func.plainto_tsquery(_DICTIONARY, words))
        return sa.select(search.trace_id).where(search.project_id == project_id, matches)

    def outcomes_of(self, project_id: int, ids: Collection[str]) -> dict[str, bool | None]:
        """Whether the final answers of traces are right, by id; ``None`` = not judged."""
        trace = traces.c
        where = (trace.project_id == project_id) & trace.id.in_(ids)
        return {row.id: row.outcome for row in self._all(sa.select(trace.id, trace.outcome).where(where))}

    def scores_of(
        self, project_id: int, ids: Collection[str], *, scorer: str | None = None
    ) -> dict[str, list[StepScores]]:
        """Scores by trace, each by name of the scorer; of one ``scorer`` on request."""
        s = step_scores.c
        scores: dict[str, list[StepScores]] = {trace_id: [] for trace_id in ids}
        where = matching(step_scores, project_id=project_id, scorer=scorer)
        for row in self._all(sa.select(s.payload).where(*where, s.trace_id.in_(ids)).order_by(s.scorer)):
            record = StepScores.model_validate_json(row.payload)
            scores[record.trace_id].append(record)
        return scores

    def scorers(self, project_id: int) -> list[str]:
        """Names of all scorers of the project."""
        s = step_scores.c
        query = sa.select(s.scorer).where(s.project_id == project_id).distinct().order_by(s.scorer)
        return [row.scorer for row in self._all(query)]

    def _add_problem(self, connection: sa.Connection, project_id: int, problem: Problem) -> Added:
        return self._put(connection, problems, problem, project_id=project_id, id=problem.id)

    def _add_trace(self, connection: sa.Connection, project_id: int, trace: Trace) -> Added:
        name = checked_name("problem_id", trace.problem_id)
        problem = record_in(connection, problems, Problem, project_id, name)
        columns = {
            "problem_id": trace.problem_id,
            "title": title_of(problem, trace),
            "kind": "agent" if trace.messages else "program" if "code" in problem.meta else "solution",
            "policy": None if trace.policy is None else checked_text("policy", trace.policy),
            "outcome": trace.outcome,
            "steps": len(trace.steps),
            "tokens": trace.usage.prompt_tokens + trace.usage.completion_tokens,
            "outcome_word": outcome_word(trace),
        }
        added = self._put(connection, traces, trace, columns, project_id=project_id, id=trace.id)
        if added.new:
            words: Any = _words(f"{trace.id}\n{problem.text}\n{whole_text(trace)}"[:_SEARCHED])
            if not self._connections.sqlite:
                words = sa.func.to_tsvector(_DICTIONARY, words)
            row = {"project_id": project_id, "trace_id": trace.id, "words": words}
            connection.execute(sa.insert(trace_search).values(row))
        return added

    def _add_scores(self, connection: sa.Connection, project_id: int, scores: StepScores) -> Added:
        checked_name("trace_id", scores.trace_id)
        trace = record_in(connection, traces, Trace, project_id, scores.trace_id)
        if len(trace.steps) != len(scores.scores):
            raise StoreError(f"{len(scores.scores)} scores for a trace of {len(trace.steps)} steps")
        key = {"project_id": project_id, "trace_id": trace.id, "scorer": scores.scorer}
        finite = [score for score in scores.scores if score is not None and math.isfinite(score)]
        lowest = {"lowest": min(finite, default=None)}
        return self._put(connection, step_scores, scores, lowest, replace=True, **key)

    def _put(
        self,
        connection: sa.Connection,
        table: sa.Table,
        record: Record,
        columns: Mapping[str, Any] | None = None,
        *,
        replace: bool = False,
        **key: Any,
    ) -> Added:
        """Add the row of a record, or ``replace`` it. Raises ``StoreError`` if it exists and differs."""
        for name, value in key.items():
            if name != "project_id":
                checked_name(name, value)
        payload, where = payload_of(record), matching(table, **key)
        stored = connection.scalar(sa.select(table.c.payload).where(*where))
        if stored == payload:
            return Added(same=1)
        if stored is not None:
            if not replace:
                raise StoreError("the project has a record with this id and other content; use another id")
            connection.execute(sa.delete(table).where(*where))
        row = {**key, **(columns or {}), "payload": payload, "created": self._now}
        connection.execute(sa.insert(table).values(row))
        return Added(new=1) if stored is None else Added(replaced=1)

    def _add_each(
        self, project_id: int, records: Iterable[R], add: Callable[[sa.Connection, int, R], Added]
    ) -> Added:
        """Pass each record to ``add``, which may refuse it with a ``StoreError`` before it writes."""

        def add_part(connection: sa.Connection, project_id: int, part: Sequence[R]) -> Added:
            added = Added()
            for record in part:
                try:
                    added += add(connection, project_id, record)
                except StoreError as error:
                    added += refused(record, error)
            return added

        return add_chunks(self._connections, project_id, records, add_part)


_DICTIONARY: Final[Any] = sa.literal_column("'simple'::regconfig")
_OUTCOMES: Final[dict[bool | None, str]] = {True: "correct", False: "wrong", None: "ungraded"}


def create_search(connection: sa.Connection) -> None:
    """The index of words: FTS5 in SQLite, a column of lexemes in PostgreSQL."""
    if connection.dialect.name == "sqlite":
        columns = "project_id UNINDEXED, trace_id UNINDEXED, words"
        connection.exec_driver_sql(f"CREATE VIRTUAL TABLE trace_search USING fts5({columns})")
        return
    columns = "project_id bigint, trace_id text, words tsvector NOT NULL, PRIMARY KEY (project_id, trace_id)"
    connection.exec_driver_sql(f"CREATE TABLE trace_search ({columns})")
    connection.exec_driver_sql("CREATE INDEX ix_trace_search_words ON trace_search USING gin (words)")


def title_of(problem: Problem, trace: Trace | None) -> str:
    """The first line of the problem, if the user's first message has it, else of that message."""
    prompt = prompt_of(problem, trace)
    return first_line(problem.text if problem.text.strip() in prompt else prompt)


def prompt_of(problem: Problem, trace: Trace | None) -> str:
    """The user's first message, or the problem."""
    prompts = (message.content for message in trace.messages if message.role == "user") if trace else ()
    return next(filter(None, prompts), problem.text)


def first_line(text: str) -> str:
    """A text's first line with words on it, as a title."""
    lines = storable_text(text).strip().splitlines()
    return shorten(lines[0], _LONGEST_TITLE, placeholder=" …") if lines else ""


def outcome_word(trace: Trace) -> str:
    """A data set's own word for an outcome, which a trace's ``meta`` has, such as *safe*; else empty."""
    word = trace.meta.get("outcome")
    return word if isinstance(word, str) and word.isalpha() and len(word) <= 20 else ""


def whole_text(trace: Trace) -> str:
    """The text of a trace, or of all its messages: reasoning, contents and calls."""
    return trace.text if trace.text is not None else "\n".join(map(str, trace_blocks(trace)))


def _words(text: str) -> str:
    """The words of a text, as both databases then find them: PostgreSQL alone would leave out tags."""
    return " ".join(re.findall(r"[^\W_]+", storable_text(text)))


def storable_text(text: str) -> str:
    """``text`` without what a column cannot hold."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def _of_facets(facets: Mapping[Facet, str]) -> Iterator[sa.ColumnElement[bool]]:
    trace = traces.c
    for name, value in facets.items():
        if name == "outcome":
            (outcome,) = (outcome for outcome, word in _OUTCOMES.items() if word == value)
            yield trace.outcome.is_(outcome)
        elif name == "kind":
            yield trace.kind == value
        else:
            yield trace.policy.is_(None) if value == _NO_MODEL else trace.policy == value


def _scored(project_id: int, scorer: str, low: float | None, high: float | None) -> sa.ColumnElement[bool]:
    s = step_scores
    # the project by its number, as for wrong steps
    query = sa.select(s.c.trace_id).where(s.c.project_id == project_id, s.c.scorer == scorer)
    if low is not None:
        query = query.where(s.c.lowest >= low)
    if high is not None:
        query = query.where(s.c.lowest <= high)
    return traces.c.id.in_(query)


def add_chunks(
    connections: Connections,
    project_id: int,
    records: Iterable[R],
    add: Callable[[sa.Connection, int, Sequence[R]], Added],
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


def record_in(
    connection: sa.Connection, table: sa.Table, kind: type[R], project_id: int, record_id: str
) -> R:
    """The record of a ``payload`` column, in the caller's transaction. Raises ``NotFoundError``."""
    query = sa.select(table.c.payload).where(table.c.project_id == project_id, table.c.id == record_id)
    payload = connection.scalar(query)
    if payload is None:
        raise NotFoundError(f"project {project_id} has no {kind.__name__.lower()} '{record_id}'")
    return kind.model_validate_json(payload)


def refused(record: Record, error: StoreError) -> Added:
    """One record that was refused, and why."""
    name = getattr(record, "id", None) or getattr(record, "trace_id", "")
    return Added(refused=1, reasons=((str(name), str(error)),))
