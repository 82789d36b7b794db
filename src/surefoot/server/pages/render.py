"""Rendering a page or its JSON twin from the same data, and the filters that templates use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markdown_it import MarkdownIt
from markupsafe import Markup
from pydantic_core import from_json, to_json
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.python import PythonLexer
from starlette.convertors import Convertor, register_url_convertor

from surefoot.errors import NotFoundError
from surefoot.messages import parse_arguments
from surefoot.records import as_json
from surefoot.server.pages.access import PROJECT, Place, Visitor, enter, pages_of, visible_projects
from surefoot.server.pages.mathematics import claim_markdown, mathematics, page_budget

FOLDER = Path(__file__).parent

H = TypeVar("H", bound=Callable[..., Any])
_TOKEN = Markup('<input type="hidden" name="csrf" value="{}">')
"""The field of every form that carries the session's secret."""
_MARKDOWN_CHARACTERS = 4_000
_JSON_CHARACTERS = 100_000
_MATHEMATICS = re.compile(r"\$.{1,200}\$|\\\(|\\\[")
_YEAR_SECONDS = 365 * 24 * 3600.0

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class NumberConvertor(Convertor[int]):
    """A number in an address: at most 15 digits, which a column can hold; anything longer is not found."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        """The number."""
        return int(value)

    def to_string(self, value: int) -> str:
        """Its digits."""
        return str(value)


register_url_convertor("number", NumberConvertor())


def twin(router: APIRouter, path: str) -> Callable[[H], H]:
    """Serve GET at ``path``, and its JSON twin at ``path.json``."""

    def register(handler: H) -> H:
        router.get(path)(handler)
        router.get(f"{path}.json", name=f"{handler.__name__}_json")(handler)
        return handler

    return register


def wants_json(request: Request) -> bool:
    """Whether a program is asking: the path ends in .json, or it accepts JSON but not HTML."""
    accept = request.headers.get("accept", "")
    return request.url.path.endswith(".json") or ("application/json" in accept and "text/html" not in accept)


def plain(data: object) -> Any:
    """``data`` as JSON values: records and data classes as objects, times as ISO text, NaN as null."""
    return from_json(to_json(data, inf_nan_mode="null"))


def show(
    request: Request,
    reader: Visitor | Place | None,
    template: str,
    data: Mapping[str, Any],
    *,
    status: int = 200,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    """The page, or its JSON twin. ``extra`` is for the template alone: tokens, choices, drawings."""
    open_place = reader if isinstance(reader, Place) else None
    visitor = reader.visitor if isinstance(reader, Place) else reader
    project = (
        {} if open_place is None else {"project": {"id": open_place.id, "name": open_place.project.name}}
    )
    content = plain({**project, **data})
    if wants_json(request):
        return JSONResponse(content, status_code=status, headers=HEADERS)
    rail = open_place or (visitor and last_place(request, visitor))
    with page_budget():
        page = (
            _templates()
            .get_template(template)
            .render(
                data=content,
                visitor=visitor,
                token=_TOKEN.format((visitor and visitor.csrf) or ""),
                place=open_place,
                rail=rail,
                reads_all=visitor is not None and visitor.reads_all,
                open_flags=_open_flags(request, open_place),
                waiting_calls=_waiting_calls(request, visitor),
                root=request.scope.get("root_path", ""),
                here=request.url.path,
                **(extra or {}),
            )
        )
    response = HTMLResponse(page, status_code=status, headers=HEADERS)
    if open_place is not None:
        pages_of(request).cookies.set(response, PROJECT, str(open_place.id), seconds=_YEAR_SECONDS)
    return response


def last_place(request: Request, visitor: Visitor) -> Place | None:
    """The project that this browser opened last, else the visitor's first; ``None`` without any."""
    number = pages_of(request).cookies.get(request, PROJECT)
    with suppress(NotFoundError):
        if number.isascii() and number.isdigit() and len(number) < 16:
            return enter(request, visitor, int(number))
    projects = visible_projects(request, visitor)
    return enter(request, visitor, projects[0][0].id) if projects else None


def next_page(query: str, **position: Any) -> str:
    """Link to the next page of a list: the query of this one, and where to continue."""
    return "?" + "&".join(filter(None, (query, urlencode(position))))


def done(request: Request, to: str, data: Mapping[str, Any] | None = None) -> Response:
    """Response to a form: a redirect (303), so that a reload sends nothing twice. A program gets ``data``."""
    if wants_json(request):
        return JSONResponse(plain(data or {}), headers=HEADERS)
    return RedirectResponse(request.scope.get("root_path", "") + to, status_code=303, headers=HEADERS)


