"""API keys: administrators create them, change their limits, and revoke them."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import ForbiddenError, StoreError
from surefoot.records import now
from surefoot.server.gateway.records import SCOPES
from surefoot.server.pages.access import SiteAdmin, pages_of
from surefoot.server.pages.forms import CheckedForm, Form
from surefoot.server.pages.render import done, show, twin
from surefoot.server.store.accounts import ApiKey, Role
from surefoot.server.store.keys import KeyLimits, expiry_of

router = APIRouter()

ROLES: Final[tuple[Role, ...]] = ("client", "viewer", "annotator", "admin")
_MOST: Final = 10**15 - 1


@twin(router, "/keys")
def keys(request: Request, visitor: SiteAdmin) -> Response:
    """All keys, the newest first, revoked ones at the end; days end at midnight UTC."""
    return _page(request, visitor)


@router.post("/keys")
def create(request: Request, visitor: SiteAdmin, form: CheckedForm) -> Response:
    """A new key, which only this answer shows."""
    if visitor.key_id is not None:
        raise ForbiddenError("a key makes no keys, or its limits would limit nothing; sign in")
    db = pages_of(request).db
    limits = _limits(form)
    if scopes := [scope for scope in SCOPES if form.ticked(f"scope_{scope}")]:
        limits["scopes"] = scopes
    key, row = db.keys.create(form.text("name", most=200), form.choice("role", ROLES), **limits)
    db.projects.audit("key created", visitor.user_id, name=row.name, prefix=row.prefix)
    return _page(request, visitor, new=key)


@router.post("/keys/{key_id:number}")
def change(request: Request, visitor: SiteAdmin, key_id: int, form: CheckedForm) -> Response:
    """Set the limits of a key, or revoke it for good."""
    if visitor.key_id is not None:
        raise ForbiddenError("a key changes no keys, or its limits would limit nothing; sign in")
    db = pages_of(request).db
    what = form.choice("what", ("limits", "revoke"))
    row = db.keys.revoke(key_id) if what == "revoke" else db.keys.change(key_id, **_limits(form))
    db.projects.audit(f"key {what}", visitor.user_id, name=row.name, prefix=row.prefix)
    return done(request, "/keys", {"key": _row(row)})


def _page(request: Request, visitor: SiteAdmin, *, new: str | None = None) -> Response:
    db = pages_of(request).db
    rows = sorted(db.keys.list(), key=lambda key: (key.revoked is not None, -key.id))
    data = {"keys": [_row(key) for key in rows], "new": new}
    extra = {"roles": ROLES, "scopes": SCOPES, "blank": {"rate_limit": None}}
    return show(request, visitor, "keys.html", data, extra=extra)


def _row(key: ApiKey) -> dict[str, Any]:
    moment = now()
    return {
        "id": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "role": key.role,
        "scopes": key.scopes,
        "project_id": key.project_id,
        "created": key.created,
        "last_used": key.last_used,
        "expires": key.expires,
        "expired": key.expires is not None and key.expires <= moment,
        "revoked": key.revoked,
        "rate_limit": key.rate_limit,
    }


def _limits(form: Form) -> KeyLimits:
    """The limits of a form: an empty number removes the limit, and an empty expiry changes nothing."""
    limits = KeyLimits(rate_limit=_number(form, "rate_limit"))
    expires = form.optional("expires", most=40)
    if expires is not None:
        limits["expires"] = None if expires == "never" else expiry_of(expires, now())
    return limits


def _number(form: Form, name: str) -> int | None:
    if form.optional(name, most=20) is None:
        return None
    number = form.whole(name)
    if not 1 <= number <= _MOST:
        raise StoreError(f"'{name}' must be at least 1, or empty for no limit")
    return number
