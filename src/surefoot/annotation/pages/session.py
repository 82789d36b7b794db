"""Signing in and out: a cookie that scripts cannot read, a new one at each sign-in, few wrong passwords."""

from __future__ import annotations

import secrets
from datetime import timedelta

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from surefoot.annotation.pages.context import Pages, pages_of
from surefoot.annotation.pages.forms import checked_form, read_form, require_secret
from surefoot.annotation.pages.render import done, show
from surefoot.annotation.pages.visitors import cookie_name, signed_in

router = APIRouter()

_DOOR_COOKIE = "surefoot_door"
"""Secret of the sign-in form, for which there is no session yet."""


@router.get("/sign-in")
def sign_in_page(request: Request) -> Response:
    """The form."""
    return _sign_in_form(request, _local(request.query_params.get("next", "")))


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Check name and password; a new session, whatever the cookie held before."""
    pages = pages_of(request)
    form = await read_form(request)
    door = request.cookies.get(_DOOR_COOKIE)
    if not door:
        raise HTTPException(403, "the form has expired, or cookies are off; load the page again")
    require_secret(form.data.get("csrf"), door)
    name, password = form.text("name", most=200), str(form.data.get("password", ""))[:1000]
    address = request.client.host if request.client else "unknown"
    wait = max(pages.attempts.start(f"name {name}"), pages.attempts.start(f"address {address}", 5))
    if wait > 0:
        raise HTTPException(
            429, "too many wrong passwords; wait a little", headers={"Retry-After": str(int(wait) + 1)}
        )
    token = await run_in_threadpool(_open, pages, name, password, request.cookies.get(cookie_name(pages)))
    to = _local(form.text("next", default="", most=2000))
    if token is None:
        return _sign_in_form(request, to, failed=True)
    pages.attempts.succeeded(f"name {name}")
    return _signed_in(request, token, to)


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session on the server, too."""
    pages = pages_of(request)
    visitor = await run_in_threadpool(signed_in, request)
    await checked_form(request, visitor)
    await run_in_threadpool(pages.db.users.end_session, request.cookies.get(cookie_name(pages), ""))
    answer = done(request, "/sign-in")
    answer.delete_cookie(cookie_name(pages), path="/", secure=pages.settings.secure, httponly=True)
    return answer


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
    answer = done(request, to)
    answer.set_cookie(
        cookie_name(pages_of(request)),
        token,
        max_age=int(settings.session_hours * 3600),
        path="/",
        httponly=True,
        samesite="lax",
        secure=settings.secure,
    )
    answer.delete_cookie(_DOOR_COOKIE, path="/")
    return answer


def _sign_in_form(request: Request, to: str, *, failed: bool = False) -> Response:
    door = secrets.token_urlsafe(24)
    answer = show(
        request,
        None,
        "sign_in.html",
        {"failed": failed},
        status=401 if failed else 200,
        extra={"door": door, "next": to},
    )
    secure = pages_of(request).settings.secure
    answer.set_cookie(
        _DOOR_COOKIE, door, max_age=3600, path="/", httponly=True, samesite="strict", secure=secure
    )
    return answer


def _local(to: str) -> str:
    """A path on this server to go on to after signing in; anything else leads to the projects."""
    fine = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if fine else "/projects"
