"""Users, keys and projects: the data that the database returns, and the tables that hold it.

A token or key is shown once, when it is created. Only its hash is stored, in a column that the data classes
leave out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field
from sqlalchemy import Column, ForeignKey, String, Text, UniqueConstraint

from surefoot.records import FrozenModel
from surefoot.server.permissions import KeyScope, Role
from surefoot.server.store.schema import Count, Mark, ProjectId, RowId, UserId, table

QueuePolicy = Literal["order", "random", "convincing-wrong", "uncertainty", "disagreement"]
"""Which item comes next: as added; at random; by the stored priorities, highest first."""


@dataclass(frozen=True, kw_only=True)
class User:
    """A person or program that signs in."""

    id: RowId
    name: str
    role: Role
    active: bool
    created: datetime


# `folded` is the name without differences of case and width: no two users may share it
users = table(
    "users",
    User,
    Column("folded", Text, nullable=False, unique=True),
    Column("link_hash", String(64), unique=True),
)


@dataclass(frozen=True, kw_only=True)
class Session:
    """A signed-in browser. ``csrf`` is the secret that its forms must send back."""

    id: RowId
    user_id: Annotated[int, ForeignKey("users.id", ondelete="CASCADE"), Mark.INDEXED]
    csrf: Annotated[str, String(64)]
    created: datetime
    expires: Annotated[datetime, Mark.INDEXED]


sessions = table("sessions", Session, Column("token_hash", String(64), nullable=False, unique=True))


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key for the gateway or the JSON twins."""

    id: RowId
    name: str
    role: Role
    user_id: UserId | None
    """Whose labels are made with it; ``None`` for a program without an account."""
    project_id: ProjectId | None
    """The one project it opens; ``None`` = all."""
    rate_limit: Count | None
    """Requests per minute; ``None`` = no limit."""
    expires: datetime | None
    """When it ends; ``None`` = never."""
    scopes: tuple[KeyScope, ...] | None
    """What it may do; ``None`` = all that its role may."""
    revoked: datetime | None
    last_used: datetime | None
    """To the minute: not every request writes it."""
    created: datetime


api_keys = table("api_keys", ApiKey, Column("key_hash", String(64), nullable=False, unique=True))


class Protocol(FrozenModel):
    """How a project's items are labelled, step by step. Stored as JSON; unknown fields are rejected."""

    until: Literal["first-error", "every-step", "whole-solution"] = "first-error"
    """Where labelling ends: at the first error (phase 2 of PRM800K, Lightman et al., arXiv 2305.20050,
    appendix D), or when every step has a label, since agents recover from errors (AgentProcessBench).
    whole-solution shows all steps at once, and the annotator marks the first wrong one or none (ProcessBench,
    Zheng et al., arXiv 2412.06559)."""

    show_answer: bool = False
    """Whether annotators see the reference answer."""
    annotators: int = Field(default=1, ge=1, le=100)
    """How many different people label each item."""
    values: tuple[Literal[-1, 0, 1], ...] = Field(default=(-1, 0, 1), min_length=1)
    """Allowed labels."""
    queue: QueuePolicy = "order"
    random_share: float = Field(default=0.0, ge=0, le=1)
    """Chance that an item is chosen at random instead: the control group of the queue."""
    known_share: float = Field(default=0.0, ge=0, le=1)
    """Chance that an item with known labels comes instead."""
    known_first: int = Field(default=0, ge=0, le=1000)
    """How many items with known labels come before all others, as a screening."""
    known_pass: float = Field(default=0.0, ge=0, le=1)
    """Share of the known labels of these that an annotator must label correctly to get other items."""
    retention_days: int | None = Field(default=None, ge=1, le=36500)
    """Days for which the gateway's requests of this project are stored; ``None`` = until they are pruned."""
    lease_seconds: int = Field(default=1800, ge=1)
    """How long an item stays reserved for an annotator who does not finish it."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """Problems, traces, items and labels that belong together; nothing crosses from one to another."""

    id: RowId
    name: Annotated[str, Mark.UNIQUE]
    instructions: str
    """Markdown, shown to annotators: untrusted text, to be rendered without HTML."""
    protocol: Protocol
    version: Count
    """Rises by one with each change; pass it to ``update``."""
    archived: bool
    created: datetime


projects = table("projects", Project)


@dataclass(frozen=True, kw_only=True)
class Member:
    """A user's place in a project."""

    project_id: Annotated[int, Mark.KEY, ForeignKey("projects.id")]
    user_id: Annotated[int, Mark.KEY, ForeignKey("users.id"), Mark.INDEXED]
    name: Annotated[str, Mark.COMPUTED]
    role: Role
    pseudonym: Annotated[str, String(40)]
    """What the annotator is called in exports, e.g. ``rater-3f9a12c4``; random, one per project."""
    active: bool


members = table("members", Member, UniqueConstraint("project_id", "pseudonym"))


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """An entry of the audit log: sign-ins, changes of keys, members and settings, imports, exports."""

    id: RowId
    created: datetime
    # without foreign keys, so that entries outlive the users and projects they name
    user_id: int | None
    action: str
    project_id: Annotated[int | None, Mark.INDEXED]
    detail: dict[str, Any] = field(default_factory=dict)


audit_log = table("audit_log", AuditEntry)
