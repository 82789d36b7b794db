"""Spans that tile a text, and what they never cut: code fences, LaTeX displays, inline mathematics."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

Span = tuple[int, int]
"""``[start, end)`` in characters."""

VISIBLE = re.compile(r"\S")
BLANK_LINE = re.compile(r"(?:\r\n|\r(?!\n)|\n)[ \t]*(?:\r\n|\r(?!\n)|\n)")
_FENCE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})(?P<info>[^\r\n]*)", re.MULTILINE)
# The pairs "\\" and "\$" come first, so that "\\[2pt]" opens no display and "\$" no mathematics.
_DISPLAY = re.compile(
    r"\\\\|\\begin\{(?P<begin>[a-zA-Z]+\*?)\}|\\end\{(?P<end>[a-zA-Z]+\*?)\}|\\\[|\\\]|\\\$|\$\$"
)
_INLINE = re.compile(rf"\\\\|\\\(|\\\)|\\\$|\$\$|\$|{BLANK_LINE.pattern}")


def tile(text: str, cuts: Iterable[int], *, inline: bool = False) -> list[Span]:
    """Spans between ``cuts`` (ascending), each moved past the white space that follows it."""
    visible = VISIBLE.search(text)
    if visible is None:
        return []
    begin, spans, reached = 0, [], visible.start()
    for cut in outside(cuts, protected(text, inline=inline)):
        # Cuts in a run of white space that was passed already are not searched again: this stays linear.
        if cut <= reached:
            continue
        following = VISIBLE.search(text, cut)
        if following is None:
            break
        reached = following.start()
        spans.append((begin, reached))
        begin = reached
    return [*spans, (begin, len(text))]


def outside(cuts: Iterable[int], blocked: Sequence[Span]) -> Iterator[int]:
    """Those of ``cuts`` that lie strictly inside none of the disjoint, sorted ``blocked`` spans."""
    starts = [start for start, _ in blocked]
    for cut in cuts:
        at = bisect_left(starts, cut) - 1
        if at < 0 or cut >= blocked[at][1]:
            yield cut


def protected(text: str, *, inline: bool) -> list[Span]:
    """Spans not to be cut, disjoint and in order."""
    fences = list(_fences(text))
    masked = _blank_out(text, fences)
    spans = [*fences, *_displays(masked), *(_inline_maths(masked) if inline else ())]
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _fences(text: str) -> Iterator[Span]:
    """Code fences as CommonMark has them, at any indentation (lists indent them)."""
    opened: tuple[int, str] | None = None
    for match in _FENCE.finditer(text):
        fence, info = match["fence"], match["info"]
        if opened is None:
            # Backticks again on the line make it inline code.
            if not (fence[0] == "`" and "`" in info):
                opened = (match.start("fence"), fence)
        elif fence[0] == opened[1][0] and len(fence) >= len(opened[1]) and not info.strip():
            yield opened[0], match.end("fence")
            opened = None
    if opened is not None:
        yield opened[0], len(text)


def _blank_out(text: str, spans: Sequence[Span]) -> str:
    """``text`` with ``spans`` turned to spaces: LaTeX inside a code fence is code. Positions stay."""
    pieces: list[str] = []
    reached = 0
    for start, end in spans:
        pieces += [text[reached:start], " " * (end - start)]
        reached = end
    return "".join([*pieces, text[reached:]])


def _displays(text: str) -> Iterator[Span]:
    """Closed ``$$..$$``, ``\\[..\\]`` and environments, in one pass; what stays open protects nothing."""
    opened: dict[str, int] = {}
    environments: list[tuple[str, int]] = []
    waiting: Counter[str] = Counter()
    for match in _DISPLAY.finditer(text):
        mark, start, end = match.group(), match.start(), match.end()
        if match["begin"]:
            environments.append((match["begin"], start))
            waiting[match["begin"]] += 1
        elif match["end"] and waiting[match["end"]]:
            name = ""
            while name != match["end"]:  # environments left open inside this one are dropped
                name, start = environments.pop()
                waiting[name] -= 1
            yield start, end
        elif mark == "$$":
            if mark in opened:
                yield opened.pop(mark), end
            else:
                opened[mark] = start
        elif mark == r"\[":
            opened.setdefault(mark, start)
        elif mark == r"\]" and r"\[" in opened:
            yield opened.pop(r"\["), end


def _inline_maths(text: str) -> Iterator[Span]:
    """Closed ``$..$`` and ``\\(..\\)`` within a paragraph.

    A dollar opens before and closes after a visible character, and does not close before a digit, so that
    "$5 and $6" are prices (the rule of Pandoc).
    """
    dollar: int | None = None
    parenthesis: int | None = None
    for match in _INLINE.finditer(text):
        mark, start, end = match.group(), match.start(), match.end()
        if mark == r"\(":
            parenthesis = start
        elif mark == r"\)":
            if parenthesis is not None:
                yield parenthesis, end
            parenthesis = None
        elif mark == "$":
            closes = not text[start - 1].isspace() and not text[end : end + 1].isdigit()
            if dollar is not None and closes:
                yield dollar, end
                dollar = None
            else:
                dollar = start if text[end : end + 1].strip() else None
        elif mark.isspace():
            dollar = parenthesis = None
