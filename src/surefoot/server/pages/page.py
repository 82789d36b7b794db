"""A request for a page: who sends it, in which project, with which form, and how it is answered.

The table of runs, requests and reports has one filter box, and only columns with data. A filter is words and
terms, such as ``outcome:wrong error:3.. prm<0.2 tool:refund "in quotes"``.
"""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlencode

from pydantic import ValidationError
from pydantic_core import from_json, to_json
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, QueryParams, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles as FolderApp
from starlette.types import Scope

from surefoot.errors import (
    ConflictError,
    ExpiredKeyError,
    ForbiddenError,
    NotFoundError,
    StoreError,
    SurefootError,
    UnavailableError,
    unknown,
)
from surefoot.server.gateway.access import Route, address_in
from surefoot.server.gateway.changes import ChangeChart
from surefoot.server.gateway.errors import invalid
from surefoot.server.gateway.settings import PageSettings
from surefoot.server.logs import AUDIT
from surefoot.server.pages.mathematics import page_budget
from surefoot.server.pages.render import FOLDER, HEADERS, templates
from surefoot.server.permissions import Action, Principal, Role, allowed, role_in
from surefoot.server.store.accounts import Project, Protocol, User
from surefoot.server.store.database import Database
from surefoot.server.store.schema import checked_text, json_text

