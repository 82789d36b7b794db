"""Authentication and authorisation: sessions, API keys, cookies, and roles."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, cast

from fastapi import Depends, Request, Security
from fastapi.responses import Response
from fastapi.security import SecurityScopes

from surefoot.errors import ForbiddenError, NotFoundError, UnavailableError
from surefoot.server.gateway.access import PEER, TokenBucket, address_in, client_address, require_scope
from surefoot.server.gateway.monitor import Monitor
from surefoot.server.pages.settings import PageSettings
from surefoot.server.records import KeyScope
from surefoot.server.store.accounts import Project, Role
from surefoot.server.store.database import Database
from surefoot.server.store.users import folded_name

SESSION: Final = "surefoot_session"
"""The token of a session, which is random, and stored as a hash."""
SIGN_IN: Final = "surefoot_sign_in"
"""Identifies the browser to which a sign-in form was sent, before it has a session."""
PROJECT: Final = "surefoot_project"
"""Number of the project that this browser opened last."""
_BUCKETS: Final = 100_000
"""Addresses whose sign-ins are counted."""


class Cookies:
    """Reads and sets cookies.

    ``secure`` ones travel over HTTPS only, and browsers accept them from this very host alone: a sibling
    domain cannot plant a cookie whose name begins with ``__Host-``.
    """

    def __init__(self, secure: bool) -> None:
        self.secure = secure

    def get(self, request: Request, name: str) -> str:
        """The cookie; empty if there is none."""
        return request.cookies.get(self._full(name), "")

    def set(
        self,
        response: Response,
        name: str,
        value: str,
        *,
        seconds: float,
        samesite: Literal["lax", "strict"] = "lax",
    ) -> None:
        """Set a cookie that scripts cannot read, for so many seconds."""
        response.set_cookie(
            self._full(name),
            value,
            max_age=int(seconds),
            path="/",
            httponly=True,
            samesite=samesite,
            secure=self.secure,
        )

    def delete(self, response: Response, name: str) -> None:
        """Browsers ignore this unless it has the attributes that the cookie was set with."""
        response.delete_cookie(self._full(name), path="/", secure=self.secure, httponly=True)

    def _full(self, name: str) -> str:
        return f"__Host-{name}" if self.secure else name


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """The author of a request: a signed-in user, or the owner of an API key."""

    user_id: int | None
    """``None`` = a key without an account."""
    name: str
    roles: frozenset[Role]
    csrf: str | None
    """Secret of the session's forms; ``None`` with a key, which browsers do not send by themselves."""
    key_role: Role | None = None
    """Role of the API key, which limits what its owner may do with it; ``None`` = signed in."""
    project_id: int | None = None
    """The one project that a key opens; ``None`` = all of its user's."""
    scopes: tuple[KeyScope, ...] | None = None
    """What a key may do; ``None`` = all that its role may, or signed in."""

    @property
    def admin(self) -> bool:
        """Whether they may do everything."""
        by_key = self.key_role in (None, "admin") and self.project_id is None
        return "admin" in self.roles and by_key

    @property
    def reads_all(self) -> bool:
        """Whether they may read what belongs to no project: requests, held calls and reports."""
        by_key = self.key_role in (None, "admin", "viewer") and self.project_id is None
        return bool(by_key and self.roles & {"admin", "viewer"})


@dataclass(frozen=True, kw_only=True)
class Place:
    """A project, and the visitor's role in it."""

    project: Project
    role: Role
    visitor: Visitor
    db: Database

    @property
    def id(self) -> int:
        """Id of the project."""
        return self.project.id

    @property
    def user_id(self) -> int:
        """The user who acts. Raises ``ForbiddenError`` for a key without an account."""
        if self.visitor.user_id is None:
            raise ForbiddenError("this key belongs to no account, and labelling needs one")
        return self.visitor.user_id


