"""LaTeX in text as MathML, made on the server: nothing is loaded from a network.

``latex2mathml`` reads the LaTeX; its own writer does not escape the content of ``\\text{…}`` and lets
``\\href`` and ``\\style`` through, so only its element tree is used, and written here: known elements and
harmless attributes, everything else escaped or left out. What it cannot read is shown as its source.

The text is a model's, and hostile: the time to render it is linear in its length, no single regular
expression runs long (one would hold the interpreter for all clients), and :func:`page_budget` bounds a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from html import unescape
from secrets import token_hex
from typing import Final
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert_to_element
from markupsafe import Markup, escape

from surefoot.maths import displayed_formulas, inline_formulas

MAX_FORMULA: Final = 2_000
"""Characters of one formula; a longer one is shown as its source."""
_MAX_DEPTH: Final = 40


_WORK: Final = 4_000_000
"""The work for one page, in characters that are searched for formulas; half of it is for the search. Once it
is used up, formulas are shown as their source."""
_FORMULA: Final = 33
"""The work of a formula's character: 2,000 of the worst take 65 ms."""
_MARKDOWN: Final = 20
"""The work of a character that is read as Markdown: 4,000 of the worst take 30 ms."""
_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)


@contextmanager
def page_budget() -> Iterator[None]:
    """Calls of :func:`mathematics` in the block share the work of one page; outside, each has its own."""
    token = _left.set([_WORK])
    try:
        yield
    finally:
        _left.reset(token)


def claim_markdown(characters: int) -> bool:
    """Whether the page may still read so many characters as Markdown; they are then counted."""
    return _claim(_left.get() or [_WORK], characters * _MARKDOWN)


def _claim(left: list[int], cost: int) -> bool:
    enough = left[0] - cost >= _WORK // 2
    left[0] -= cost * enough
    return enough


