"""Ways to cut a text into steps, and their names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from surefoot.errors import SegmentError
from surefoot.protocols import Segmenter
from surefoot.segment.sentence_ends import sentence_ends
from surefoot.segment.tiling import BLANK_LINE, Span, outside, protected, tile

_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class BlankLine:
    """A step ends at one or more blank lines."""

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        return tile(text, (match.end() for match in BLANK_LINE.finditer(text)))


@dataclass(frozen=True)
class Line:
    """Each line with a visible character is a step."""

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        return tile(text, (match.end() for match in _NEWLINE.finditer(text)))


@dataclass(frozen=True)
class Sentence:
    """A step ends at a full stop, question or exclamation mark before white space, or at a blank line.

    Decimals, common abbreviations (e.g., Fig., Dr.), list numbers at the start of a line (``1. Add``) and
    inline mathematics (``$..$``, ``\\(..\\)``) hold no end of a sentence.
    """

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        blanks = (match.end() for match in BLANK_LINE.finditer(text))
        return tile(text, sorted([*sentence_ends(text), *blanks]), inline=True)


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
            return tile(text, (match.end() for match in matches))
        blocked = protected(text, inline=False)
        starts = [match.start() for match in matches]
        return tile(text, list(outside(starts, blocked))[1:])


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
