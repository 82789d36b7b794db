"""Tables of problems, traces, scores and the items made of them."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Index, Integer, String, Table, Text, UniqueConstraint

from surefoot.annotation.database._columns import BIG, METADATA, created, of_project, refers, row_id

problems = Table(
    "problems",
    METADATA,
    refers("project_id", "projects", primary_key=True),
    Column("id", Text, primary_key=True),
    Column("text", Text, nullable=False),
    Column("payload", Text, nullable=False),
    created(),
)

traces = Table(
    "traces",
    METADATA,
    refers("project_id", "projects", primary_key=True),
    Column("id", Text, primary_key=True),
    Column("problem_id", Text, nullable=False),
    Column("policy", Text),
    Column("outcome", Boolean),
    Column("steps", Integer, nullable=False),
    Column("payload", Text, nullable=False),
    created(),
    of_project("problem_id", "problems"),
    Index(None, "project_id", "problem_id"),
)

step_scores = Table(
    "step_scores",
    METADATA,
    Column("project_id", BIG, primary_key=True),
    Column("trace_id", Text, primary_key=True),
    Column("scorer", Text, primary_key=True),
    Column("lowest", Float),
    Column("payload", Text, nullable=False),
    created(),
    of_project("trace_id", "traces"),
    Index(None, "project_id", "scorer", "lowest"),
)

items = Table(
    "items",
    METADATA,
    row_id(),
    refers("project_id", "projects"),
    Column("problem_id", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("step", Integer),
    Column("role", String(16), nullable=False),
    Column("known", Text, nullable=False),
    Column("digest", String(32), nullable=False),
    Column("active", Boolean, nullable=False),
    created(),
    of_project("problem_id", "problems"),
    UniqueConstraint("project_id", "id"),
    UniqueConstraint("project_id", "digest"),
)

item_traces = Table(
    "item_traces",
    METADATA,
    Column("project_id", BIG, nullable=False),
    Column("item_id", BIG, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("trace_id", Text, nullable=False),
    of_project("item_id", "items"),
    of_project("trace_id", "traces"),
    Index(None, "project_id", "trace_id"),
)

priorities = Table(
    "priorities",
    METADATA,
    Column("project_id", BIG, nullable=False),
    Column("item_id", BIG, primary_key=True),
    Column("policy", String(32), primary_key=True),
    Column("value", Float, nullable=False),
    of_project("item_id", "items"),
)