class Pages:
    """State of the pages app; ``request.app.state.pages``."""

    def __init__(
        self,
        db: Database,
        settings: PageSettings,
        rng: random.Random | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self.db, self.settings, self.monitor = db, settings, monitor
        self.rng = rng or random.SystemRandom()
        self.cookies = Cookies(settings.secure)
        self._sign_ins: dict[str, TokenBucket] = {}

    def sign_in_wait(self, request: Request) -> float:
        """Count a sign-in under the client's address; seconds to wait if there were too many, or 0."""
        address = client_address(request.client.host if request.client else "unknown")
        if len(self._sign_ins) >= _BUCKETS:
            self._sign_ins.clear()
        return self._sign_ins.setdefault(address, TokenBucket(self.settings.attempts)).take()


def personal_link(db: Database, user_id: int) -> str:
    """The path of a new personal link, at which its owner signs in; the link before ends.

    Browsers send what stands behind ``#`` to no server, so neither a log nor a referrer has the token.
    """
    return f"/sign-in#{db.users.new_link(user_id)}"


def pages_of(request: Request) -> Pages:
    """The state of the app that serves ``request``."""
    pages: Pages = request.app.state.pages
    return pages


def enter(request: Request, visitor: Visitor, project_id: int, *roles: Role) -> Place:
    """Open a project for a visitor who has one of ``roles`` there.

    Raises ``NotFoundError`` for visitors without access, so that they do not learn which projects exist, and
    ``ForbiddenError`` for a member with another role.
    """
    db = pages_of(request).db
    project = db.projects.get(project_id)
    role = _role(db, visitor, project_id)
    if role is None:
        raise NotFoundError(f"project {project_id} does not exist, or you are not a member")
    if roles and role not in roles:
        raise ForbiddenError(f"your role here is {role}; this page is for {' and '.join(roles)}")
    return Place(project=project, role=role, visitor=visitor, db=db)


def visible_projects(request: Request, visitor: Visitor) -> list[tuple[Project, Role]]:
    """The projects that ``enter`` opens for the visitor, but archived ones, with their role there."""
    db = pages_of(request).db
    all_projects = visitor.user_id is None or "admin" in visitor.roles
    projects = db.projects.list() if all_projects else db.projects.list(visitor.user_id)
    roles = ((project, _role(db, visitor, project.id)) for project in projects)
    return [(project, role) for project, role in roles if role is not None]


def _role(db: Database, visitor: Visitor, project_id: int) -> Role | None:
    """The visitor's role in a project; ``None`` = it is not open to them. The one place that decides it."""
    if visitor.project_id not in (None, project_id):
        return None
    role: Role | None = None
    if "admin" in visitor.roles:
        role = "admin"
    elif visitor.user_id is None:
        # a key without an account reads the project that it is for, and no other
        role = "viewer" if "viewer" in visitor.roles and visitor.project_id == project_id else None
    else:
        member = db.projects.member(project_id, visitor.user_id)
        role = member.role if member is not None and member.active else None
    if visitor.key_role in (None, "admin") or role == visitor.key_role:
        return role
    return visitor.key_role if role == "admin" else None


class SignInNeeded(Exception):  # noqa: N818 - not an error: the response is the sign-in page
    """Nobody is signed in; pages redirect to the sign-in form, programs get 401."""


def visitor_of(request: Request) -> Visitor | None:
    """The visitor, by API key or cookie; ``None`` = unknown."""
    pages = pages_of(request)
    key = bearer_key(request)
    if key is not None:
        return _by_key(pages, key)
    signed_in_user = pages.db.users.session(pages.cookies.get(request, SESSION))
    if signed_in_user is None:
        return None
    user, session = signed_in_user
    if pages.settings.trusted_user_header is not None:
        name = proxied_user(request)
        if name is None or folded_name(name) != folded_name(user.name):
            return None
    return Visitor(user_id=user.id, name=user.name, roles=user.roles, csrf=session.csrf)


def bearer_key(request: Request) -> str | None:
    """The API key of the request; ``None`` without one, also for a sign-in proxy's other schemes."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def proxied_user(request: Request) -> str | None:
    """The name of the user whom the sign-in proxy has authenticated; ``None`` without one.

    Raises ``ForbiddenError`` if the header comes from any other address, or more than once.
    """
    settings = pages_of(request).settings
    names = request.headers.getlist(settings.trusted_user_header) if settings.trusted_user_header else []
    if not names:
        return None
    client = request.scope.get(PEER, request.scope.get("client"))
    if client is None or not address_in(client[0], settings.trusted_proxies):
        raise ForbiddenError(f"only the sign-in proxy may send the header {settings.trusted_user_header}")
    try:
        (name,) = names
        return name.encode("latin-1").decode("utf-8").strip() or None
    except ValueError as error:
        raise ForbiddenError(f"the header {settings.trusted_user_header} must be one UTF-8 name") from error


def signed_in(request: Request, needed: SecurityScopes) -> Visitor:
    """The visitor. Raises ``SignInNeeded``, and ``ScopeError`` for a key that lacks a needed scope."""
    visitor = visitor_of(request)
    if visitor is None:
        raise SignInNeeded
    for scope in needed.scopes:
        require_scope(visitor.name, visitor.scopes, cast("KeyScope", scope))
    return visitor


SignedIn = Annotated[Visitor, Security(signed_in, scopes=["pages"])]
_Administrator = Annotated[Visitor, Security(signed_in, scopes=["admin"])]


def _by_key(pages: Pages, key: str) -> Visitor | None:
    api_key = pages.db.keys.authenticate(key)
    if api_key is None or api_key.role == "client":
        return None
    with suppress(UnavailableError):  # the page works without it
        pages.db.keys.note_use(api_key)
    roles: frozenset[Role] = frozenset([api_key.role])
    if api_key.user_id is not None:
        user = pages.db.users.get(api_key.user_id)
        if not user.active:
            return None
        roles = user.roles
    return Visitor(
        user_id=api_key.user_id,
        name=api_key.name,
        roles=roles,
        csrf=None,
        key_role=api_key.role,
        project_id=api_key.project_id,
        scopes=api_key.scopes,
    )


def _reader(visitor: SignedIn) -> Visitor:
    if not visitor.reads_all:
        raise ForbiddenError("this page is for administrators and viewers of the whole server")
    return visitor


def _admin(visitor: _Administrator) -> Visitor:
    if not visitor.admin:
        raise ForbiddenError("this page is for administrators")
    return visitor


def _entered(*roles: Role) -> Any:
    def dependency(request: Request, visitor: SignedIn, project_id: int) -> Place:
        return enter(request, visitor, project_id, *roles)

    return Depends(dependency)


def _administered(request: Request, visitor: _Administrator, project_id: int) -> Place:
    return enter(request, visitor, project_id, "admin")


SiteAdmin = Annotated[Visitor, Depends(_admin)]
"""An administrator of the whole server; others get 403."""
SiteReader = Annotated[Visitor, Depends(_reader)]
"""An administrator or viewer of the whole server; others get 403."""
MemberPlace = Annotated[Place, _entered()]
"""The project of the address, for all its members; see ``enter``."""
AnnotatorPlace = Annotated[Place, _entered("annotator", "admin")]
ReaderPlace = Annotated[Place, _entered("admin", "viewer")]
AdminPlace = Annotated[Place, Depends(_administered)]
