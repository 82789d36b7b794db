"""Accounts: administrators create them, set their passwords and roles, and close them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import StoreError
from surefoot.server.pages.access import SiteAdmin, pages_of
from surefoot.server.pages.forms import CheckedForm, Form
from surefoot.server.pages.render import done, show, twin
from surefoot.server.store.accounts import Role, User

router = APIRouter()

ROLES: tuple[Role, ...] = ("annotator", "viewer", "admin")


@twin(router, "/people")
def people(request: Request, visitor: SiteAdmin) -> Response:
    """All accounts."""
    pages = pages_of(request)
    data = {"users": [_row(user) for user in pages.db.users.list()]}
    extra = {"roles": ROLES, "proxied": pages.settings.trusted_user_header is not None}
    return show(request, visitor, "people.html", data, extra=extra)


@router.post("/people")
def create(request: Request, visitor: SiteAdmin, form: CheckedForm) -> Response:
    """A new account; behind a sign-in proxy the password is optional."""
    pages, db = pages_of(request), pages_of(request).db
    without = pages.settings.trusted_user_header is not None and not form.data.get("password")
    password = None if without else _password(form)
    user = db.users.create(form.text("name", most=200), password, roles=(form.choice("role", ROLES),))
    db.projects.audit("account created", visitor.user_id, name=user.name)
    return done(request, "/people", {"user": _row(user)})


@router.post("/people/{user_id:number}")
def change(request: Request, visitor: SiteAdmin, user_id: int, form: CheckedForm) -> Response:
    """Set a password or a role, close or open the account; each ends the user's sessions."""
    db = pages_of(request).db
    user, what = db.users.get(user_id), form.text("what")
    if user.id == visitor.user_id and what != "password":
        raise StoreError(
            "you cannot change your own role or close your own account; ask another administrator"
        )
    if what == "password":
        db.users.set_password(user_id, _password(form))
    elif what == "role":
        db.users.set_roles(user_id, (form.choice("role", ROLES),))
    elif what in ("close", "open"):
        db.users.set_active(user_id, what == "open")
    else:
        raise StoreError("'what' must be password, role, close or open")
    db.projects.audit(f"account {what}", visitor.user_id, name=user.name)
    return done(request, "/people", {"user": _row(db.users.get(user_id))})


def _row(user: User) -> dict[str, object]:
    return {
        "id": user.id,
        "name": user.name,
        "roles": sorted(user.roles),
        "active": user.active,
        "created": user.created,
    }


def _password(form: Form) -> str:
    password = str(form.data.get("password", ""))
    if not 8 <= len(password) <= 1000:
        raise StoreError("'password' must have 8 to 1000 characters")
    return password
