"""Permissions: one vocabulary of actions for people, keys, routes and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from surefoot.errors import ForbiddenError, NotFoundError

Role = Literal["admin", "viewer", "annotator", "client"]
"""admin: everything; viewer: reads; annotator: labels; client: the gateway only."""
KeyRole = Literal["client", "viewer", "admin"]
"""Role of a key: labels are made by people, who sign in."""

Action = Literal["connect", "probe", "chat", "score", "operate", "enter", "label", "read", "manage"]
"""connect: list the gateway's models; probe: ask whether it works; operate: read the metrics; enter: open the
pages, or a project; label, read and manage: on the whole server, or in a project."""


def _roles(*roles: Role) -> frozenset[Role]:
    return frozenset(roles)


PERMISSIONS: Final[Mapping[Action, frozenset[Role]]] = MappingProxyType(
    {
        "connect": _roles("client", "admin"),
        "probe": _roles("client", "admin"),
        "chat": _roles("client", "admin"),
        "score": _roles("client", "admin"),
        "operate": _roles("viewer", "admin"),
        "enter": _roles("annotator", "viewer", "admin"),
        "label": _roles("annotator", "admin"),
        "read": _roles("viewer", "admin"),
        "manage": _roles("admin"),
    }
)
"""Roles that may do it, in the place where it is done."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The author of a request: a signed-in user, or an API key."""

    name: str
    role: Role
    """Of the account, or of the key."""
    user_id: int | None = None
    """``None`` = a key."""
    key_id: int | None = None
    only_project: int | None = None
    """The one project that a key opens; ``None`` = all."""
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
    if project is None or actor.role == "admin":
        return actor.role
    if actor.user_id is not None:
        return actor.member_role(project)
    return actor.role if actor.only_project is not None else None


def allowed(actor: Principal, action: Action, project: int | None = None) -> Role | None:
    """The role in which an action is allowed, in a project or on the whole server; here alone it is decided.

    Raises ``ForbiddenError`` for another role, and ``NotFoundError`` for a project that is not open to the
    actor, who does not learn whether it exists.
    """
    if project is None and action == "enter":
        return None  # the listed projects are checked one by one
    role: Role | None = actor.role  # also of a key of one project
    if action not in ("connect", "probe", "chat", "score"):
        role = role_in(actor, project)
    if project is not None and role is None:
        raise NotFoundError(f"project {project} does not exist, or you are not a member")
    if role not in PERMISSIONS[action]:
        roles = sorted(PERMISSIONS[action])
        who = " and ".join(f"{name.replace('admin', 'administrator')}s" for name in roles)
        where = "the whole server" if project is None else "the project"
        raise ForbiddenError(f"this is for {who} of {where}; {actor.name!r} has the role {role or 'none'}")
    return role
