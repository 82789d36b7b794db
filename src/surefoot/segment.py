"""Text or messages into steps (spans), and spans into token positions.

Every segmenter returns spans ``[start, end)`` in characters that tile the text: joined, they give it back.
White space and separators belong to the step before them, and white space at the very beginning to the
first step, so no step is white space alone. Text without a visible character has no steps. A step is never
cut inside a code fence (``` or ~~~; one left open runs to the end) or a closed LaTeX display
(``\\begin{..}..\\end{..}``, ``$$..$$``, ``\\[..\\]``).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Self

from surefoot.errors import SegmentError
from surefoot.protocols import Segmenter
from surefoot.records import Step, Trace

Span = tuple[int, int]


@dataclass(frozen=True)
class BlankLine:
    """A step ends at one or more blank lines."""

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        return _tile(text, (match.end() for match in _BLANK_LINE.finditer(text)))


@dataclass(frozen=True)
class Line:
    """Each line with a visible character is a step."""

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        return _tile(text, (match.end() for match in _NEWLINE.finditer(text)))


@dataclass(frozen=True)
class Sentence:
    """A step ends at a full stop, question or exclamation mark before white space, or at a blank line.

    Decimals, common abbreviations (e.g., Fig., Dr.), list numbers at the start of a line (``1. Add``) and
    inline mathematics (``$..$``, ``\\(..\\)``) hold no end of a sentence.
    """

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        stops = (match.end() for match in _SENTENCE_END.finditer(text) if not _abbreviates(text, match))
        blanks = (match.end() for match in _BLANK_LINE.finditer(text))
        return _tile(text, sorted([*stops, *blanks]), inline=True)


@dataclass(frozen=True)
class Marker:
    """Each match of the regular expression ``pattern`` begins a step ("before") or ends one ("after").

    With "before", text ahead of the first marker joins the first step, so that the step of the k-th marker
    is step k. To give such text a step of its own, use "after" with a lookahead: ``(?=Step)``.

    Raises:
        SegmentError: ``pattern`` is empty or no regular expression.
    """

    pattern: str
    where: Literal["before", "after"] = "after"

    def __post_init__(self) -> None:
        if self.where not in ("before", "after"):
            raise SegmentError(f"where is {self.where!r}; choose before or after")
        if not self.pattern:
            raise SegmentError("pattern is empty; give a regular expression that matches the marker")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise SegmentError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error

    @classmethod
    def step_k(cls) -> Self:
        """``Step k:`` at the start of a line; also ``**Step k:**``, ``## Step k`` and ``step k.``."""
        return cls(
            r"(?mi)^[ \t]*(?:#{1,6}[ \t]*)?(?:\*\*|__)?step[ \t]+[0-9]+(?:\*\*|__)?[ \t]*"
            r"(?:[:.)\u2013\u2014-]|\r?$)",
            "before",
        )

    @classmethod
    def ki(cls) -> Self:
        """``ки``, the step tag of Math-Shepherd (arXiv:2312.08935), where it is not part of a word."""
        return cls(r"(?<![^\W\d_])ки(?!\w)", "after")

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        matches = re.finditer(self.pattern, text)
        if self.where == "after":
            return _tile(text, (match.end() for match in matches))
        blocked = _protected(text, inline=False)
        starts = [match.start() for match in matches]
        return _tile(text, list(_outside(starts, blocked))[1:])


_NAMED: dict[str, Callable[[], Segmenter]] = {
    "blank-line": BlankLine,
    "line": Line,
    "sentence": Sentence,
    "step-k": Marker.step_k,
    "ki": Marker.ki,
}


def segmenter(name: str) -> Segmenter:
    """Segmenter by name: blank-line, line, sentence, step-k, ki, or ``regex:PATTERN`` (a match ends a step).

    Raises:
        SegmentError: there is none of this name, or the pattern is broken.
    """
    if name.startswith("regex:"):
        return Marker(name.removeprefix("regex:"), "after")
    if name not in _NAMED:
        raise SegmentError(f"no segmenter is called {name!r}; choose from {', '.join(_NAMED)}, regex:PATTERN")
    return _NAMED[name]()


def segment_trace(trace: Trace, segmenter: Segmenter | None) -> Trace:
    """Copy of ``trace`` (same ``id``) with its steps filled in, in place of any it had.

    A text trace is cut by ``segmenter``. In a chat trace each assistant message is one step, its whole
    content; ``segmenter`` is not used. The messages of other roles are observations, not steps. An assistant
    message that only calls tools has the span (0, 0).

    Raises:
        SegmentError: a text trace without a segmenter, or spans that do not tile the text.
    """
    if trace.text is None:
        steps = tuple(
            Step(start=0, end=len(message.content or ""), message=number)
            for number, message in enumerate(trace.messages)
            if message.role == "assistant"
        )
        return trace.model_copy(update={"steps": steps})
    if segmenter is None:
        raise SegmentError(f"trace {trace.id} is text, so 'segmenter' must not be None")
    spans = segmenter.segment(trace.text)
    ends = [0, *(end for _, end in spans)]
    tiles = all(start == before <= end for (start, end), before in zip(spans, ends, strict=False))
    if not tiles or (ends[-1] != len(trace.text) if spans else bool(trace.text.strip())):
        raise SegmentError(f"{segmenter!r} returned spans that do not tile the text of trace {trace.id}")
    return trace.model_copy(update={"steps": tuple(Step(start=start, end=end) for start, end in spans)})