S = TypeVar("S", bound=str)
SESSION: Final = "surefoot_session"
"""The token of a session, which is random, and stored as a hash."""
_OPEN_FORM_BYTES: Final = 20_000
"""Largest body of a form without sign-in: it is read before the user is known."""
_LONGEST_QUERY: Final = 1000
"""Characters of a query that survive signing in."""
_LOG = logging.getLogger("surefoot.server")
MAX_FIELDS = 400
"""Fields of one form."""
_MILLISECONDS = 24 * 3600 * 1000
LABEL_VALUES: tuple[Literal[-1, 0, 1], ...] = (-1, 0, 1)
_LABELS: Mapping[str, Literal[-1, 0, 1]] = {str(value): value for value in LABEL_VALUES}
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form or a query. Its methods raise ``StoreError`` naming the field."""

    data: FormData | QueryParams

    def text(self, name: str, *, default: str | None = None, most: int = 20_000) -> str:
        """A text field, without the spaces around it."""
        value = self.data.get(name, default)
        if not isinstance(value, str):
            raise StoreError(f"the field '{name}' is missing")
        value = value.replace("\r\n", "\n").strip()
        if len(value) > most:
            raise StoreError(f"'{name}' has {len(value)} characters; the limit is {most}")
        return checked_text(name, value)

    def optional(self, name: str, *, most: int = 20_000) -> str | None:
        """A text field; ``None`` if it is empty or absent."""
        return self.text(name, default="", most=most) or None

    def id(self, name: str) -> str | None:
        """An id, unchanged, with any surrounding spaces; ``None`` if it is empty or absent."""
        value = self.data.get(name, "")
        if not isinstance(value, str) or len(value) > 500 or "\0" in value:
            raise StoreError(f"'{name}' is longer than 500 characters or contains NUL")
        return value or None

    def ids(self, name: str, *, exactly: int | None = None) -> list[str]:
        """Ids that are sent one by one. Raises ``StoreError`` if there are none, or not ``exactly`` many."""
        values = [value for value in self.data.getlist(name) if isinstance(value, str) and "\0" not in value]
        if not values:
            raise StoreError("nothing is selected; tick at least one row")
        if exactly not in (None, len(values)):
            raise StoreError(f"choose {exactly} rows, not {len(values)}")
        return values

    def required_id(self, name: str) -> str:
        """A required id. Raises ``NotFoundError`` if it is empty or absent."""
        value = self.id(name)
        if value is None:
            raise NotFoundError(f"the address lacks '{name}'")
        return value

    def whole(self, name: str) -> int:
        """A whole number of at most 15 digits, which a column and a script can hold."""
        text = self.text(name, most=20)
        if not _WHOLE.fullmatch(text):
            raise StoreError(f"'{name}' must be a whole number of at most 15 digits, not {text!r}")
        return int(text)

    def natural(self, name: str, *, default: int = 0) -> int:
        """A whole number of at most 9 digits, not negative; ``default`` if the field is empty."""
        number = default if self.optional(name, most=9) is None else self.whole(name)
        if number < 0:
            raise StoreError(f"'{name}' must be a whole number, not {number}")
        return number

    def number(self, name: str) -> float | None:
        """A finite number as people type it; ``None`` if the field is empty. The caller checks its range."""
        text = self.optional(name, most=40)
        return None if text is None else _number(name, text)

    def value(self, name: str) -> Literal[-1, 0, 1]:
        """A label: -1, 0 or 1."""
        return _LABELS[self.choice(name, _LABELS)]

    def choice(self, name: str, options: Iterable[S], *, default: str | None = None) -> S:
        """One of ``options``; ``default`` if the field is empty."""
        options, text = list(options), self.text(name, default=default) or default
        for option in options:
            if option == text:
                return option
        raise StoreError(f"'{name}' must be one of {', '.join(options)}")

    def milliseconds(self, name: str = "milliseconds") -> int | None:
        """A time measured by the page; ``None`` without scripts, and for anything that is not a time."""
        text = self.optional(name, most=20)
        if text is None or not text.isascii() or not text.isdigit():
            return None
        return int(text) if int(text) < _MILLISECONDS else None

    def ticked(self, name: str) -> bool:
        """A checkbox."""
        return name in self.data

    def files(self) -> list[UploadFile]:
        """The uploads of all fields."""
        values = (value for _, value in self.data.multi_items())
        return [value for value in values if isinstance(value, UploadFile) and value.filename]


async def read_form(request: Request, most: int, *, part: int, files: int) -> Form:
    """Parse a body of at most ``most`` bytes, with fields of at most ``part``, and so many ``files``.

    Raises ``HTTPException`` 413, 411 or 400. Call it with more than a little only for those who may send it.
    """
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(411, "send the form's Content-Length")
    if int(length) > most:
        raise HTTPException(413, f"the form has {length} bytes; the limit is {most}")
    try:
        data = await request.form(max_files=files, max_fields=MAX_FIELDS, max_part_size=part)
    except (MultiPartException, HTTPException, UnicodeDecodeError, ValueError) as error:
        raise HTTPException(400, "the form cannot be read: too many fields, or not a form") from error
    return Form(data=data)


def protocol_with(before: Protocol, **changes: Any) -> Protocol:
    """``before`` with checked changes. Raises ``StoreError`` naming the field."""
    try:
        return Protocol.model_validate({**before.model_dump(), **changes})
    except ValidationError as error:
        raise StoreError(invalid(error.errors()).message) from error


class Pages:
    """State of the pages app; ``request.app.state.pages``."""

    def __init__(
        self, db: Database, settings: PageSettings, rng: random.Random | None, monitor: ChangeChart | None
    ) -> None:
        self.db, self.settings, self.monitor = db, settings, monitor
        self.rng = rng or random.SystemRandom()

    @property
    def cookie(self) -> str:
        """Name of the session's cookie. Secure cookies travel over HTTPS only, and browsers accept them from
        this very host alone: a sibling domain cannot plant a cookie whose name begins with ``__Host-``."""
        return f"__Host-{SESSION}" if self.settings.secure else SESSION

    def set_session(self, response: Response, token: str, seconds: float) -> None:
        """Set the session's cookie, which scripts cannot read, for so many seconds; 0 deletes it."""
        about: dict[str, Any] = {"secure": self.settings.secure, "httponly": True, "samesite": "lax"}
        response.set_cookie(self.cookie, token, max_age=int(seconds), **about)


