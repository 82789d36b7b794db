"""Spans into token positions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from surefoot.errors import SegmentError
from surefoot.segment.tiling import Span


def token_positions(
    text: str, offsets: Sequence[Span], spans: Sequence[Span], base: int = 0
) -> list[int | None]:
    """Index of the token at which each step ends: the one place where spans meet tokens.

    That is the last token which covers the last visible (not white space) character of the step. A character
    split over several tokens counts to the last of them, and a token that runs on into the next step still
    closes this one. If the tokenizer dropped that character, the last token with a visible character of the
    step is taken, provided tokens of later text follow; else the step was truncated and has ``None``. A
    span of white space alone takes the last token that overlaps it; ``None`` if there is none, or if the
    span is empty.

    Args:
        text: the text that was tokenised, in characters.
        offsets: its ``offset_mapping`` [T], ``(start, end)`` in characters; empty ranges (special tokens and
            padding) are passed over.
        spans: steps [S], counted from ``base``, in order.
        base: character of ``text`` at which the trace's own text begins.

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
