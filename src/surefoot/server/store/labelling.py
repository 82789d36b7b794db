"""Items, assignments, labels and reviews: the data that the database returns, and the tables that hold it.

Rows of a project carry ``project_id``, and foreign keys to problems, traces and items include it, so that the
database itself refuses a label of one project on an item of another. ``payload`` columns hold records as
pydantic writes them; fields that queries filter by are also separate columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    column,
)
from sqlalchemy import table as light_table

from surefoot.records import Problem, StepLabel, Trace
from surefoot.server.store.schema import (
    BIG,
    METADATA,
    Count,
    Mark,
    Moment,
    ProjectId,
    RowId,
    UserId,
    of_project,
    table,
)

ChosenBy = Annotated[str, String(32)]
"""A ``QueuePolicy``, or ``known`` for an item with known labels. Never shown to an annotator."""

problems = Table(
    "problems",
    METADATA,
    Column("project_id", BIG, ForeignKey("projects.id"), primary_key=True),
    Column("id", Text, primary_key=True),
    Column("payload", Text, nullable=False),
    Column("created", Moment, nullable=False),
)

traces = Table(
    "traces",
    METADATA,
    Column("project_id", BIG, ForeignKey("projects.id"), primary_key=True),
    Column("id", Text, primary_key=True),
    Column("problem_id", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("policy", Text),
    Column("outcome", Boolean),
    Column("steps", Integer, nullable=False),
    Column("created", Moment, nullable=False),
    Column("payload", Text, nullable=False),
    of_project("problem_id", "problems"),
    Index(None, "project_id", "problem_id"),
    # lists are counted and sorted without reading payloads
    Index(None, "project_id", "kind", "outcome", "policy", "steps", "created", "id"),
)

RunKind = Literal["solution", "agent", "program"]
"""A text, a run of messages, or a text that is a program with tests."""

# The words of traces, for full-text search; ``create_search`` makes it, as each database has its own kind.
trace_search = light_table("trace_search", column("project_id"), column("trace_id"), column("words"))

step_scores = Table(
    "step_scores",
    METADATA,
    Column("project_id", BIG, primary_key=True),
    Column("trace_id", Text, primary_key=True),
    Column("scorer", Text, primary_key=True),
    Column("lowest", Float),
    Column("payload", Text, nullable=False),
    Column("created", Moment, nullable=False),
    of_project("trace_id", "traces"),
    Index(None, "project_id", "scorer", "lowest", "trace_id"),
)

AssignmentState = Literal["leased", "done", "skipped"]
CommentKind = Literal["comment", "flag"]


@dataclass(frozen=True, kw_only=True)
class KnownAnswer:
    """The correct label of one step."""

    step: int
    value: Literal[-1, 0, 1]


@dataclass(frozen=True, kw_only=True)
class NewItem:
    """An item to be added: a trace to be labelled step by step."""

    trace_id: str
    known: tuple[KnownAnswer, ...] = ()
    """Known labels of some steps: the item then checks its annotators, and each of them gets it once."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """An item as an administrator sees it, known answers included."""

    id: RowId
    project_id: ProjectId
    problem_id: str
    trace_id: str
    known: tuple[KnownAnswer, ...]
    created: datetime


items = table(
    "items",
    Item,
    Column("digest", String(32), nullable=False),
    Column("has_known", Boolean, nullable=False),
    Column("priority", Float),
    of_project("problem_id", "problems"),
    of_project("trace_id", "traces"),
    UniqueConstraint("project_id", "id"),
    UniqueConstraint("project_id", "digest"),
    Index(None, "project_id", "has_known", "id"),
    Index(None, "project_id", "trace_id"),
)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """An item leased to an annotator. ``chosen_by`` is for records and administrators only."""

    id: RowId
    project_id: int
    item_id: int
    user_id: UserId
    state: AssignmentState
    chosen_by: ChosenBy
    leased_until: datetime
    reason: str | None
    """Why it was skipped."""
    milliseconds: int | None
    """Time that the annotator took, as measured by the page."""
    created: datetime
    finished: datetime | None


assignments = table(
    "assignments",
    Assignment,
    of_project("item_id", "items"),
    UniqueConstraint("item_id", "user_id"),
    Index(None, "project_id", "user_id"),
)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Response to "what next?". ``screening``: not passed, so no items; ``empty``: no items left."""

    assignment: Assignment | None
    why: Literal["leased", "resumed", "empty", "screening"]


@dataclass(frozen=True, kw_only=True)
class AnnotatorItem:
    """An item as its annotator sees it, without known answers and labels of others.

    ``problem.answer`` and ``trace.outcome`` are ``None`` unless the protocol shows the answer; ``meta`` is
    always empty, since data sets keep labels there.
    """

    item_id: int
    problem: Problem
    trace: Trace
    state: AssignmentState
    leased_until: datetime
    labels: tuple[StoredLabel, ...]
    """The annotator's own, the ones that count now, without ``chosen_by``."""
    last: int
    """Id of the annotator's latest submission for this item, 0 if none; pass it as ``after``."""


