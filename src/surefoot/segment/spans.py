"""Spans that tile a text and never cut code or LaTeX, and the token at which each ends."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from surefoot.errors import SegmentError
from surefoot.maths import displayed_formulas, inline_formulas

Span = tuple[int, int]
"""``[start, end)`` in characters."""

VISIBLE = re.compile(r"\S")
_FENCE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})(?P<info>[^\r\n]*)", re.MULTILINE)


def tile(text: str, cuts: Iterable[int], *, inline: bool = False) -> list[Span]:
    """Spans between ``cuts`` (ascending), each moved past the white space that follows it.

    A span that begins on a new line begins with that line, so that its indentation is its own: the line
    breaks and blank lines in between belong to the span before.
    """
    return tile_at(text, outside(cuts, protected(text, inline=inline)))


def tile_at(text: str, cuts: Iterable[int]) -> list[Span]:
    """:func:`tile` at exactly these ``cuts``, in code and LaTeX too."""
    visible = VISIBLE.search(text)
    if visible is None:
        return []
    begin, spans, reached, size = 0, [], visible.start(), len(text)
    for cut in cuts:
        # Cuts in a run of white space that was passed already are not searched again: this stays linear.
        if cut <= reached:
            continue
        reached = cut
        if cut >= size or text[cut].isspace():
            following = VISIBLE.search(text, cut)
            if following is None:
                break
            reached = following.start()
        start = reached if text[reached - 1] in "\r\n" else line_start(text, reached)
        spans.append((begin, start))
        begin = start
    return [*spans, (begin, size)]


def line_start(text: str, at: int) -> int:
    """Where the line of ``at`` begins if only white space lies between, else ``at`` itself."""
    start = at
    while start and text[start - 1] not in "\r\n":
        if not text[start - 1].isspace():
            return at
        start -= 1
    return start


def own_lines(text: str, span: Span) -> str:
    """A step's text from the beginning of its line on, without the line breaks and blank lines around it.

    Indentation that another segmenter left in the previous step is restored. White space at the end of the
    last line stays.
    """
    step = text[line_start(text, span[0]) : span[1]]
    visible = VISIBLE.search(step)
    first = line_start(step, visible.start()) if visible else 0
    last = len(step.rstrip())
    return step[first:last] + re.split("[\r\n]", step[last:], maxsplit=1)[0]


def outside(cuts: Iterable[int], blocked: Sequence[Span]) -> Iterable[int]:
    """Those of ``cuts`` that lie strictly inside none of the disjoint, sorted ``blocked`` spans."""
    starts = [start for start, _ in blocked]

    def is_outside(cut: int) -> bool:
        at = bisect_left(starts, cut) - 1
        return at < 0 or cut >= blocked[at][1]

    return filter(is_outside, cuts) if blocked else cuts


def protected(text: str, *, inline: bool) -> list[Span]:
    """Spans not to be cut, disjoint and in order."""
    if not any(mark in text for mark in ("\\", "$", "```", "~~~")):
        return []
    fenced = list(fences(text))
    masked = _blank_out(text, fenced) if fenced else text
    formulas = [*displayed_formulas(masked), *(inline_formulas(masked) if inline else ())]
    merged: list[Span] = []
    for start, end in sorted([*fenced, *(formula[:2] for formula in formulas)]):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def fences(text: str) -> Iterator[Span]:
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


def token_positions(
    text: str, offsets: Sequence[Span], spans: Sequence[Span], base: int = 0, *, whole: bool = False
) -> list[int | None]:
    """Index of the token at which each step ends: the one place where spans meet tokens.

    That is the last token which covers the last visible (not white space) character of the step. A character
    split over several tokens counts to the last of them, and a token that runs on into the next step still
    closes this one. If the tokenizer dropped that character (a normalizer joins "e" and U+0301 to one
    character, whose token covers the "e"), the last token with a visible character of the step is taken, if
    ``offsets`` are ``whole`` or tokens of later text follow; else the step was truncated and has ``None``. A
    span of white space alone takes the last token that overlaps it; ``None`` if there is none, or if the
    span is empty.

    Args:
        text: the text that was tokenised, in characters.
        offsets: its ``offset_mapping`` [T], ``(start, end)`` in characters; empty ranges (special tokens and
            padding) are passed over.
        spans: steps [S], counted from ``base``, in order.
        base: character of ``text`` at which the trace's own text begins.
        whole: ``offsets`` cover the whole text, without truncation.

    Returns:
        One index into ``offsets`` a span [S]. Takes O(T + S log T + length of the spans).

    Raises:
        SegmentError: a span or token lies outside ``text``, or token starts go back (two texts in one list).
    """
    tokens = [(start, end, index) for index, (start, end) in enumerate(offsets) if end > start]
    starts = [start for start, _, _ in tokens]
    if any(later < earlier for earlier, later in pairwise(starts)):
        raise SegmentError("offsets go back; pass the offset_mapping of one text, without a second sequence")
    reach = max((end for _, end, _ in tokens), default=0)
    if reach > len(text):
        raise SegmentError(
            f"offsets reach character {reach}, but text has {len(text)}; pass the text tokenised"
        )
    if whole:
        reach = len(text)
    positions: list[int | None] = []
    for number, (start, end) in enumerate(spans):
        first, last = base + start, base + end
        if not 0 <= first <= last <= len(text):
            raise SegmentError(f"spans[{number}] = {(start, end)} with base={base} lies outside the text")
        positions.append(_closing_token(text, tokens, starts, reach, (first, last)))
    return positions


def _closing_token(
    text: str, tokens: Sequence[tuple[int, int, int]], starts: Sequence[int], reach: int, span: Span
) -> int | None:
    first, end = span
    seen = first + len(text[first:end].rstrip())
    visible = seen > first
    if visible and seen > reach:
        return None  # truncated: nothing at or after the last visible character was kept
    limit = seen if visible else end
    for at in range(bisect_left(starts, limit) - 1, -1, -1):
        token_start, token_end, index = tokens[at]
        if token_end <= first:
            break
        if not visible or text[max(token_start, first) : min(token_end, limit)].strip():
            return index
    return None