class SignInNeeded(Exception):  # noqa: N818 - not an error: the response is the sign-in page
    """Signing in is required: pages redirect to the sign-in form, programs get 401."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A request for a page."""

    request: Request
    pages: Pages
    visitor: Principal | None = None
    """The author of the request, if known."""
    opened: Project | None = None
    """The project of the address."""
    role: Role | None = None
    """The visitor's role there."""
    form: Form

    @property
    def db(self) -> Database:
        """The database."""
        return self.pages.db

    @property
    def settings(self) -> PageSettings:
        """Settings of the pages."""
        return self.pages.settings

    @property
    def query(self) -> Form:
        """The parameters of the address."""
        return Form(data=self.request.query_params)

    def fields(self, *names: str) -> dict[str, str]:
        """The parameters of the address that are not empty, of some names."""
        return {name: value for name in names if (value := self.query.id(name))}

    def link(self, *without: str, **changes: Any) -> str:
        """The query of this address with some parameters changed, and others left out."""
        sent = self.request.query_params.multi_items()
        unchanged = [(name, value) for name, value in sent if name not in without and name not in changes]
        return "?" + urlencode([*unchanged, *changes.items()])

    @property
    def root(self) -> str:
        """Prefix of every path if the pages are mounted below the root."""
        return str(self.request.scope.get("root_path", ""))

    @property
    def actor(self) -> Principal:
        """The author of the request. Raises ``SignInNeeded`` if they are unknown."""
        if self.visitor is None:
            raise SignInNeeded
        return self.visitor

    @property
    def project(self) -> Project:
        """The project of the address."""
        assert self.opened is not None  # noqa: S101 - for the type checker
        return self.opened

    @property
    def id(self) -> int:
        """Number of the project."""
        return self.project.id

    @property
    def user_id(self) -> int:
        """The user who acts. Raises ``ForbiddenError`` for a key."""
        if self.actor.user_id is None:
            raise ForbiddenError("this is for people who sign in; a key belongs to nobody")
        return self.actor.user_id

    def enter(self, project_id: int, action: Action = "enter") -> Page:
        """The page in a project. Raises as ``allowed`` does."""
        role = allowed(self.actor, action, project_id)
        return replace(self, opened=self.db.projects.get(project_id), role=role)

    def projects(self) -> list[tuple[Project, Role]]:
        """The projects that ``enter`` opens for the visitor, but archived ones, with their role there."""
        everywhere = self.actor.user_id is None or self.actor.role == "admin"
        projects = self.db.projects.list(None if everywhere else self.actor.user_id)
        roles = ((project, role_in(self.actor, project.id)) for project in projects)
        return [(project, role) for project, role in roles if role is not None]

    def first_place(self) -> Page | None:
        """The visitor's first project; ``None`` without any."""
        projects = self.projects()
        return self.enter(projects[0][0].id) if projects else None

    def audit(self, action: str, *, user: str = "", project: int | None = None, **detail: Any) -> None:
        """Log what the visitor did (or ``user``, who signs in), in the project of the address (or the new
        ``project``), as a line of JSON; ``detail`` replaces neither, and must hold no secret."""
        by: dict[str, Any] = {"action": action, "project": self.id if self.opened else project}
        if (actor := self.visitor) is None or actor.user_id is not None:
            by["user"] = actor.name if actor else user
        else:
            by |= {"key": actor.name, "key_id": actor.key_id}
        AUDIT.info(json_text({**by, **detail, **by}))

    @property
    def session(self) -> str:
        """The token of the session; empty if there is none."""
        return self.request.cookies.get(self.pages.cookie, "")

    def show(self, template: str, data: Mapping[str, Any], *, status: int = 200, **extra: Any) -> Response:
        """The page, or its JSON twin. ``extra`` is for the template alone: tokens, choices, drawings."""
        project_page, visitor = self if self.opened else None, self.visitor
        content = plain(data)
        if project_page is not None:
            content = {"project": {"id": self.id, "name": self.project.name}, **content}
        if wants_json(self.request):
            return JSONResponse(content, status_code=status, headers=HEADERS)
        reads_all = visitor is not None and visitor.may("read")
        context = {
            "rail": project_page or (visitor and self.first_place()),
            "waiting_calls": self.db.held_calls.count()["waiting"] if reads_all else 0,
            **{"visitor": visitor, "place": project_page, "reads_all": reads_all, "status": status},
            **{"root": self.root, "here": self.request.url.path, "query": self.request.url.query},
        }
        with page_budget():
            text = templates().get_template(template).render(data=content, **context, **extra)
        return HTMLResponse(text, status_code=status, headers=HEADERS)

    def done(self, to: str, data: Mapping[str, Any] | None = None) -> Response:
        """Response to a form: a redirect (303), so that a reload sends nothing twice. A program gets
        ``data``."""
        if wants_json(self.request):
            return JSONResponse(plain(data or {}), headers=HEADERS)
        return RedirectResponse(self.root + to, status_code=303, headers=HEADERS)