# fmt: off
_ELEMENTS: Final = frozenset((
    "math", "menclose", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom",
    "mroot", "mrow", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext",
    "mtr", "munder", "munderover",
))
_ATTRIBUTES: Final = frozenset((
    "accent", "accentunder", "columnalign", "columnlines", "columnspacing", "depth", "display",
    "displaystyle", "fence", "form", "height", "linethickness", "lspace", "mathvariant", "maxsize",
    "minsize", "movablelimits", "notation", "rowlines", "rowspacing", "rspace", "scriptlevel",
    "separator", "stretchy", "symmetric", "voffset", "width",
))
# fmt: on
_CHILDREN: Final = {
    **dict.fromkeys(("mfrac", "mover", "mroot", "msub", "msup", "munder"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}
_ENVIRONMENT = re.compile(
    r"\\begin\{(?:align(?:ed)?|array|d?cases|eqnarray|equation|gather(?:ed)?|[bBpvV]?matrix|multline|split)\*?\}"
)
_VALUE = re.compile(r"[\w .,%+-]{1,60}", re.ASCII)
_UNREAD = re.compile(r"<mi>(?:\\[a-zA-Z]|&amp;)")
"""A command or a mark of columns that the reader leaves in the tree."""
_NAMES: Final = {
    **dict.fromkeys(("aligned", "eqnarray", "eqnarray*"), "align*"),
    **dict.fromkeys(("gather", "gather*", "gathered", "multline", "multline*"), "matrix"),
    "dcases": "cases",
}
"""Environments that the reader lacks, and what it reads them as."""
_BARS: Final = {"vmatrix": "|", "Vmatrix": r"\|"}
_NAMED = re.compile(r"\\(begin|end)\{([a-zA-Z]+\*?)\}")


def mathematics(text: str) -> Markup:
    """``text`` escaped, with its formulas as MathML; their source is the title that a pointer shows."""
    budget = _left.get() or [_WORK]
    searched = text[: budget[0]]
    budget[0] -= len(searched)
    parts: list[Markup] = []
    end = 0
    for start, stop, latex, display in _formulas(searched):
        rendered = formula(latex, display=display) if _claim(budget, len(latex) * _FORMULA) else None
        parts.append(escape(text[end:start]))
        source = escape(text[start:stop])
        if rendered is None:
            parts.append(Markup('<code class="tex">{}</code>').format(source))
        else:
            parts.append(Markup('<span class="formula" title="{}">{}</span>').format(source, rendered))
        end = stop
    parts.append(escape(text[end:]))
    return Markup("").join(parts)


def hidden_formulas(text: str) -> tuple[str, dict[str, str]]:
    """``text`` with a word in place of each formula, and the formulas by words that nobody can guess."""
    secret, formulas, parts, end = token_hex(8), dict[str, str](), list[str](), 0
    for start, stop, *_ in _formulas(text):
        parts += [text[end:start], f"formula{secret}n{start}n"]
        formulas[parts[-1]], end = text[start:stop], stop
    return "".join([*parts, text[end:]]), formulas


def _formulas(text: str) -> Iterator[tuple[int, int, str, bool]]:
    """Start, end, LaTeX, and whether it is displayed, of each formula between dollars, ``\\[`` or ``\\(``."""
    end = 0
    for formula in sorted([*displayed_formulas(text), *inline_formulas(text)]):
        width = 0 if formula.mark == r"\begin" else len(formula.mark)  # an environment is read whole
        latex = text[formula.start + width : formula.end - width]
        if (
            formula.start >= end
            and latex
            and len(latex) <= MAX_FORMULA
            and (width or _ENVIRONMENT.match(latex))
        ):
            yield formula.start, formula.end, latex, formula.mark in ("$$", r"\[", r"\begin")
            end = formula.end


@lru_cache(maxsize=4096)
def formula(latex: str, *, display: bool = False) -> Markup | None:
    """MathML of one formula; ``None`` if it is too long, too deep, or not understood."""
    if len(latex) > MAX_FORMULA or _depth(latex) > _MAX_DEPTH:
        return None
    try:
        tree = convert_to_element(_NAMED.sub(_known, latex), display="block" if display else "inline")
        written = _written(tree)
        return None if _UNREAD.search(written) else Markup(written)  # noqa: S704 - _written escapes all
    except (Exception, RecursionError):  # the reader raises many kinds, and the page must not fail
        return None


def _known(mark: re.Match[str]) -> str:
    """The begin or end of an environment as the reader knows it; bars grow with the matrix between them."""
    word, name = mark.groups()
    if name not in _BARS:
        return rf"\{word}{{{_NAMES.get(name, name)}}}"
    return (
        rf"\left{_BARS[name]}\begin{{matrix}}" if word == "begin" else rf"\end{{matrix}}\right{_BARS[name]}"
    )


def _written(element: Element) -> str:
    name = element.tag.rpartition("}")[2]
    if name == "mtable":  # browsers draw lines of cells, not of tables
        for at, row in enumerate(element):
            for n, cell in enumerate(row):
                for lines, number in (("rowlines", at), ("columnlines", n)):
                    cell.set(lines, "".join(element.get(lines, "").split()[number : number + 1]))
    parts = [_written(child) + _text(child.tail) for child in element]
    if (most := _CHILDREN.get(name, len(parts))) < len(parts):  # the reader forgets a row around a matrix
        base = len(parts) - most + 1
        parts = [f"<mrow>{''.join(parts[:base])}</mrow>", *parts[base:]]
    inner = _text(element.text) + "".join(parts)
    if name not in _ELEMENTS:
        return inner
    attributes = "".join(
        f' {key}="{escape(value)}"'
        for key, value in element.attrib.items()
        if key in _ATTRIBUTES and _VALUE.fullmatch(value)
    )
    return f"<{name}{attributes}>{inner}</{name}>"


def _text(text: str | None) -> str:
    """Text of an element: the reader writes operators as character references, which are resolved first."""
    return str(escape(unescape(text))) if text else ""


def _depth(latex: str) -> int:
    depth = deepest = 0
    for character in latex:
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
    return max(deepest, latex.count(r"\left"), latex.count(r"\begin"))
