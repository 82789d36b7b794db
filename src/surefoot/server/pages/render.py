"""The templates of the pages, and the filters that they use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from pydantic_core import from_json
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.python import PythonLexer

from surefoot.errors import counted
from surefoot.messages import parse_arguments
from surefoot.printable import printable
from surefoot.records import as_json
from surefoot.server.pages.mathematics import claim_markdown, hidden_formulas, mathematics

FOLDER = Path(__file__).parent

_MARKDOWN_CHARACTERS = 4_000
_JSON_CHARACTERS = 100_000
_HIDDEN = re.compile(r"(formula[0-9a-f]{16}n\d+n)")
_TURN = re.compile("[\u202a-\u202e\u2066-\u2069]")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "frame-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


SIGNS = {-1: "−1", 0: "0", 1: "+1"}
NAMES = {-1: "wrong", 0: "neutral", 1: "good"}


def sign(value: float | None) -> str:
    """A label's value for people; an em dash for ``None``."""
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
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    reader.add_render_rule("text", _text)
    return reader


def instructions_html(text: str) -> Markup:
    """Markdown without HTML or images, and with harmless links only. Headings go below the page's own."""
    return _rendered(text, lambda tag: f"h{min(6, int(tag[1]) + 1)}")


def _rendered(text: str, heading: Callable[[str], str]) -> Markup:
    reader = _markdown()
    hidden, formulas = hidden_formulas(text)
    tokens = reader.parse(hidden)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = heading(token.tag)
    page = reader.renderer.render(tokens, reader.options, formulas)
    # what is left stands in code and addresses; html=False escapes tags
    return Markup(_HIDDEN.sub(lambda word: str(escape(formulas.get(word[0], word[0]))), page))  # noqa: S704


def _text(_: object, tokens: Sequence[Token], at: int, _options: object, formulas: Mapping[str, str]) -> str:
    parts = _HIDDEN.split(tokens[at].content)
    return "".join(str(mathematics(formulas[part]) if part in formulas else escape(part)) for part in parts)


def visible(value: object) -> object:
    """Characters that turn the direction of the text after them become visible: they can disguise it."""
    if not isinstance(value, str) or not _TURN.search(value):
        return value
    written = _TURN.sub(lambda turn: f"\\u{ord(turn[0]):04x}", value)
    return Markup(written) if isinstance(value, Markup) else written  # noqa: S704 - it was


def figure(value: float | None, digits: int = 2) -> str:
    """A number for people; an em dash for ``None``."""
    return "—" if value is None else f"{value:z.{digits}f}".replace("-", "−")


def bounded(text: str | None, most: int = 20_000) -> str:
    """``text`` cut between words after ``most`` characters, with a note of the cut."""
    if text is None or len(text) <= most:
        return text or ""
    start = text[: most + 1]
    start = start[: max(start.rfind(" "), start.rfind("\n"), most // 2)]
    return f"{start} … ({counted(len(text) - len(start), 'character')} more)"


def rich(text: str) -> Markup:
    """A message's Markdown with its mathematics; a long one without Markdown, which takes long."""
    if len(text) > _MARKDOWN_CHARACTERS or not claim_markdown(len(text)):
        return mathematics(bounded(text))
    return _rendered(text, lambda _: "strong")


def answer(text: str) -> Markup:
    """An answer; one in LaTeX without dollars is a formula."""
    return mathematics(f"${text}$" if "\\" in text and "$" not in text else text)


def pretty(text: str) -> str:
    """JSON with indents; any other text unchanged. Both are bounded."""
    try:
        value = from_json(text) if len(text) <= _JSON_CHARACTERS else None
    except ValueError:
        value = None
    if isinstance(value, dict | list):
        text = json.dumps(value, indent=2, ensure_ascii=False)
    return bounded(text)


def python(text: str) -> Markup:
    """A Python program with classes for colours; characters that hide its order are escaped."""
    escaped = "\n".join(map(printable, bounded(text).split("\n")))
    return Markup(highlight(escaped, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)))  # noqa: S704 - it escapes


def call_arguments(text: str) -> list[tuple[str, str]]:
    """Names and values of a call's arguments; the whole under an empty name if they cannot be read."""
    try:
        arguments = parse_arguments(text)
    except ValueError:
        return [("", text)]
    return [(name, value if isinstance(value, str) else as_json(value)) for name, value in arguments.items()]


@cache
def templates() -> Environment:
    """The templates, with their filters."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        answer, bounded, figure, moment, percent, pretty, python, rich, seconds, sign, sign_name,
    )  # fmt: skip
    environment.filters.update({function.__name__: function for function in filters})
    environment.filters |= {"math": mathematics, "markdown": instructions_html, "arguments": call_arguments}
    environment.globals["counted"] = counted
    environment.globals["parts"] = environment.get_template("_parts.html").module
    return environment