def page_endpoint(route: Route, pages: Pages) -> Callable[[Request], Awaitable[Response]]:
    """The handler of a route: it checks the visitor's permissions, reads the form, then builds the page."""

    def opened(request: Request) -> Page:
        proxied_user(request, pages.settings)  # refuses a forged header
        page = Page(request=request, pages=pages, form=Form(data=request.query_params))
        if route.action is None:
            require_own(request)
            return page
        page = replace(page, visitor=visitor_of(request))
        if (project_id := request.path_params.get("project_id")) is not None:
            return page.enter(project_id, route.action)
        allowed(page.actor, route.action)
        return page

    async def answer(request: Request) -> Response:
        request.scope["route"] = route
        page = await run_in_threadpool(opened, request)
        ids = {name: value for name, value in request.path_params.items() if name != "project_id"}
        if route.method == "GET":
            return await run_in_threadpool(route.function, page, **ids)
        settings = pages.settings
        most = settings.max_upload_bytes if route.files else settings.max_form_bytes
        most = _OPEN_FORM_BYTES if route.action is None else most
        form = await read_form(request, most, part=settings.max_form_bytes, files=route.files)
        page = replace(page, form=form)
        try:
            return await run_in_threadpool(route.function, page, **ids)
        finally:
            await request.close()  # uploaded files

    return answer


def require_own(request: Request) -> None:
    """Raise 403 unless a page of this server sends the form, as the browser itself states in a header.

    ``Sec-Fetch-Site`` says so over HTTPS and on localhost, ``Origin`` everywhere; no script can set them.
    Otherwise another site could use a visitor's session or proxy, or sign them in to an attacker's account.
    It may link to a page that changes nothing, but not load it as a picture or by a script.
    """
    site, host = request.headers.get("sec-fetch-site"), request.headers.get("host", "").lower()
    if request.method == "GET":
        route: Route | None = request.scope.get("route")
        is_link = request.headers.get("sec-fetch-mode") == "navigate" and not (route and route.changes)
        if site == "cross-site" and not is_link:
            raise HTTPException(403, "another site asks for this page; open it from a page of this server")
        return
    is_own = site in ("same-origin", "none")
    if site is None:
        is_own = request.headers.get("origin", "").partition("://")[2].lower() == host != ""
    if not is_own:
        raise HTTPException(403, "the form came from another page, or a proxy does not pass 'Host' on")


def visitor_of(request: Request) -> Principal | None:
    """The visitor, by API key, session or the sign-in proxy's header; ``None`` = unknown.

    Raises ``ForbiddenError`` for a closed or missing account of the proxy's user, and as ``require_own``.
    """
    pages: Pages = request.app.state.pages
    db, sent = pages.db, bearer_key(request)
    if sent is not None:
        key = db.keys.authenticate(sent)
        if key is None or key.role == "client":
            return None
        return Principal(name=key.name, role=key.role, key_id=key.id, only_project=key.project_id)
    name, user = proxied_user(request, pages.settings), None
    if pages.settings.trusted_user_header is None:
        user = db.users.session(request.cookies.get(pages.cookie, ""))
    if name is None and user is None:
        return None
    require_own(request)  # before an account is made
    user = user or _proxied_account(db, pages.settings, name or "")

    def member_role(project_id: int) -> Role | None:
        member = db.projects.member(project_id, user.id)
        return member.role if member else None

    return Principal(name=user.name, role=user.role, user_id=user.id, member_role=member_role)


