"""Text that a model would read as a token of its own: special tokens, and the marker between steps.

Problems and steps are written by others. In them such text is broken by a space (``<|im_end|>`` becomes
``< |im_end|>``) and so read as the text it is, in training and in scoring alike: it opens no turn, ends none,
and is not taken for the end of a step.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from surefoot.policies.prompts import special_tokens
from surefoot.segment.spans import Span

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Reserved:
    """What may not stand in a text: ``special`` tokens, and ``markers`` that are not part of a word.

    A token of one visible character cannot be broken and stays; so does a marker of white space alone.
    """

    def __init__(self, special: Iterable[str], markers: Iterable[str] = ()) -> None:
        heads: dict[str, list[str]] = defaultdict(list)
        for token in special:
            first = len(token) - len(token.lstrip()) + 1
            if len(token) > first:
                heads[re.escape(token[:first])].append(re.escape(token[first:]))
        for marker in filter(lambda text: len(text) > 1, map(str.strip, markers)):
            before = r"(?<!\w)" if re.match(r"\w", marker) else ""
            after = r"(?!\w)" if re.search(r"\w\Z", marker) else ""
            heads[before + re.escape(marker[0])].append(re.escape(marker[1:]) + after)
        # Only the part up to the first visible character is matched, so that tokens may overlap.
        pieces = [f"{head}(?={'|'.join(sorted(tails))})" for head, tails in sorted(heads.items())]
        self._pattern = re.compile("|".join(pieces) or r"(?!)")

    def broken(self, text: str) -> str:
        """``text`` with a space after the first visible character of each."""
        return self._pattern.sub(lambda match: f"{match[0]} ", text)

    def broken_with_spans(self, text: str, spans: Sequence[Span]) -> tuple[str, list[Span]]:
        """The same, and where ``spans`` of ``text`` are then; spans that touch still do."""
        added = [match.end() for match in self._pattern.finditer(text)]
        if not added:
            return text, list(spans)
        return self.broken(text), [
            (start + bisect_left(added, start), end + bisect_left(added, end)) for start, end in spans
        ]


def reserved_text(tokenizer: PreTrainedTokenizerBase, markers: Iterable[str] = ()) -> Reserved:
    """The special tokens that ``tokenizer`` lists, and ``markers``."""
    return _reserved(special_tokens(tokenizer), tuple(markers))


@lru_cache(maxsize=32)
def _reserved(special: frozenset[str], markers: tuple[str, ...]) -> Reserved:
    return Reserved(special, markers)
