"""Tables of labelling: who has what, what they sent, and what was decided."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from surefoot.annotation.database._columns import BIG, METADATA, Moment, created, of_project, refers, row_id

assignments = Table(
    "assignments",
    METADATA,
    row_id(),
    Column("project_id", BIG, nullable=False),
    Column("item_id", BIG, nullable=False),
    refers("user_id", "users"),
    Column("state", String(16), nullable=False),
    Column("chosen_by", String(32), nullable=False),
    Column("leased_until", Moment, nullable=False),
    Column("reason", Text),
    Column("milliseconds", BIG),
    created(),
    Column("finished", Moment),
    of_project("item_id", "items"),
    UniqueConstraint("item_id", "user_id"),
    Index(None, "project_id", "user_id"),
)

# One row for each thing an annotator sent. The key makes a repeated POST harmless.
submissions = Table(
    "submissions",
    METADATA,
    row_id(),
    Column("project_id", BIG, nullable=False),
    Column("item_id", BIG, nullable=False),
    refers("user_id", "users"),
    Column("key", String(200), nullable=False),
    Column("digest", String(32), nullable=False),
    Column("action", String(16), nullable=False),
    Column("finished", Boolean, nullable=False),
    refers("undoes", "submissions", null=True, unique=True),
    created(),
    of_project("item_id", "items"),
    UniqueConstraint("project_id", "user_id", "key"),
    Index(None, "item_id", "user_id"),
    CheckConstraint("(action = 'undo') = (undoes IS NOT NULL)", name="undoes"),
    sqlite_autoincrement=True,
)

# Only ever added to: a label is retracted by a submission that undoes the one it came with.
labels = Table(
    "labels",
    METADATA,
    row_id(),
    refers("project_id", "projects"),
    Column("item_id", BIG),
    Column("trace_id", Text, nullable=False),
    Column("step", Integer, nullable=False),
    refers("user_id", "users", null=True),
    refers("submission_id", "submissions", null=True, index=True),
    Column("source", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("value", Float),
    Column("payload", Text, nullable=False),
    Column("milliseconds", BIG),
    Column("chosen_by", String(32)),
    Column("meta", Text, nullable=False),
    Column("digest", String(32)),
    created(),
    of_project("item_id", "items"),
    of_project("trace_id", "traces"),
    UniqueConstraint("project_id", "digest"),
    Index(None, "project_id", "trace_id", "step"),
    Index(None, "item_id", "user_id"),
    sqlite_autoincrement=True,
)

choices = Table(
    "choices",
    METADATA,
    row_id(),
    Column("project_id", BIG, nullable=False),
    Column("item_id", BIG, nullable=False),
    refers("user_id", "users"),
    refers("submission_id", "submissions"),
    Column("trace_id", Text, nullable=False),
    Column("text", Text),
    created(),
    of_project("item_id", "items"),
    of_project("trace_id", "traces"),
    Index(None, "project_id", "item_id"),
)

remarks = Table(
    "remarks",
    METADATA,
    row_id(),
    Column("project_id", BIG, nullable=False),
    Column("item_id", BIG, nullable=False),
    Column("trace_id", Text),
    Column("step", Integer),
    refers("user_id", "users"),
    Column("kind", String(16), nullable=False),
    Column("text", Text, nullable=False),
    created(),
    Column("resolved", Moment),
    of_project("item_id", "items"),
    of_project("trace_id", "traces"),
    Index(None, "project_id", "item_id"),
)

adjudications = Table(
    "adjudications",
    METADATA,
    row_id(),
    Column("project_id", BIG, nullable=False),
    Column("item_id", BIG, nullable=False),
    Column("trace_id", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("value", Integer),
    refers("label_id", "labels", null=True),
    refers("user_id", "users"),
    Column("note", Text, nullable=False),
    created(),
    of_project("item_id", "items"),
    of_project("trace_id", "traces"),
    Index(None, "project_id", "item_id", "trace_id", "step"),
)
