"""What the store says of people and keys: users, sessions, API keys, projects and their members.

Plain frozen data, no database in it. A password, token or key is shown once, when it is made; afterwards
there is only its hash, and that is in none of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["admin", "annotator", "viewer", "client"]
"""admin: everything; annotator: labels; viewer: reads; client: the gateway only."""

QueuePolicy = Literal["order", "random", "convincing-wrong", "uncertainty", "disagreement"]
"""Which item comes next: as added; at random; by the priorities stored under that name, highest first."""


@dataclass(frozen=True, kw_only=True)
class User:
    """A person or program that signs in."""

    id: int
    name: str
    roles: frozenset[Role]
    active: bool
    created: datetime


@dataclass(frozen=True, kw_only=True)
class Session:
    """A signed-in browser. ``csrf`` is the secret that its forms must send back."""

    id: int
    user_id: int
    csrf: str
    created: datetime
    expires: datetime


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key for the gateway or the JSON twins. ``prefix`` is not secret: people tell keys apart by it."""

    id: int
    prefix: str
    name: str
    role: Role
    user_id: int | None
    """Whose labels are made with it; ``None`` for a program without an account."""
    project_id: int | None
    """The one project it opens; ``None`` = all."""
    rate_limit: int | None
    """Requests a minute; ``None`` = no limit."""
    revoked: datetime | None
    last_used: datetime | None
    """To the minute: not every request writes it."""
    created: datetime


class Protocol(BaseModel):
    """How a project's items are labelled. Kept as JSON; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    phase: Literal[1, 2] = 2
    """1: alternatives of one step side by side, and a step written by hand; 2: whole solutions up to the
    first error (PRM800K, Lightman et al., arXiv 2305.20050, appendix D)."""
    show_answer: bool = False
    """Whether annotators see the reference answer."""
    annotators: int = Field(default=1, ge=1, le=100)
    """How many different people label each item."""
    values: tuple[Literal[-1, 0, 1], ...] = Field(default=(-1, 0, 1), min_length=1)
    """Labels that may be given."""
    queue: QueuePolicy = "order"
    random_share: float = Field(default=0.0, ge=0, le=1)
    """Chance that an item is drawn at random instead: the control group of the queue."""
    control_share: float = Field(default=0.0, ge=0, le=1)
    """Chance that an item with known answers is given instead."""
    screening_pass: float = Field(default=0.0, ge=0, le=1)
    """Share of known screening labels that an annotator must get right to be given other items."""
    lease_seconds: int = Field(default=1800, ge=1)
    """How long an item is kept for an annotator who does not finish it."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """Problems, traces, items and labels that belong together; nothing crosses from one to another."""

    id: int
    name: str
    instructions: str
    """Markdown, shown to annotators: untrusted text, to be rendered without HTML."""
    protocol: Protocol
    version: int
    """Rises by one with each change; give it back to ``update``."""
    archived: bool
    created: datetime


@dataclass(frozen=True, kw_only=True)
class Member:
    """A user's place in a project."""

    project_id: int
    user_id: int
    name: str
    role: Role
    pseudonym: str
    """What the annotator is called in exports, e.g. ``rater-3f9a12c4``; random, one a project."""
    active: bool


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """Who changed what: sign-ins, keys, members, settings, imports, exports."""

    id: int
    created: datetime
    user_id: int | None
    action: str
    project_id: int | None
    detail: dict[str, Any] = field(default_factory=dict)
