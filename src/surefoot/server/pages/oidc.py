"""Signing in with an identity provider, and whose account that opens.

An account belongs to a user of the provider by issuer and subject, which an administrator can enter before
the first sign-in. A name never opens one, nor does an e-mail address, unless ``match_email`` asks for it and
the provider has verified it.
"""

from __future__ import annotations

import hmac
from dataclasses import asdict
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from surefoot.errors import ForbiddenError, NotFoundError, StoreError
from surefoot.server.pages.access import Pages, pages_of
from surefoot.server.pages.cookies import PROVIDER
from surefoot.server.pages.provider import Provider, ProviderError, Question
from surefoot.server.pages.render import HEADERS
from surefoot.server.pages.session import address_bound, local_path, open_session, refuse_to_wait
from surefoot.server.pages.settings import PageRole
from surefoot.server.store.accounts import User
from surefoot.server.store.sign_ins import Bound

router = APIRouter()

_ANSWER_SECONDS: Final = 600.0
"""How long somebody may take to sign in at the provider."""


@router.get("/sign-in/provider")
def ask(request: Request) -> Response:
    """To the provider. A signed cookie has the question, so the answer is of use to this browser alone."""
    pages, question = pages_of(request), Question.new()
    provider = _provider(pages)
    refuse_to_wait(pages.db.sign_ins.start(address_bound(request)))
    response = _redirect(provider.authorization_url(question))
    asked = {**asdict(question), "next": local_path(request.query_params.get("next", ""))}
    pages.cookies.set(response, PROVIDER, pages.signer.sign("provider", asked), seconds=_ANSWER_SECONDS)
    return response


@router.get("/sign-in/callback")
def answer(request: Request) -> Response:
    """Back from the provider: check its answer, and open a session of the account."""
    pages = pages_of(request)
    provider = _provider(pages)
    asked = pages.signer.read("provider", pages.cookies.get(request, PROVIDER), seconds=_ANSWER_SECONDS)
    if not isinstance(asked, dict):
        raise ProviderError("the sign-in took too long, or cookies are off; sign in again")
    to = asked.pop("next")
    question = Question(**asked)
    state = request.query_params.get("state", "")
    if hmac.compare_digest(state.encode("utf-8", "replace"), question.state.encode()):
        # each answer is good for once
        wait = pages.db.sign_ins.start(Bound(key=f"state {state}", most=1, seconds=_ANSWER_SECONDS))
        if wait > 0:
            raise ProviderError("this answer of the identity provider was used before; sign in again")
    try:
        user = account_of(pages, provider, provider.claims(dict(request.query_params), question))
    except (ProviderError, StoreError) as error:
        pages.db.projects.audit("sign-in failed", None, None, reason=str(error)[:500])
        raise
    response = open_session(request, user, to)
    pages.cookies.delete(response, PROVIDER)
    return response


@router.get("/sign-out/provider")
def sign_out_there(request: Request) -> Response:
    """To the provider's own page for signing out, which comes back to the sign-in page."""
    pages = pages_of(request)
    provider, back = _provider(pages), f"{pages.settings.public_url}/sign-in"
    return _redirect(provider.sign_out_url(back) or back)


def account_of(pages: Pages, provider: Provider, claims: dict[str, Any]) -> User:
    """The account of the provider's user, made if the settings say so.

    Raises ``ForbiddenError``, in words for the user, if there is none or it is closed, or without a role.
    """
    users, subject = pages.db.users, str(claims["sub"])
    user = users.by_identity(provider.issuer, subject) or _by_email(pages, provider, claims)
    roles = _roles(provider, claims, new=user is None)
    whose = f"subject '{subject}' of {provider.issuer}"
    if user is None:
        if not roles:
            raise ForbiddenError(f"you have no account here; an administrator can make one for {whose}")
        try:
            user = users.create(_name(claims), roles=roles, identity=(provider.issuer, subject))
        except StoreError as error:
            raise ForbiddenError(
                f"no account could be made: {error}; an administrator can make one for {whose}"
            ) from error
        pages.db.projects.audit("account created", user.id, name=user.name, subject=subject)
    if not user.active:
        raise ForbiddenError("your account is closed")
    if provider.settings.roles_claim is not None and not roles:
        raise ForbiddenError("the identity provider gives you no role here")
    if provider.settings.roles_claim is not None and roles != user.roles:
        user = users.set_roles(user.id, roles)
        pages.db.projects.audit("account role", user.id, name=user.name, roles=sorted(roles))
    return user


def _by_email(pages: Pages, provider: Provider, claims: dict[str, Any]) -> User | None:
    """The account whose name is the verified address, if it is asked for and belongs to nobody else yet."""
    email = claims.get("email")
    verified = isinstance(email, str) and claims.get("email_verified") is True
    if not provider.settings.match_email or not verified:
        return None
    try:
        user = pages.db.users.by_name(str(email))
    except NotFoundError:
        return None
    if any(one.user_id == user.id and one.issuer == provider.issuer for one in pages.db.users.identities()):
        return None
    pages.db.users.link(user.id, provider.issuer, str(claims["sub"]))
    pages.db.projects.audit("account link", user.id, name=user.name, subject=str(claims["sub"]))
    return user


def _roles(provider: Provider, claims: dict[str, Any], *, new: bool) -> frozenset[PageRole]:
    """The roles that the claim gives; where it gives none, and for new accounts without one, the default."""
    settings = provider.settings
    known = settings.roles_by_value
    said = _claim(claims, settings.roles_claim) if settings.roles_claim is not None else []
    values = said if isinstance(said, list) else [said]
    roles = frozenset(known[value] for value in values if isinstance(value, str) and value in known)
    default = settings.role if settings.roles_claim is not None or new else None
    return roles or frozenset([default] if default is not None else [])


def _claim(claims: dict[str, Any], name: str) -> Any:
    """A claim; ``a.b`` is also the field ``b`` of the claim ``a``."""
    if name in claims:
        return claims[name]
    outer, _, inner = name.partition(".")
    found = claims.get(outer)
    return _claim(found, inner) if inner and isinstance(found, dict) else None


def _name(claims: dict[str, Any]) -> str:
    """What a new account is called."""
    names = (claims.get("preferred_username"), claims.get("name"), claims.get("email"))
    return next((one.strip() for one in names if isinstance(one, str) and one.strip()), str(claims["sub"]))


def _provider(pages: Pages) -> Provider:
    if pages.provider is None:
        raise HTTPException(404, "this server signs nobody in with an identity provider")
    return pages.provider


def _redirect(to: str) -> Response:
    return RedirectResponse(to, status_code=303, headers=HEADERS)
