"""Signing in and out: a cookie that scripts cannot read, new at each sign-in; wrong passwords are limited
for each account and address, so that guessing from one place does not lock the owner out elsewhere."""

from __future__ import annotations

import secrets
from datetime import timedelta

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from surefoot.annotation.pages.access import Pages, cookie_name, pages_of, signed_in
from surefoot.annotation.pages.forms import checked_form, read_form, require_secret
from surefoot.annotation.pages.render import done, show
from surefoot.gateway.connections import client_address

router = APIRouter()

_SIGN_IN_BYTES = 20_000
"""Body of a sign-in: it is read before anybody is known."""
_SIGN_IN_COOKIE = "surefoot_sign_in"
"""Secret of the sign-in form, for which there is no session yet."""


@router.get("/sign-in")
def sign_in_page(request: Request) -> Response:
    """The form."""
    return _sign_in_form(request, _local(request.query_params.get("next", "")))


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Check name and password, and open a new session whatever the cookie was before."""
    pages = pages_of(request)
    form = await read_form(request, _SIGN_IN_BYTES)
    secret = request.cookies.get(_SIGN_IN_COOKIE)
    if not secret:
        raise HTTPException(403, "the form has expired, or cookies are off; load the page again")
    require_secret(form.data.get("csrf"), secret)
    name, password = form.text("name", most=200), str(form.data.get("password", ""))[:1000]
    address = client_address(request.client.host if request.client else "unknown")
    pair = f"{address} {name}"
    wait = pages.attempts.start(address, 5) or pages.attempts.start(pair)
    if wait > 0:
        raise HTTPException(
            429, "too many wrong passwords; try again later", headers={"Retry-After": str(int(wait) + 1)}
        )
    token = await run_in_threadpool(_open, pages, name, password, request.cookies.get(cookie_name(pages)))
    to = _local(form.text("next", default="", most=2000))
    if token is None:
        return _sign_in_form(request, to, failed=True)
    pages.attempts.succeeded(pair)
    return _signed_in(request, token, to)


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session on the server as well."""
    pages = pages_of(request)
    visitor = await run_in_threadpool(signed_in, request)
    await checked_form(request, visitor)
    await run_in_threadpool(pages.db.users.end_session, request.cookies.get(cookie_name(pages), ""))
    response = done(request, "/sign-in")
    response.delete_cookie(cookie_name(pages), path="/", secure=pages.settings.secure, httponly=True)
    return response


def _open(pages: Pages, name: str, password: str, before: str | None) -> str | None:
    user = pages.db.users.sign_in(name, password)
    if user is None:
        pages.db.projects.audit("sign-in failed", None, None, name=name)
        return None
    if before:
        pages.db.users.end_session(before)
    token, _ = pages.db.users.open_session(user.id, lifetime=timedelta(hours=pages.settings.session_hours))
    pages.db.projects.audit("sign-in", user.id)
    return token


def _signed_in(request: Request, token: str, to: str) -> Response:
    settings = pages_of(request).settings
    response = done(request, to)
    response.set_cookie(
        cookie_name(pages_of(request)),
        token,
        max_age=int(settings.session_hours * 3600),
        path="/",
        httponly=True,
        samesite="lax",
        secure=settings.secure,
    )
    response.delete_cookie(_SIGN_IN_COOKIE, path="/")
    return response


def _sign_in_form(request: Request, to: str, *, failed: bool = False) -> Response:
    secret = secrets.token_urlsafe(24)
    response = show(
        request,
        None,
        "sign_in.html",
        {"failed": failed},
        status=401 if failed else 200,
        extra={"secret": secret, "next": to},
    )
    secure = pages_of(request).settings.secure
    response.set_cookie(
        _SIGN_IN_COOKIE, secret, max_age=3600, path="/", httponly=True, samesite="strict", secure=secure
    )
    return response


def _local(to: str) -> str:
    """A path on this server to go to after signing in; anything else becomes the list of projects."""
    fine = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if fine else "/projects"
