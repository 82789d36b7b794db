"""How values look on a page: signs, shares, times, Markdown."""

from __future__ import annotations

from datetime import datetime
from functools import cache

from markdown_it import MarkdownIt
from markupsafe import Markup

SIGNS = {-1: "−1", 0: "0", 1: "+1"}
NAMES = {-1: "wrong", 0: "neutral", 1: "good"}


def sign(value: float | None) -> str:
    """A label's value as people write it; an em dash for none."""
    return "—" if value is None else SIGNS.get(int(value), f"{value:g}")


def sign_name(value: float | None) -> str:
    """A word for a label's value, for style classes and for those who do not see colours."""
    return "unknown" if value is None else NAMES.get(int(value), "unknown")


def percent(share: float | None) -> str:
    """A share in per cent; an em dash for none."""
    return "—" if share is None else f"{100 * share:.1f} %"


def seconds(milliseconds: float | None) -> str:
    """A duration, ``12.3 s`` or ``4 min 10 s``; an em dash for none."""
    if milliseconds is None:
        return "—"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, rest = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {rest} s"


def moment(text: str | None) -> str:
    """An ISO time of the JSON twin, to the minute."""
    return "—" if text is None else datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")


@cache
def _markdown() -> MarkdownIt:
    # HTML is shown as text; pictures would be fetched from elsewhere
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def instructions_html(text: str) -> Markup:
    """Markdown without HTML or pictures; links of harmless kinds only. Headings go below the page's own."""
    reader = _markdown()
    tokens = reader.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
    return Markup(reader.renderer.render(tokens, reader.options, {}))  # noqa: S704 - html=False escapes tags