def _waiting_calls(request: Request, visitor: Visitor | None) -> int:
    """The count in the rail at "Held calls", which readers of the whole server have."""
    if visitor is None or not visitor.reads_all:
        return 0
    return pages_of(request).db.held_calls.count()["waiting"]


def _open_flags(request: Request, place: Place | None) -> int:
    """The count in the tab "Flags", which only administrators have."""
    if place is None or place.role != "admin":
        return 0
    return pages_of(request).db.comments.open_flags(place.project.id)


SIGNS = {-1: "−1", 0: "0", 1: "+1"}
NAMES = {-1: "wrong", 0: "neutral", 1: "good"}


def sign(value: float | None) -> str:
    """A label's value as people write it; an em dash for ``None``."""
    return "—" if value is None else SIGNS.get(int(value), f"{value:g}")


def sign_name(value: float | None) -> str:
    """A word for a label's value, for style classes and for people who do not see colours."""
    return "unknown" if value is None else NAMES.get(int(value), "unknown")


def percent(share: float | None) -> str:
    """A share as a percentage; an em dash for ``None``."""
    return "—" if share is None else f"{100 * share:.1f} %"


def seconds(milliseconds: float | None) -> str:
    """A duration, ``12.3 s`` or ``4 min 10 s``; an em dash for ``None``."""
    if milliseconds is None:
        return "—"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, remainder = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {remainder} s"


def moment(text: str | None) -> str:
    """An ISO time of the JSON twin, to the minute."""
    return "—" if text is None else datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")


@cache
def _markdown() -> MarkdownIt:
    # HTML is shown as text; images would be loaded from other hosts
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def instructions_html(text: str) -> Markup:
    """Markdown without HTML or images, and with harmless links only. Headings go below the page's own."""
    return _rendered(text, lambda tag: f"h{min(6, int(tag[1]) + 1)}")


def _rendered(text: str, heading: Callable[[str], str]) -> Markup:
    reader = _markdown()
    tokens = reader.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = heading(token.tag)
    return Markup(reader.renderer.render(tokens, reader.options, {}))  # noqa: S704 - html=False escapes tags


def figure(value: float | None, digits: int = 2) -> str:
    """A number for people; an em dash for ``None``."""
    return "—" if value is None else f"{value:.{digits}f}".replace("-", "−")


def bounded(text: str | None, most: int = 20_000) -> str:
    """``text`` cut between words after ``most`` characters, saying so."""
    if text is None or len(text) <= most:
        return text or ""
    start = text[: most + 1]
    start = start[: max(start.rfind(" "), start.rfind("\n"), most // 2)]
    return f"{start} … ({len(text) - len(start)} characters more)"


def rich(text: str) -> Markup:
    """A message's Markdown or its mathematics; a long one as plain text, since Markdown takes long."""
    if len(text) > _MARKDOWN_CHARACTERS or not claim_markdown(len(text)) or _MATHEMATICS.search(text):
        return mathematics(bounded(text))
    return _rendered(text, lambda _: "p")


def pretty(text: str) -> str:
    """JSON with indents; anything else as it is. Both are bounded."""
    try:
        value = from_json(text) if len(text) <= _JSON_CHARACTERS else None
    except ValueError:
        value = None
    if isinstance(value, dict | list):
        text = json.dumps(value, indent=2, ensure_ascii=False)
    return bounded(text)


def highlighted(lines: list[str]) -> list[Markup]:
    """The lines of a Python program, with classes for colours."""
    text = "\n".join(lines)
    coloured = highlight(text, PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    return [Markup(line) for line in coloured.split("\n")[: len(lines)]]  # noqa: S704 - it escapes


def call_arguments(text: str) -> list[tuple[str, str]]:
    """Names and values of a call's arguments; the whole under an empty name if they cannot be read."""
    try:
        arguments = parse_arguments(text)
    except ValueError:
        return [("", text)]
    return [(name, value if isinstance(value, str) else as_json(value)) for name, value in arguments.items()]


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        math=mathematics,
        markdown=instructions_html,
        moment=moment,
        percent=percent,
        seconds=seconds,
        sign=sign,
        sign_name=sign_name,
        figure=figure,
        bounded=bounded,
        rich=rich,
        pretty=pretty,
        arguments=call_arguments,
    )
    environment.globals["parts"] = environment.get_template("_parts.html").module
    return environment
