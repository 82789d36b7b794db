"""Who asks for a page: the owner of a session cookie or of an API key."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import Depends, Request

from surefoot.annotation.database import Role
from surefoot.annotation.pages.context import Pages, Visitor, pages_of
from surefoot.errors import UnavailableError

_COOKIE = "surefoot_session"


class SignInNeeded(Exception):  # noqa: N818 - not an error: the answer is the sign-in page
    """Nobody is signed in; pages lead to the sign-in form, programs get 401."""


def visitor_of(request: Request) -> Visitor | None:
    """Who asks, by API key or by cookie; ``None`` = nobody that is known."""
    pages = pages_of(request)
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return _by_key(pages, key.strip())
    found = pages.db.users.session(request.cookies.get(cookie_name(pages), ""))
    if found is None:
        return None
    user, session = found
    return Visitor(user_id=user.id, name=user.name, roles=user.roles, csrf=session.csrf)


def signed_in(request: Request) -> Visitor:
    """Who asks. Raises ``SignInNeeded``."""
    found = visitor_of(request)
    if found is None:
        raise SignInNeeded
    return found


SignedIn = Annotated[Visitor, Depends(signed_in)]


def cookie_name(pages: Pages) -> str:
    """Browsers take a ``__Host-`` cookie from this very host over HTTPS only."""
    return f"__Host-{_COOKIE}" if pages.settings.secure else _COOKIE


def _by_key(pages: Pages, key: str) -> Visitor | None:
    found = pages.db.keys.authenticate(key)
    if found is None or found.role == "client":
        return None
    with suppress(UnavailableError):  # a page is no worse for it
        pages.db.keys.note_use(found)
    roles: frozenset[Role] = frozenset([found.role])
    if found.user_id is not None:
        user = pages.db.users.get(found.user_id)
        if not user.active:
            return None
        roles = user.roles
    return Visitor(
        user_id=found.user_id,
        name=found.name,
        roles=roles,
        csrf=None,
        key_role=found.role,
        project_id=found.project_id,
    )