@dataclass(frozen=True, kw_only=True)
class LabelInput:
    """One label to append. ``value`` ``None`` (cannot tell) needs a ``reason``."""

    step: int
    value: Literal[-1, 0, 1] | None
    reason: str | None = None
    milliseconds: int | None = None
    comment: str | None = None


@dataclass(frozen=True, kw_only=True)
class StoredLabel:
    """A label in the database: the package's record, and what the database adds to it."""

    id: RowId
    """Rises with each label."""
    item_id: int | None
    """``None`` = imported from another source."""
    user_id: UserId | None
    record: Annotated[StepLabel, Mark.COMPUTED]
    milliseconds: int | None
    chosen_by: ChosenBy | None
    is_current: bool
    """Whether it counts: the submission that it came with is not undone."""


# One row for each thing an annotator sent. The key makes a repeated POST harmless.
submissions = Table(
    "submissions",
    METADATA,
    Column("id", BIG, primary_key=True),
    Column("project_id", BIG, nullable=False),
    Column("item_id", BIG, nullable=False),
    Column("user_id", BIG, ForeignKey("users.id"), nullable=False),
    Column("key", String(200), nullable=False),
    Column("digest", String(32), nullable=False),
    Column("finished", Boolean, nullable=False),
    Column("undoes", BIG, ForeignKey("submissions.id"), unique=True),
    Column("created", Moment, nullable=False),
    of_project("item_id", "items"),
    UniqueConstraint("project_id", "user_id", "key"),
    Index(None, "item_id", "user_id"),
    sqlite_autoincrement=True,
)

# Only ever added to: a submission that undoes another ends what its labels count for, and they stay.
labels = table(
    "labels",
    StoredLabel,
    Column("project_id", BIG, ForeignKey("projects.id"), nullable=False),
    Column("trace_id", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("submission_id", BIG, ForeignKey("submissions.id"), index=True),
    Column("source", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("value", Float),
    Column("payload", Text, nullable=False),
    Column("digest", String(32)),
    Column("created", Moment, nullable=False),
    of_project("item_id", "items"),
    of_project("trace_id", "traces"),
    UniqueConstraint("project_id", "digest"),
    Index(None, "project_id", "trace_id", "step"),
    Index(None, "item_id", "user_id"),
    Index(None, "project_id", "user_id", "is_current"),
    Index("ix_labels_wrong", "project_id", "kind", "value", "is_current", "trace_id", "step"),
    sqlite_autoincrement=True,
)


IS_WRONG = and_(labels.c.kind == "correctness", labels.c.value == -1, labels.c.is_current)
"""Whether a label calls its step wrong."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Response to a submission. ``repeated``: the key was used before, and nothing was added."""

    label_ids: tuple[int, ...]
    finished: bool
    repeated: bool


@dataclass(frozen=True, kw_only=True)
class Comment:
    """A comment or a flag on an item or one of its steps. Annotators get their own only."""

    id: RowId
    kind: CommentKind
    item_id: int
    step: Count | None
    user_id: UserId
    text: str
    created: datetime
    resolved: datetime | None


comments = table(
    "comments",
    Comment,
    Column("project_id", BIG, nullable=False),
    of_project("item_id", "items"),
    Index(None, "project_id", "item_id"),
)


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
    adjudication: Adjudication | None


@dataclass(frozen=True, kw_only=True)
class Adjudication:
    """The label that settles a disagreement. Appended; the latest one of a step counts."""

    id: RowId
    item_id: int
    trace_id: str
    step: Count
    value: Literal[-1, 0, 1] | None
    user_id: UserId
    note: str
    created: datetime


adjudications = table(
    "adjudications",
    Adjudication,
    Column("project_id", BIG, nullable=False),
    of_project("item_id", "items"),
    of_project("trace_id", "traces"),
    Index(None, "project_id", "item_id", "trace_id", "step"),
)


@dataclass(frozen=True, kw_only=True)
class AnnotatorProgress:
    """Work of one annotator; ``done`` includes items with known labels."""

    user_id: int
    annotator: str
    done: int
    skipped: int
    labels: int
    milliseconds: int | None
    """Median time of a finished item; ``None`` = not measured."""
    last: datetime | None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a project; but for ``annotators`` without items of known labels. ``needed`` = items times
    annotators per item."""

    items: int
    complete: int
    """Items finished by as many annotators as required."""
    needed: int
    done: int
    """Finished assignments."""
    leased: int
    """Leased right now."""
    annotators: tuple[AnnotatorProgress, ...]