def bearer_key(request: Request) -> str | None:
    """The API key of the request; ``None`` without one, also for a sign-in proxy's other schemes."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def proxied_user(request: Request, settings: PageSettings) -> str | None:
    """The name of the user whom the sign-in proxy has authenticated; ``None`` without one.

    Raises ``ForbiddenError`` if the header comes from any other address, or more than once.
    """
    header = settings.trusted_user_header
    names = request.headers.getlist(header) if header else []
    if not names:
        return None
    if request.client is None or not address_in(request.client.host, settings.trusted_proxies):
        raise ForbiddenError(f"only the sign-in proxy may send the header {header}")
    try:
        (name,) = names
        return name.encode("latin-1").decode("utf-8").strip() or None
    except ValueError as error:
        raise ForbiddenError(f"the header {header} must be one UTF-8 name") from error


def _proxied_account(db: Database, settings: PageSettings, name: str) -> User:
    """The account of the user whom the proxy names, made now if there is a role for unknown ones."""
    try:
        user = db.users.by_name(name)
    except NotFoundError:
        if settings.trusted_user_role is None:
            raise ForbiddenError(
                f"you do not have an account here; an administrator can create one named '{name}'"
            ) from None
        try:
            user = db.users.create(name, settings.trusted_user_role)
            AUDIT.info(json_text({"action": "account created", "project": None, "user": user.name}))
        except ConflictError:  # another request of this moment made it
            user = db.users.by_name(name)
    if not user.active:
        raise ForbiddenError("your account is closed")
    return user


def wants_json(request: Request) -> bool:
    """Whether a program is asking: the path ends in .json, or it accepts JSON but not HTML."""
    accept = request.headers.get("accept", "")
    return request.url.path.endswith(".json") or ("application/json" in accept and "text/html" not in accept)


def plain(data: object) -> Any:
    """``data`` as JSON values: records and data classes as objects, times as ISO text, NaN as null."""
    return from_json(to_json(data, inf_nan_mode="null"))


class StaticFiles(FolderApp):
    """Static files that keep their declared type, and run nothing if a browser opens them by themselves."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER / "static")

    async def get_response(self, path: str, scope: Scope) -> Response:
        """See the base class."""
        response = await super().get_response(path, scope)
        for name in ("Content-Security-Policy", "X-Content-Type-Options"):
            response.headers[name] = HEADERS[name]
        return response


_STATUS: dict[type[Exception], int] = {
    ExpiredKeyError: 401,  # before its base
    NotFoundError: 404,
    ForbiddenError: 403,
    ConflictError: 409,
    UnavailableError: 503,
    SurefootError: 400,
}
_MESSAGES = {
    500: "an unexpected error; see the server's log",
    503: "the database does not answer; try again in a moment",
}


async def _sign_in_needed(request: Request, _: Exception) -> Response:
    if wants_json(request) or bearer_key(request) is not None:
        headers = {**HEADERS, "WWW-Authenticate": "Bearer"}
        return JSONResponse({"error": "sign in, or send a valid API key"}, status_code=401, headers=headers)
    to = request.scope.get("root_path", "") + "/sign-in"
    if request.method == "GET":
        path, query = request.url.path, request.url.query
        to += "?" + urlencode({"next": f"{path}?{query}" if 0 < len(query) <= _LONGEST_QUERY else path})
    return RedirectResponse(to, status_code=303, headers=HEADERS)


