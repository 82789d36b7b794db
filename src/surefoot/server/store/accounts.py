"""Accounts with their personal links and sessions, API keys, and projects with their members.

A token or key is shown once, when it is created. Only its hash is stored, in a column that the data classes
leave out. A token is 256 random bits, which cannot be guessed from a plain hash, so it is hashed once with
SHA-256.
"""

from __future__ import annotations

import hashlib
import secrets
import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import sqlalchemy as sa
from pydantic import Field

from surefoot.errors import ConflictError, ExpiredKeyError, ForbiddenError, NotFoundError, StoreError
from surefoot.records import FrozenModel
from surefoot.server.permissions import KeyRole, Role
from surefoot.server.store.engine import Repository, changed_by
from surefoot.server.store.schema import (
    BIG,
    METADATA,
    Count,
    Mark,
    Moment,
    ProjectId,
    RowId,
    checked_name,
    checked_text,
    inserted,
    matching,
    one_of,
    rows_of,
    table,
)

R = TypeVar("R", bound=str)
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
    sa.Column("folded", sa.Text, nullable=False, unique=True),
    sa.Column("link_hash", sa.String(64), unique=True),
)


# Signed-in browsers.
sessions = sa.Table(
    "sessions",
    METADATA,
    sa.Column("token_hash", sa.String(64), primary_key=True),
    sa.Column("user_id", BIG, sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("created", Moment, nullable=False),
    sa.Column("expires", Moment, nullable=False, index=True),
)


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key for the gateway or the JSON twins."""

    id: RowId
    name: str
    role: KeyRole
    project_id: ProjectId | None
    """The one project it opens; ``None`` = all."""
    rate_limit: Count | None
    """Requests per minute; ``None`` = no limit."""
    expires: datetime | None
    """When it ends; ``None`` = never."""
    revoked: datetime | None
    created: datetime


api_keys = table("api_keys", ApiKey, sa.Column("key_hash", sa.String(64), nullable=False, unique=True))


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

    project_id: Annotated[int, Mark.KEY, sa.ForeignKey("projects.id")]
    user_id: Annotated[int, Mark.KEY, sa.ForeignKey("users.id"), Mark.INDEXED]
    name: Annotated[str, Mark.COMPUTED]
    role: Role
    pseudonym: Annotated[str, sa.String(40)]
    """What the annotator is called in exports, e.g. ``rater-3f9a12c4``; random, one per project."""
    active: bool


members = table("members", Member, sa.UniqueConstraint("project_id", "pseudonym"))


_SKEW: Final = timedelta(minutes=5)
"""Between the clocks of servers on one database."""
_RECALLED: Final = timedelta(seconds=1)
"""How long a valid key is not looked up again; one that this process revokes ends at once."""
_MOST_RECALLED: Final = 10_000


class Users(Repository):
    """Repository of users and their sessions."""

    def create(self, name: str, role: Role = "annotator") -> User:
        """Add a user, without a link.

        Raises ``ConflictError`` if the name is taken (letter case does not matter), and ``StoreError`` for an
        invalid name or an unknown role.
        """
        name = checked_user_name(name)
        folded = folded_name(name)
        with self._connections.write() as connection:
            owner = connection.scalar(sa.select(users.c.name).where(users.c.folded == folded))
            if owner is not None:
                raise ConflictError(f"the name '{owner}' is taken; choose another")
            row = {"name": name, "folded": folded, "role": checked_role(role), "active": True}
            return inserted(connection, User, users, **row, created=self._now)

    def get(self, user_id: int) -> User:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return _user(connection, users.c.id == user_id)

    def by_name(self, name: str) -> User:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return _user(connection, users.c.folded == folded_name(name))

    def list(self) -> list[User]:
        """All users by name, inactive ones too."""
        return self._rows(User, sa.select(users).order_by(users.c.name))

    def new_link(self, user_id: int) -> str:
        """The token of a new personal link, which is stored nowhere; the link before and sessions end."""
        token = new_token()
        self._set(user_id, link_hash=token_hash(token))
        return token

    def by_link(self, token: str) -> User | None:
        """The owner of a personal link; ``None`` if it is unknown or ended, or its user inactive."""
        query = sa.select(users).where(users.c.link_hash == token_hash(token), users.c.active)
        return next(iter(self._rows(User, query)), None)

    def set_active(self, user_id: int, active: bool) -> None:
        """Open or close an account; its link and its sessions end, and its labels stay."""
        self._set(user_id, active=active, link_hash=None)

    def set_role(self, user_id: int, role: Role) -> User:
        """Change the role, and end the user's sessions."""
        self._set(user_id, role=checked_role(role))
        return self.get(user_id)

    def open_session(self, user_id: int, *, lifetime: timedelta = timedelta(hours=12)) -> str:
        """The token of a new session, which is stored nowhere; expired sessions are deleted."""
        token, moment = new_token(), self._now
        with self._connections.write() as connection:
            if not _user(connection, users.c.id == user_id).active:
                raise StoreError("the user is not active; activate them first")
            connection.execute(sa.delete(sessions).where(sessions.c.expires <= moment))
            row = {"user_id": user_id, "created": moment, "expires": moment + lifetime}
            connection.execute(sa.insert(sessions).values(**row, token_hash=token_hash(token)))
            return token

    def session(self, token: str) -> User | None:
        """The owner of a token; ``None`` if it is unknown, ended or expired, or its user inactive."""
        s, moment = sessions.c, self._now
        # one from the future was opened before the clock was set back, and would last too long
        valid = (s.token_hash == token_hash(token)) & (s.created <= moment + _SKEW) & (s.expires > moment)
        query = sa.select(users).join(sessions, s.user_id == users.c.id).where(valid, users.c.active)
        return next(iter(self._rows(User, query)), None)

    def end_session(self, token: str) -> None:
        """Sign out. An unknown token is ignored."""
        self._change(sa.delete(sessions).where(sessions.c.token_hash == token_hash(token)))

    def _set(self, user_id: int, **values: Any) -> None:
        with self._connections.write() as connection:
            if not changed_by(connection, sa.update(users).where(users.c.id == user_id).values(values)):
                raise NotFoundError(f"user {user_id} does not exist")
            connection.execute(sa.delete(sessions).where(sessions.c.user_id == user_id))


def folded_name(name: str) -> str:
    """``name`` without letter case and compatibility forms (Unicode's compatibility caseless match)."""
    folded = unicodedata.normalize("NFD", name)
    for _ in range(2):
        folded = unicodedata.normalize("NFKC", folded.casefold())
    return folded


def checked_user_name(name: str) -> str:
    """``name`` in Unicode's normal form NFKC.

    Raises ``StoreError`` for invisible characters and for spaces other than single ones between words.
    """
    name = checked_name("name", unicodedata.normalize("NFKC", checked_name("name", name)))
    if not name.isprintable():
        character = next(character for character in name if not character.isprintable())
        described = f"U+{ord(character):04X} ({unicodedata.name(character, 'unnamed')})"
        raise StoreError(f"'name' contains {described}, which is invisible; leave it out")
    if name != " ".join(name.split()):
        raise StoreError("'name' may have single spaces between words, and no others")
    return name


def checked_role(role: R, of: Any = Role) -> R:
    """``role``. Raises ``StoreError`` if it is not one ``of`` a literal type."""
    if role not in get_args(of):
        raise StoreError(f"'{role}' is not a role; choose from {', '.join(get_args(of))}")
    return role


def _user(connection: sa.Connection, where: sa.ColumnElement[bool]) -> User:
    return one_of(connection, User, sa.select(users).where(where), "the user does not exist")


def new_token() -> str:
    """256 random bits, safe in URLs and headers."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Keys(Repository):
    """Repository of API keys."""

    def create(
        self,
        name: str,
        role: KeyRole,
        *,
        project_id: int | None = None,
        rate_limit: int | None = None,
        expires: datetime | None = None,
    ) -> tuple[str, ApiKey]:
        """A new key ``sf-…`` and its row. The key itself is not stored: show it now.

        By default it never expires. Raises ``NotFoundError`` for an unknown project; ``StoreError`` for an
        unknown role, a limit below 1, and an expiry that is past.
        """
        row = {"name": checked_name("name", name), "role": checked_role(role, KeyRole), "created": self._now}
        if rate_limit is not None and rate_limit < 1:
            raise StoreError("'rate_limit' must be at least 1, or None for no limit")
        if expires is not None and expires <= self._now:
            raise StoreError(f"'expires' is in the past: {expires.isoformat(timespec='minutes')}")
        row |= {"project_id": project_id, "rate_limit": rate_limit, "expires": expires}
        key = f"sf-{new_token()}"
        with self._connections.write() as connection:
            if project_id is not None:
                project_in(connection, project_id)
            return key, inserted(connection, ApiKey, api_keys, key_hash=token_hash(key), **row)

    def authenticate(self, key: str) -> ApiKey | None:
        """The row of ``key``; ``None`` if it is unknown or revoked.

        Raises ``ExpiredKeyError`` if it is right, but past its time. The row is found by the key's hash,
        which cannot be guessed.
        """
        digest = token_hash(key)
        valid = (api_keys.c.key_hash == digest) & api_keys.c.revoked.is_(None)
        api_key = next(iter(self._rows(ApiKey, sa.select(api_keys).where(valid))), None)
        if api_key is None:
            return None
        if api_key.expires is not None and api_key.expires <= self._now:
            when = api_key.expires.isoformat(timespec="minutes")
            raise ExpiredKeyError(f"key {api_key.name!r} expired at {when}; ask for a new one")
        recalled = self._connections.keys
        if len(recalled) >= _MOST_RECALLED:
            recalled.clear()
        recalled[digest] = self._now, api_key
        return api_key

    def recall(self, key: str) -> ApiKey | None:
        """A key that ``authenticate`` found within the last second and that has not expired; ``None`` if only
        ``authenticate`` can tell. Does not wait."""
        api_key: ApiKey | None
        at, api_key = self._connections.keys.get(token_hash(key), (self._now, None))
        fresh = timedelta(0) <= self._now - at < _RECALLED
        if not fresh or api_key is None or (api_key.expires is not None and api_key.expires <= self._now):
            return None
        return api_key

    def list(self) -> list[ApiKey]:
        """All keys, oldest first, revoked ones too."""
        return self._rows(ApiKey, sa.select(api_keys).order_by(api_keys.c.id))

    def revoke(self, key_id: int) -> ApiKey:
        """End a key for good; a second time changes nothing. Raises ``NotFoundError``."""
        valid = (api_keys.c.id == key_id) & api_keys.c.revoked.is_(None)
        self._change(sa.update(api_keys).where(valid).values(revoked=self._now))
        self._connections.keys.clear()
        query = sa.select(api_keys).where(api_keys.c.id == key_id)
        return self._one(ApiKey, query, f"key {key_id} does not exist")


class Projects(Repository):
    """Repository of projects and their members."""

    def create(self, name: str, *, instructions: str = "", protocol: Protocol | None = None) -> Project:
        """Add a project. Raises ``ConflictError`` if the name is taken."""
        checked_name("name", name)
        with self._connections.write() as connection:
            _refuse_taken(connection, name, None)
            row: dict[str, Any] = {"name": name, "instructions": checked_text("instructions", instructions)}
            row |= {"protocol": protocol or Protocol(), "version": 1, "archived": False}
            return inserted(connection, Project, projects, **row, created=self._now)

    def get(self, project_id: int) -> Project:
        """Raises ``NotFoundError``."""
        with self._connections.read() as connection:
            return project_in(connection, project_id)

    def update(
        self,
        project_id: int,
        version: int,
        *,
        name: str | None = None,
        instructions: str | None = None,
        protocol: Protocol | None = None,
        archived: bool | None = None,
    ) -> Project:
        """Change the arguments that are not ``None``, if the project is still at ``version``.

        Raises ``ConflictError`` if it has changed since, or the name is taken.
        """
        changes = {
            "name": None if name is None else checked_name("name", name),
            "instructions": None if instructions is None else checked_text("instructions", instructions),
            "protocol": protocol,
            "archived": archived,
        }
        values = {column: value for column, value in changes.items() if value is not None}
        with self._connections.write() as connection:
            current = locked_project(connection, project_id)
            if current.version != version:
                raise ConflictError(
                    f"the project is at version {current.version}, not {version}: it has changed; reload it"
                )
            if name is not None:
                _refuse_taken(connection, name, project_id)
            row = projects.c.id == project_id
            connection.execute(sa.update(projects).where(row).values(**values, version=version + 1))
            return project_in(connection, project_id)

    def set_member(self, project_id: int, user_id: int, role: Role, active: bool = True) -> Member:
        """Add a user to the project or change their membership; the pseudonym stays the same.

        Items leased to a member who becomes inactive are available to others at once.

        Raises ``NotFoundError`` for an unknown user or project.
        """
        ids = {"project_id": project_id, "user_id": user_id}
        with self._connections.write() as connection:
            locked_project(connection, project_id)
            if connection.scalar(sa.select(users.c.id).where(users.c.id == user_id)) is None:
                raise NotFoundError(f"user {user_id} does not exist")
            values: dict[str, Any] = {"role": checked_role(role), "active": active}
            if not changed_by(connection, sa.update(members).where(*matching(members, **ids)).values(values)):
                values |= {**ids, "pseudonym": f"rater-{secrets.token_hex(4)}"}
                connection.execute(sa.insert(members).values(values))
            if not active:
                assignments = METADATA.tables["assignments"]
                leased = matching(assignments, **ids, state="leased")
                connection.execute(sa.update(assignments).where(*leased).values(leased_until=self._now))
            return _members(connection, **ids)[0]

    def members(self, project_id: int) -> list[Member]:
        """All members by name, inactive ones too."""
        with self._connections.read() as connection:
            return _members(connection, project_id=project_id)

    def member(self, project_id: int, user_id: int) -> Member | None:
        """The user's membership; ``None`` if they have none or it is not active."""
        with self._connections.read() as connection:
            return _active_member(connection, project_id, user_id)

    def list(self, user_id: int | None = None, *, archived: bool = False) -> list[Project]:
        """Projects by name: all, or those in which the user is an active member."""
        query = sa.select(projects).order_by(projects.c.name)
        if user_id is not None:
            membership = (members.c.user_id == user_id) & members.c.active.is_(True)
            query = query.where(projects.c.id.in_(sa.select(members.c.project_id).where(membership)))
        if not archived:
            query = query.where(projects.c.archived.is_(False))
        return self._rows(Project, query)


def project_in(connection: sa.Connection, project_id: int, *, lock: bool = False) -> Project:
    """The project, in the caller's transaction. Raises ``NotFoundError``."""
    query = sa.select(projects).where(projects.c.id == project_id)
    if lock:
        query = query.with_for_update(key_share=True)
    return one_of(connection, Project, query, f"project {project_id} does not exist")


def locked_project(connection: sa.Connection, project_id: int) -> Project:
    """The project, whose row is locked until the transaction ends: writers of one project queue here.

    Labelling is done at the pace of people, so one queue per project costs nothing and leaves no race to
    think about. Foreign keys do not wait for this lock (``FOR NO KEY UPDATE``).
    """
    return project_in(connection, project_id, lock=True)


def pseudonym_in(connection: sa.Connection, project_id: int, user_id: int) -> str:
    """Pseudonym of an active member. Raises ``ForbiddenError`` for others."""
    member = _active_member(connection, project_id, user_id)
    if member is None:
        raise ForbiddenError(f"user {user_id} is not a member of project {project_id}; add them first")
    return member.pseudonym


def _active_member(connection: sa.Connection, project_id: int, user_id: int) -> Member | None:
    return next(iter(_members(connection, project_id=project_id, user_id=user_id, active=True)), None)


def _refuse_taken(connection: sa.Connection, name: str, own: int | None) -> None:
    owner = connection.scalar(sa.select(projects.c.id).where(projects.c.name == name))
    if owner is not None and owner != own:
        raise ConflictError(f"the name '{name}' is taken; choose another")


def _members(connection: sa.Connection, **equal: int) -> list[Member]:
    query = sa.select(members, users.c.name).join(users, users.c.id == members.c.user_id)
    return rows_of(connection, Member, query.where(*matching(members, **equal)).order_by(users.c.name))
