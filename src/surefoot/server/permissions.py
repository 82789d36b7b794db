"""Permissions: one vocabulary of actions for people, keys, routes and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from surefoot.errors import ForbiddenError, NotFoundError, ScopeError

Role = Literal["admin", "viewer", "annotator", "client"]
"""admin: everything; viewer: reads; annotator: labels; client: the gateway only."""

KeyScope = Literal["chat", "score", "pages", "admin"]
"""chat: generate; score: score solutions; pages: read and label on the pages, and read metrics;
admin: what administrators of a project or of the server do on the pages, such as imports, members and
accounts."""

SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)

Action = Literal["connect", "probe", "chat", "score", "operate", "enter", "label", "read", "manage"]
"""connect: list the gateway's models; probe: ask whether it works; operate: read the metrics; enter: open the
pages, or a project; label, read and manage: on the whole server, or in a project."""


@dataclass(frozen=True)
class Permission:
    """What an action needs."""

    scope: KeyScope | None
    """Scope of a key with limited scopes; ``None`` = any."""
    roles: frozenset[Role]
    """Roles that may do it, in the place where it is done."""


def _permission(scope: KeyScope | None, *roles: Role) -> Permission:
    return Permission(scope, frozenset(roles))


PERMISSIONS: Final[Mapping[Action, Permission]] = MappingProxyType(
    {
        "connect": _permission(None, "client", "admin"),
        "probe": _permission(None, "client", "admin"),
        "chat": _permission("chat", "client", "admin"),
        "score": _permission("score", "client", "admin"),
        "operate": _permission("pages", "admin"),
        "enter": _permission("pages", "annotator", "viewer", "admin"),
        "label": _permission("pages", "annotator", "admin"),
        "read": _permission("pages", "viewer", "admin"),
        "manage": _permission("admin", "admin"),
    }
)

ROLE_SCOPES: Final[Mapping[Role, frozenset[KeyScope]]] = MappingProxyType(
    {
        role: frozenset(entry.scope for entry in PERMISSIONS.values() if entry.scope and role in entry.roles)
        for role in get_args(Role)
    }
)
"""Scopes that keys of a role may have; they have all of them by default."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The author of a request: a signed-in user, or the owner of an API key."""

    name: str
    role: Role
    """Of the account, or of a key without one."""
    user_id: int | None = None
    """``None`` = a key without an account."""
    key_role: Role | None = None
    """Role of the API key, which limits what its owner may do with it; ``None`` = signed in."""
    only_project: int | None = None
    """The one project that a key opens; ``None`` = all of its user's."""
    scopes: tuple[KeyScope, ...] | None = None
    """What a key may do; ``None`` = all that its role may, or signed in."""
    member_role: Callable[[int], Role | None] = lambda _: None
    """The account's role as a member of a project; ``None`` = it is none."""

    def may(self, action: Action) -> bool:
        """Whether ``action`` is allowed on the whole server."""
        try:
            allowed(self, action)
        except ForbiddenError:
            return False
        return True


def role_in(actor: Principal, project: int | None = None) -> Role | None:
    """The role in a project or, without one, on the whole server; ``None`` = it is not open to the actor."""
    if actor.only_project not in (None, project):
        return None
    role: Role | None = actor.role
    if project is not None and role != "admin":
        if actor.user_id is not None:
            role = actor.member_role(project)
        elif role != "viewer" or actor.only_project is None:
            role = None  # a key without an account reads the project that it is for, and no other
    if actor.key_role in (None, "admin", role):
        return role
    return actor.key_role if role == "admin" else None


def allowed(actor: Principal, action: Action, project: int | None = None) -> Role | None:
    """The role in which an action is allowed, in a project or on the whole server; here alone it is decided.

    Raises ``ScopeError`` for a key that lacks the scope, ``ForbiddenError`` for another role, and
    ``NotFoundError`` for a project that is not open to the actor, who does not learn whether it exists.
    """
    needed = PERMISSIONS[action]
    if needed.scope is not None and actor.scopes is not None and needed.scope not in actor.scopes:
        have = ", ".join(actor.scopes)
        raise ScopeError(f"key {actor.name!r} lacks the scope '{needed.scope}'; it has {have}")
    if project is None and action == "enter":
        return None  # the listed projects are checked one by one
    if action in ("connect", "probe", "chat", "score"):  # also with a key of one project
        role: Role | None = actor.key_role
    else:
        role = role_in(actor, project)
    if project is not None and role is None:
        raise NotFoundError(f"project {project} does not exist, or you are not a member")
    if role not in needed.roles:
        who = " and ".join(f"{name.replace('admin', 'administrator')}s" for name in sorted(needed.roles))
        where = "the whole server" if project is None else "the project"
        raise ForbiddenError(f"this is for {who} of {where}; {actor.name!r} has the role {role or 'none'}")
    return role
