"""The text that a reward model was tested on, and how another text differs from it."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import FrozenModel, Trace

_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_MOST_WORDS: Final = 500
_UNKNOWN: Final = "the data set's rule"
"""Segmentation of traces that do not name it."""
_TOLERANCE: Final = 0.1
"""So much below the tested texts' share of frequent words is a difference."""
_RARE_SCRIPT: Final = 0.01
"""A smaller share of the letters is a quotation or a symbol."""


class MeasuredText(FrozenModel):
    """What the held-out problems and their traces look like."""

    data: str
    """Names of the data sets."""
    scripts: tuple[str, ...]
    """Scripts with at least 1 % of the letters, such as ``LATIN``."""
    segmentation: tuple[str, ...]
    """How the traces were cut into steps."""
    steps: int
    """Steps of the longest trace."""
    characters: int
    """Characters of the longest trace, over its steps."""
    words: tuple[str, ...]
    """The most frequent words, at most 500 that occur in two problems."""
    coverage: float
    """Lowest share of a trace's words that are among ``words``, without the lowest 5 % of the traces."""

    @classmethod
    def of(cls, items: Sequence[ProblemTrace | LabelledTrace]) -> MeasuredText:
        """Describe problems and their traces."""
        texts = [_text(item) for item in items]
        problems: Counter[str] = Counter()
        for text in {item.problem.id: text for item, text in zip(items, texts, strict=True)}.values():
            problems.update(set(_words(text)))
        words = [word for word, count in problems.most_common(_MOST_WORDS) if count > 1]
        shares = sorted(_share(text, set(words)) for text in texts)
        return cls(
            data=", ".join(sorted({item.problem.source or "data without a name" for item in items})),
            scripts=_scripts(texts),
            segmentation=tuple(sorted({item.trace.granularity or _UNKNOWN for item in items})),
            steps=max(len(item.trace.steps) for item in items),
            characters=max(_characters(item.trace) for item in items),
            words=tuple(sorted(words)),
            coverage=round(shares[len(shares) // 20], 4),
        )

    @property
    def limits(self) -> str:
        """Where nothing was measured."""
        return (
            f"other subjects or languages, steps cut otherwise than by {' or '.join(self.segmentation)}, or "
            f"more than {self.steps} steps or {self.characters:,} characters"
        )

    def differences(self, item: ProblemTrace | LabelledTrace) -> Iterator[str]:
        """What differs from the tested text: words, script, cut into steps, length."""
        text = _text(item)
        share, scripts = _share(text, set(self.words)), set(_scripts([text])) - set(self.scripts)
        if scripts:
            yield f"language: letters of {', '.join(sorted(scripts))}"
        if share < self.coverage - _TOLERANCE:
            yield f"text: {share:.0%} of its words are frequent in the tested text, there {self.coverage:.0%}"
        cut, tested = item.trace.granularity, self.segmentation
        if cut and cut not in tested and _UNKNOWN not in tested:
            yield f"segmentation: cut by {cut}, not by {' or '.join(tested)}"
        if len(item.trace.steps) > self.steps or _characters(item.trace) > self.characters:
            yield f"length: more than {self.steps} steps or {self.characters:,} characters"


def _text(item: ProblemTrace | LabelledTrace) -> str:
    steps = (item.trace.step_text(step) for step in range(len(item.trace.steps)))
    return "\n".join([item.problem.text, *steps])


def _characters(trace: Trace) -> int:
    return sum(len(trace.step_text(step)) for step in range(len(trace.steps)))


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _share(text: str, words: set[str]) -> float:
    of_text = _words(text)
    return sum(word in words for word in of_text) / len(of_text) if of_text else 1.0


def _scripts(texts: Iterable[str]) -> tuple[str, ...]:
    """First word of the Unicode names of the letters: LATIN, CYRILLIC, CJK, …"""
    letters: Counter[str] = Counter(char for text in texts for char in text if char.isalpha())
    scripts: Counter[str] = Counter()
    for char, count in letters.items():
        scripts[unicodedata.name(char, "UNKNOWN").split(" ")[0].split("-")[0]] += count
    total = scripts.total()
    return tuple(sorted(name for name, count in scripts.items() if count >= _RARE_SCRIPT * total))
