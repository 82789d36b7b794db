"""Signing in and out: a cookie that scripts cannot read, new at each sign-in.

A person signs in with a personal link, or through the sign-in proxy where there is one. The link's token is
behind its ``#``: a script puts it into the form, or its owner pastes it.
"""

from __future__ import annotations

import hmac
import secrets
from datetime import timedelta
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.security import SecurityScopes
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from surefoot.errors import ForbiddenError, NotFoundError
from surefoot.server.pages.access import SESSION, SIGN_IN, pages_of, proxied_user, signed_in, visitor_of
from surefoot.server.pages.forms import Form, checked_form, read_form
from surefoot.server.pages.render import done, show
from surefoot.server.store.accounts import User

router = APIRouter()

_SIGN_IN_BYTES: Final = 20_000
"""Body of a sign-in: it is read before anybody is known."""
_FORM_SECONDS: Final = 3600.0


@router.get("/sign-in")
def sign_in_page(request: Request) -> Response:
    """The form, or a session for the user whom the sign-in proxy names."""
    to, name = _local_path(request.query_params.get("next", "")), proxied_user(request)
    if name is None:
        return _sign_in_form(request, to)
    if visitor_of(request) is not None:
        return done(request, to)
    return _open_session(request, _proxied_account(request, name), to)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Check the personal link, and open a new session whatever the cookie was before."""
    form = await read_form(request, _SIGN_IN_BYTES)
    return await run_in_threadpool(_sign_in, request, form)


def _sign_in(request: Request, form: Form) -> Response:
    pages = pages_of(request)
    if pages.settings.trusted_user_header is not None:
        raise HTTPException(403, "personal links are turned off here; sign in through the proxy")
    _require_own_form(request, form)
    to = _local_path(form.text("next", default="", most=2000))
    if wait := pages.sign_in_wait(request):
        headers = {"Retry-After": str(int(wait) + 1)}
        raise HTTPException(429, "too many attempts to sign in; try again later", headers=headers)
    user = pages.db.users.by_link(form.text("link", most=1000).rpartition("#")[2])
    if user is None:
        pages.db.projects.audit("sign-in failed", None)
        return _sign_in_form(request, to, failed=True)
    return _open_session(request, user, to)


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session on the server as well."""
    pages = pages_of(request)
    visitor = await run_in_threadpool(signed_in, request, SecurityScopes())
    await checked_form(request, visitor)
    await run_in_threadpool(pages.db.users.end_session, pages.cookies.get(request, SESSION))
    response = done(request, "/sign-in")
    pages.cookies.delete(response, SESSION)
    return response


def _proxied_account(request: Request, name: str) -> User:
    pages = pages_of(request)
    role = pages.settings.trusted_user_role
    try:
        user = pages.db.users.by_name(name)
    except NotFoundError:
        if role is None:
            raise ForbiddenError(
                f"you do not have an account here; an administrator can create one named '{name}'"
            ) from None
        user = pages.db.users.create(name, roles=(role,))
        pages.db.projects.audit("account created", user.id, name=user.name)
    if not user.active:
        raise ForbiddenError("your account is closed")
    return user


def _open_session(request: Request, user: User, to: str) -> Response:
    """A redirect to the path ``to`` with a new session; one that the browser had before ends."""
    pages = pages_of(request)
    lifetime = timedelta(hours=pages.settings.session_hours)
    pages.db.users.end_session(pages.cookies.get(request, SESSION))
    token, _ = pages.db.users.open_session(user.id, lifetime=lifetime)
    pages.db.projects.audit("sign-in", user.id)
    response = done(request, to)
    pages.cookies.set(response, SESSION, token, seconds=lifetime.total_seconds())
    pages.cookies.delete(response, SIGN_IN)
    return response


def _local_path(to: str) -> str:
    """A path on this server to go to after signing in; anything else becomes the front page."""
    fine = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if fine else "/"


def _sign_in_form(request: Request, to: str, *, failed: bool = False) -> Response:
    """The form with a secret of the browser's, which a cookie has, too."""
    pages, secret = pages_of(request), secrets.token_urlsafe(24)
    data = {"failed": failed, "links": pages.settings.trusted_user_header is None}
    extra = {"secret": secret, "next": to}
    response = show(request, None, "sign_in.html", data, status=401 if failed else 200, extra=extra)
    pages.cookies.set(response, SIGN_IN, secret, seconds=_FORM_SECONDS, samesite="strict")
    return response


def _require_own_form(request: Request, form: Form) -> None:
    """Raise 403 unless this server sent the form to this browser, and one of its pages sent it back.

    Otherwise another site could sign a visitor in to an attacker's account and watch their actions there.
    """
    secret, sent = pages_of(request).cookies.get(request, SIGN_IN), str(form.data.get("csrf", ""))
    if not secret:
        raise HTTPException(403, "the form has expired, or cookies are off; load the page again")
    ours = hmac.compare_digest(sent.encode("utf-8", "replace"), secret.encode())
    # browsers say so themselves, on HTTPS and on this machine
    if not ours or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise HTTPException(403, "the form has expired or came from another page; load the page again")
