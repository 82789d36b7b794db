"""Signing in and out: a cookie that scripts cannot read, new at each sign-in.

Wrong passwords are limited for each address, for each account and address, and, more slowly, for each account
over all addresses. A browser that has signed in to the account before has a separate limit, so that others
who guess cannot lock its owner out (OWASP's "device cookies").
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
from surefoot.server.gateway.access import client_address
from surefoot.server.pages.access import (
    DEVICE,
    SESSION,
    SIGN_IN,
    pages_of,
    proxied_user,
    signed_in,
    visitor_of,
)
from surefoot.server.pages.forms import Form, checked_form, read_form
from surefoot.server.pages.render import done, show
from surefoot.server.store.accounts import User
from surefoot.server.store.users import Bound, folded_name

router = APIRouter()

_SIGN_IN_BYTES: Final = 20_000
"""Body of a sign-in: it is read before anybody is known."""
_FORM_SECONDS: Final = 3600.0
_DEVICE_SECONDS: Final = 365 * 24 * 3600.0
_INVITATION_SECONDS: Final = 7 * 24 * 3600.0


@router.get("/sign-in")
def sign_in_page(request: Request) -> Response:
    """The form, or a session for the user whom the sign-in proxy names."""
    to, name = _local_path(request.query_params.get("next", "")), proxied_user(request)
    if name is None:
        return _sign_in_form(request, to)
    if visitor_of(request) is not None:
        return done(request, to)
    return _open_session(request, _proxied_account(request, name), to, proxied=True)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Check name and password, and open a new session whatever the cookie was before."""
    form = await read_form(request, _SIGN_IN_BYTES)
    return await run_in_threadpool(_sign_in, request, form)


def _sign_in(request: Request, form: Form) -> Response:
    pages = pages_of(request)
    if not pages.settings.passwords:
        raise HTTPException(403, "passwords are turned off here; sign in through the proxy")
    _require_own_form(request, form)
    name, password = form.text("name", most=200), str(form.data.get("password", ""))[:1000]
    to = _local_path(form.text("next", default="", most=2000))
    bounds, bound = _bounds(request, name)
    if wait := pages.db.sign_ins.start(*bounds):
        headers = {"Retry-After": str(int(wait) + 1)}
        raise HTTPException(429, "too many attempts to sign in; try again later", headers=headers)
    user = pages.db.users.sign_in(name, password)
    if user is None:
        pages.db.projects.audit("sign-in failed", None, None, name=name)
        return _sign_in_form(request, to, failed=True)
    pages.db.sign_ins.forget(bound)
    response = _open_session(request, user, to)
    device = pages.signer.sign("device", [folded_name(name), secrets.token_urlsafe(12)])
    pages.cookies.set(response, DEVICE, device, seconds=_DEVICE_SECONDS)
    return response


@router.get("/join")
def join_page(request: Request) -> Response:
    """The form of an invited person: a password, and they are signed in."""
    token = request.query_params.get("token", "")
    return _sign_in_form(request, "/", name=_invited(request, token).name, token=token)


@router.post("/join")
async def join(request: Request) -> Response:
    """Set the password, once, and open a session."""
    form = await read_form(request, _SIGN_IN_BYTES)
    return await run_in_threadpool(_join, request, form)


def _join(request: Request, form: Form) -> Response:
    _require_own_form(request, form)
    user = _invited(request, form.data.get("token"))
    pages_of(request).db.users.accept(user.id, str(form.data.get("password", "")))
    return _open_session(request, user, "/")


def _invited(request: Request, token: object) -> User:
    """The account of an invitation. Raises ``ForbiddenError`` if the link is wrong, old or used."""
    pages = pages_of(request)
    user_id = pages.signer.read("invitation", token, seconds=_INVITATION_SECONDS)
    if pages.settings.passwords and isinstance(user_id, int) and user_id in pages.db.users.invited():
        return pages.db.users.get(user_id)
    raise ForbiddenError("this link is wrong, has been used, or is older than a week; ask for a new one")


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


def _open_session(request: Request, user: User, to: str, *, proxied: bool = False) -> Response:
    """A redirect to the path ``to`` with a new session; one that the browser had before ends."""
    pages = pages_of(request)
    lifetime = timedelta(hours=pages.settings.session_hours)
    pages.db.users.end_session(pages.cookies.get(request, SESSION))
    token, _ = pages.db.users.open_session(user.id, lifetime=lifetime, proxied=proxied)
    pages.db.projects.audit("sign-in", user.id)
    response = done(request, to)
    pages.cookies.set(response, SESSION, token, seconds=lifetime.total_seconds())
    pages.cookies.delete(response, SIGN_IN)
    return response


def _local_path(to: str) -> str:
    """A path on this server to go to after signing in; anything else becomes the front page."""
    fine = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if fine else "/"


def _bounds(request: Request, name: str) -> tuple[list[Bound], Bound]:
    """The bounds that an attempt counts under, and the one that a right password clears."""
    pages, settings, name = pages_of(request), pages_of(request).settings, folded_name(name)

    def bound(key: str, times: int = 1) -> Bound:
        return Bound(key=key, most=times * settings.attempts, seconds=settings.attempt_seconds)

    device = pages.signer.read("device", pages.cookies.get(request, DEVICE), seconds=_DEVICE_SECONDS)
    if isinstance(device, list) and device[:1] == [name]:
        device_bound = bound(f"device {device}")
        return [device_bound], device_bound
    address = client_address(request.client.host if request.client else "unknown")
    pair = bound(f"pair {address} {name}")
    account = Bound(key=f"account {name}", most=settings.account_attempts, seconds=settings.account_seconds)
    return [pair, bound(f"address {address}", 5), account], pair


def _sign_in_form(request: Request, to: str, *, failed: bool = False, **invitation: str) -> Response:
    """The form with a secret: the browser's, which a cookie has, too, signed by this server."""
    pages, browser = pages_of(request), secrets.token_urlsafe(24)
    data = {"failed": failed, "passwords": pages.settings.passwords}
    extra = {"secret": pages.signer.sign("sign-in form", browser), "next": to, "invitation": invitation}
    response = show(request, None, "sign_in.html", data, status=401 if failed else 200, extra=extra)
    pages.cookies.set(response, SIGN_IN, browser, seconds=_FORM_SECONDS, samesite="strict")
    return response


def _require_own_form(request: Request, form: Form) -> None:
    """Raise 403 unless this server sent the form to this browser, and one of its pages sent it back.

    Otherwise another site could sign a visitor in to an attacker's account and watch their actions there.
    """
    pages = pages_of(request)
    browser = pages.cookies.get(request, SIGN_IN)
    if not browser:
        raise HTTPException(403, "the form has expired, or cookies are off; load the page again")
    sent_to = pages.signer.read("sign-in form", form.data.get("csrf"), seconds=_FORM_SECONDS)
    ours = isinstance(sent_to, str) and hmac.compare_digest(sent_to.encode(), browser.encode())
    # browsers say so themselves, on HTTPS and on this machine
    if not ours or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise HTTPException(403, "the form has expired or came from another page; load the page again")
