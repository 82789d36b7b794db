"""Signing in and out: a cookie that scripts cannot read, new at each sign-in.

A person signs in with a personal link, or through the sign-in proxy where there is one. The link's token is
behind its ``#``: a script puts it into the form, or its owner pastes it.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from surefoot.errors import ForbiddenError, NotFoundError
from surefoot.server.pages.page import SESSION, SIGN_IN, Page, proxied_user, visitor_of
from surefoot.server.store.accounts import User
from surefoot.server.store.database import Database

_FORM_SECONDS: Final = 3600.0


def sign_in_page(page: Page) -> Response:
    """The form, or a session for the user whom the sign-in proxy names."""
    to = _local_path(page.request.query_params.get("next", ""))
    name = proxied_user(page.request, page.settings)
    if name is None:
        return _sign_in_form(page, to)
    if visitor_of(page.request) is not None:
        return page.done(to)
    return _open_session(page, _proxied_account(page, name), to)


def sign_in(page: Page) -> Response:
    """Check the personal link, and open a new session whatever the cookie was before."""
    if page.settings.trusted_user_header is not None:
        raise HTTPException(403, "personal links are turned off here; sign in through the proxy")
    _require_own_form(page)
    to = _local_path(page.form.text("next", default="", most=2000))
    if wait := page.pages.sign_in_wait(page.request):
        headers = {"Retry-After": str(int(wait) + 1)}
        raise HTTPException(429, "too many attempts to sign in; try again later", headers=headers)
    user = page.db.users.by_link(page.form.text("link", most=1000).rpartition("#")[2])
    if user is None:
        page.db.projects.audit("sign-in failed", None)
        return _sign_in_form(page, to, failed=True)
    return _open_session(page, user, to)


def sign_out(page: Page) -> Response:
    """End the session on the server as well."""
    replace(page, visitor=visitor_of(page.request)).check_secret()
    page.db.users.end_session(page.cookie(SESSION))
    response = page.done("/sign-in")
    page.pages.delete_cookie(response, SESSION)
    return response


def personal_link(db: Database, user_id: int) -> str:
    """The path of a new personal link, at which its owner signs in; the link before ends.

    Browsers send what stands behind ``#`` to no server, so neither a log nor a referrer has the token.
    """
    return f"/sign-in#{db.users.new_link(user_id)}"


def _proxied_account(page: Page, name: str) -> User:
    role = page.settings.trusted_user_role
    try:
        user = page.db.users.by_name(name)
    except NotFoundError:
        if role is None:
            raise ForbiddenError(
                f"you do not have an account here; an administrator can create one named '{name}'"
            ) from None
        user = page.db.users.create(name, role)
        page.db.projects.audit("account created", user.id, name=user.name)
    if not user.active:
        raise ForbiddenError("your account is closed")
    return user


def _open_session(page: Page, user: User, to: str) -> Response:
    """A redirect to the path ``to`` with a new session; one that the browser had before ends."""
    lifetime = timedelta(hours=page.settings.session_hours)
    page.db.users.end_session(page.cookie(SESSION))
    token, _ = page.db.users.open_session(user.id, lifetime=lifetime)
    page.db.projects.audit("sign-in", user.id)
    response = page.done(to)
    page.pages.set_cookie(response, SESSION, token, seconds=lifetime.total_seconds())
    page.pages.delete_cookie(response, SIGN_IN)
    return response


def _local_path(to: str) -> str:
    """A path on this server to go to after signing in; anything else becomes the front page."""
    fine = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if fine else "/"


def _sign_in_form(page: Page, to: str, *, failed: bool = False) -> Response:
    """The form with a secret of the browser's, which a cookie has, too."""
    secret = secrets.token_urlsafe(24)
    data = {"failed": failed, "links": page.settings.trusted_user_header is None}
    response = page.show("sign_in.html", data, status=401 if failed else 200, secret=secret, next=to)
    page.pages.set_cookie(response, SIGN_IN, secret, seconds=_FORM_SECONDS, samesite="strict")
    return response


def _require_own_form(page: Page) -> None:
    """Raise 403 unless this server sent the form to this browser, and one of its pages sent it back.

    Otherwise another site could sign a visitor in to an attacker's account and watch their actions there.
    """
    secret = page.cookie(SIGN_IN)
    if not secret:
        raise HTTPException(403, "the form has expired, or cookies are off; load the page again")
    ours = hmac.compare_digest(page.form.sent("csrf"), secret.encode())
    # browsers state the origin themselves, on HTTPS and on localhost
    if not ours or page.request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise HTTPException(403, "the form has expired or came from another page; load the page again")
