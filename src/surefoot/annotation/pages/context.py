"""What all pages share: the database, the settings, the templates, and who may enter a project."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from pydantic import Field

from surefoot.annotation.database import Project, Role
from surefoot.annotation.pages.mathematics import mathematics
from surefoot.annotation.pages.shown import instructions_html, moment, percent, seconds, sign, sign_name
from surefoot.errors import ForbiddenError, NotFoundError
from surefoot.gateway.settings import Settings

if TYPE_CHECKING:
    from surefoot.annotation.database import Database

FOLDER = Path(__file__).parent


class PageSettings(Settings):
    """How the pages are served."""

    secure: bool = False
    """Send cookies over HTTPS only; to be set wherever the server is reachable from other machines."""
    max_form_bytes: int = Field(default=1_000_000, ge=1_000)
    max_upload_bytes: int = Field(default=64_000_000, ge=1_000)
    session_hours: float = Field(default=12.0, gt=0)
    attempts: int = Field(default=10, ge=1)
    """Wrong passwords of one name, and five times as many of one address, within ``attempt_seconds``."""
    attempt_seconds: float = Field(default=300.0, gt=0)


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """Who asks: a signed-in user, or the owner of an API key."""

    user_id: int | None
    """``None``: a key without an account."""
    name: str
    roles: frozenset[Role]
    csrf: str | None
    """Secret of the session's forms; ``None`` with a key, which a browser does not send by itself."""
    key_role: Role | None = None
    """Role of the API key: it opens no more than that, whoever owns it; ``None`` = signed in."""
    project_id: int | None = None
    """The one project that a key opens; ``None`` = all of its user's."""

    @property
    def admin(self) -> bool:
        """Whether everything is open to them."""
        by_key = self.key_role in (None, "admin") and self.project_id is None
        return "admin" in self.roles and by_key


@dataclass(frozen=True, kw_only=True)
class Place:
    """A project as a visitor has entered it."""

    project: Project
    role: Role
    visitor: Visitor

    @property
    def user_id(self) -> int:
        """Who acts. Raises ``ForbiddenError`` for a key without an account."""
        if self.visitor.user_id is None:
            raise ForbiddenError("this key belongs to no account, and labels need one")
        return self.visitor.user_id


@dataclass(kw_only=True)
class Attempts:
    """Counts wrong passwords by name and address in a sliding window. Not shared between processes."""

    most: int
    window_s: float
    clock: Callable[[], float] = time.monotonic
    _times: dict[str, deque[float]] = field(default_factory=dict)

    def start(self, key: str, times: int = 1) -> float:
        """Count an attempt before it is made; seconds to wait if there were too many, 0 = go on."""
        now = self.clock()
        if len(self._times) > 10_000:
            self._times = {k: v for k, v in self._times.items() if v and now - v[-1] < self.window_s}
        seen = self._times.setdefault(key, deque())
        while seen and now - seen[0] >= self.window_s:
            seen.popleft()
        if len(seen) >= self.most * times:
            return self.window_s - (now - seen[0])
        seen.append(now)
        return 0.0

    def succeeded(self, key: str) -> None:
        """The password was right: forget the attempts under ``key``."""
        self._times.pop(key, None)


class Pages:
    """State of the pages app; ``request.app.state.pages``."""

    def __init__(self, db: Database, settings: PageSettings, rng: random.Random | None = None) -> None:
        self.db, self.settings = db, settings
        self.rng = rng or random.SystemRandom()
        self.attempts = Attempts(most=settings.attempts, window_s=settings.attempt_seconds)
        self.templates = _templates()


def pages_of(request: Request) -> Pages:
    """The state of the app that answers ``request``."""
    found: Pages = request.app.state.pages
    return found


def enter(request: Request, visitor: Visitor, project_id: int, *roles: Role) -> Place:
    """Open a project for a visitor who has one of ``roles`` there.

    Raises ``NotFoundError`` for who has no business in it, so that nobody learns which projects exist, and
    ``ForbiddenError`` for a member with another role.
    """
    db = pages_of(request).db
    project = db.projects.get(project_id)
    role = _role(db, visitor, project_id)
    if role is None:
        raise NotFoundError(f"there is no project {project_id}, or you are not a member")
    if roles and role not in roles:
        raise ForbiddenError(f"your role here is {role}; this page is for {' and '.join(roles)}")
    return Place(project=project, role=role, visitor=visitor)


def _role(db: Database, visitor: Visitor, project_id: int) -> Role | None:
    if visitor.project_id not in (None, project_id):
        return None
    role: Role | None = None
    if "admin" in visitor.roles:
        role = "admin"
    elif visitor.user_id is None:
        role = "viewer" if "viewer" in visitor.roles else None
    else:
        member = db.projects.member(project_id, visitor.user_id)
        role = member.role if member is not None and member.active else None
    if visitor.key_role in (None, "admin") or role == visitor.key_role:
        return role
    return visitor.key_role if role == "admin" else None


def require_admin(visitor: Visitor) -> None:
    """Raises ``ForbiddenError`` unless the visitor is an administrator of the whole server."""
    if not visitor.admin:
        raise ForbiddenError("this page is for administrators")


def _templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        math=mathematics,
        markdown=instructions_html,
        moment=moment,
        percent=percent,
        seconds=seconds,
        sign=sign,
        sign_name=sign_name,
    )
    return found