def join_steps(parts: Sequence[str], separator: str, final_separator: str = "") -> tuple[str, list[Span]]:
    """Text made of the given steps, and their spans: one a part, tiling the text, empty parts included.

    A separator belongs to the step before it; ``final_separator`` follows the last step.
    """
    pieces = [part + separator for part in parts[:-1]] + [part + final_separator for part in parts[-1:]]
    spans: list[Span] = []
    end = 0
    for piece in pieces:
        spans.append((end, end + len(piece)))
        end += len(piece)
    return "".join(pieces), spans


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


def _tile(text: str, cuts: Iterable[int], *, inline: bool = False) -> list[Span]:
    """Spans between ``cuts`` (ascending), each moved past the white space that follows it."""
    visible = _VISIBLE.search(text)
    if visible is None:
        return []
    begin, spans, reached = 0, [], visible.start()
    for cut in _outside(cuts, _protected(text, inline=inline)):
        # Cuts in a run of white space that was passed already are not searched again: this stays linear.
        if cut <= reached:
            continue
        following = _VISIBLE.search(text, cut)
        if following is None:
            break
        reached = following.start()
        spans.append((begin, reached))
        begin = reached
    return [*spans, (begin, len(text))]


def _outside(cuts: Iterable[int], blocked: Sequence[Span]) -> Iterator[int]:
    """Those of ``cuts`` that lie strictly inside none of the disjoint, sorted ``blocked`` spans."""
    starts = [start for start, _ in blocked]
    for cut in cuts:
        at = bisect_left(starts, cut) - 1
        if at < 0 or cut >= blocked[at][1]:
            yield cut


def _protected(text: str, *, inline: bool) -> list[Span]:
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


def _abbreviates(text: str, stop: re.Match[str]) -> bool:
    """Whether the full stop ends an abbreviation or a list number, and not the sentence."""
    at = stop.start()
    if stop.group() != ".":
        return False
    before = _WORD_BEFORE.search(text, max(0, at - 16), at)
    word = before.group() if before else ""
    if word.lower() in _ABBREVIATIONS or word in _TITLES:
        return True
    following = _VISIBLE.search(text, stop.end())
    if word.lower() in _OFTEN_LAST:
        return following is not None and not following.group().isupper()
    if word.lower() in _BEFORE_NUMBER:
        return following is not None and following.group().isdigit()
    return _LIST_NUMBER.fullmatch(word) is not None and _opens_line(text, at - len(word))


def _opens_line(text: str, at: int) -> bool:
    near = max(0, at - 16)  # bounded, so that one long line costs no more than many short ones
    newline = max(text.rfind("\n", near, at), text.rfind("\r", near, at))
    if newline < 0 and near > 0:
        return False
    return not text[max(newline + 1, near) : at].strip(" \t-*#>(")


_VISIBLE = re.compile(r"\S")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_BLANK_LINE = re.compile(r"(?:\r\n|\r(?!\n)|\n)[ \t]*(?:\r\n|\r(?!\n)|\n)")
_FENCE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})(?P<info>[^\r\n]*)", re.MULTILINE)
# The pairs "\\" and "\$" come first, so that "\\[2pt]" opens no display and "\$" no mathematics.
_DISPLAY = re.compile(
    r"\\\\|\\begin\{(?P<begin>[a-zA-Z]+\*?)\}|\\end\{(?P<end>[a-zA-Z]+\*?)\}|\\\[|\\\]|\\\$|\$\$"
)
_INLINE = re.compile(rf"\\\\|\\\(|\\\)|\\\$|\$\$|\$|{_BLANK_LINE.pattern}")
# The lookbehind keeps a run of stops from being scanned again from each of its members.
_SENTENCE_END = re.compile(r"""(?<![.!?…])[.!?…]+["'”’»)\]}*_]*(?=\s)|(?<![。！？])[。！？]+["'”’»」』）]*""")
_WORD_BEFORE = re.compile(r"[\w.]+\Z")
_LIST_NUMBER = re.compile(r"[0-9]{1,3}|[a-zA-Z]|[ivxIVX]{1,4}")
_ABBREVIATIONS = frozenset(
    (
        "e.g",
        "i.e",
        "cf",
        "viz",
        "vs",
        "approx",
        "resp",
        "w.r.t",
        "s.t",
        "a.k.a",
        "fig",
        "figs",
        "eq",
        "eqs",
        "thm",
    )
)
_TITLES = frozenset(("Dr", "Mr", "Mrs", "Ms", "Prof", "St"))
_OFTEN_LAST = frozenset(("etc", "al", "ca", "inc", "ltd", "a.m", "p.m", "u.s", "u.k"))
_BEFORE_NUMBER = frozenset(("no", "nos", "p", "pp", "vol", "sec", "ch", "prop", "def", "cor", "art"))