def _refused(request: Request, error: Exception) -> Response:
    """The page of an error of this package, of HTTP, or of anything else."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    message, headers = _MESSAGES.get(status, str(error)), {}
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    elif status == 503:
        _LOG.warning("%s", error)  # it may name hosts and files
        headers["Retry-After"] = "5"
    try:
        visitor = visitor_of(request)
    except Exception:  # the database, for example, may fail here again
        visitor = None
    page = Page(
        request=request, pages=request.app.state.pages, visitor=visitor, form=Form(data=request.query_params)
    )
    title = HTTPStatus(status).phrase
    words = request.query_params.get("text") if request.method == "GET" else None
    response = page.show("error.html", {"error": message}, status=status, title=title, filter=words)
    response.headers.update(headers)
    return response


ERROR_HANDLERS: Final[Mapping[Any, Any]] = {
    SignInNeeded: _sign_in_needed,
    **dict.fromkeys((SurefootError, HTTPException, Exception), _refused),
}


Terms = Mapping[str, Collection[str]]
"""Names of terms, and the values that each accepts; empty = any text."""
_TERM: Final = re.compile(r'(?:("[^"]*"|[^\s:<>="]+)(:|[<>]=?))?("[^"]*"|[^\s"]+)')
_RANGE: Final = re.compile(r"(\d{1,6})?(?:(\.\.)(\d{1,6})?)?")
_ADDRESS: Final = {
    "text", "problem", "page", "before", "at", "id", "step", "edit", "decision_id", "report", "disagreement",
}  # fmt: skip
"""Parameters of the addresses of lists, and of runs that are opened from them."""
COLUMNS: Final[Mapping[str, str]] = {
    "outcome": "Outcome", "title": "Task", "steps": "Steps", "first_error": "First error",
    "lowest": "Lowest score", "verdicts": "Verdicts", "tokens": "Tokens", "latency_ms": "Time",
    "policy": "Model", "created": "When",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The parsed text of a filter box."""

    text: str = ""
    terms: Mapping[str, str] = field(default_factory=dict)
    words: str = ""
    scorer: str | None = None
    """The scorer whose lowest score is bounded."""
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, page: Page, terms: Terms, scorers: Collection[str] = ()) -> Filter:
        """The filter of an address or form, its ``text``. Raises ``StoreError`` with the valid choices."""
        text = page.form.optional("text", most=1000) or ""
        for name in page.request.query_params.keys() - _ADDRESS:
            raise StoreError(f"unknown parameter {name!r}; write the filter as text={name}:…")
        if text.count('"') % 2:
            raise StoreError(f"the closing quotation mark is missing in {text}")
        read, words, bounds = dict[str, str](), list[str](), dict[str, Any]()
        for raw, sign, quoted in _TERM.findall(text):
            name, value = raw.strip('"'), quoted.strip('"')
            if not sign and quoted[0] in "<>:":
                raise StoreError(f"remove the spaces around {quoted!r}, as in prm<0.2")
            if not sign:
                words.append(value)
            elif sign != ":":
                if name not in scorers or bounds.get("scorer", name) != name:
                    raise StoreError(unknown("scorer", name, scorers or ("none: no scores are stored",)))
                bounds |= {"scorer": name, "high" if sign[0] == "<" else "low": _number(name, value)}
            elif name not in terms:
                raise StoreError(f"{unknown('filter', name, terms)}; put words into quotes")
            elif terms[name] and value not in terms[name]:
                raise StoreError(unknown(name, value, terms[name]))
            else:
                read[name] = value
        return cls(text=text, terms=read, words=" ".join(words), **bounds)

    def steps(self, name: str) -> tuple[int, int | None] | None:
        """A term as steps counted from 0: ``3``, ``3..``, ``3..5`` or ``any``; ``None`` without it."""
        text = self.terms.get(name, "none")
        if text in ("none", "any"):
            return None if text == "none" else (0, None)
        match = _RANGE.fullmatch(text)
        if match is None or not text.strip("."):
            raise StoreError(f"'{name}' must be a step, such as 3, 3.., 3..5, any or none, not {text!r}")
        low, dots, high = match.groups()
        return max(0, int(low or 1) - 1), (int(high) - 1 if high else None) if dots else int(low) - 1

    def with_term(self, name: str, value: str | None) -> str:
        """The text with another value of a term, or without it."""
        parts = [part[0] for part in _TERM.finditer(self.text) if (part[1] or "").strip('"') != name]
        quoted = f'"{value}"' if value and re.search(r"[\s<>:]", value) else value
        return " ".join([*parts, *([] if value is None else [f"{name}:{quoted}"])])


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise StoreError(f"'{name}' must be a number, not {text!r}")
    return value


def show_list(
    page: Page, name: str, rows: Sequence[Mapping[str, Any]], data: Mapping[str, Any], **extra: Any
) -> Response:
    """The page of a list, or its JSON twin with the rows under ``name``.

    ``data`` may have the ``total`` of a list with numbered pages, or the address of the ``next`` one. A page
    past the end is answered with 404.
    """
    number = max(1, page.query.natural("page", default=1))
    around: dict[str, str | None] = {"previous": None, "next": None}
    past = not rows and bool(page.query.id("before"))
    if "total" in data:
        pages = max(1, -(-data["total"] // page.settings.rows))
        past = number > pages
        around = {
            "previous": page.link(page=number - 1) if number > 1 else None,
            "next": page.link(page=number + 1) if number < pages else None,
        }
        data = {"page": number, "pages": pages, **data}
    content = {"filter": page.form.optional("text") or "", "past": past, "live": False, **around, **data}
    columns = {
        key: words
        for key, words in COLUMNS.items()
        if any(row.get("outcome_word" if key == "outcome" else key) not in (None, "") for row in rows)
    }
    return page.show(
        "list.html", {**content, name: rows}, status=404 if past else 200, name=name, columns=columns, **extra
    )
