"""Patterns of words that are searched in every step."""

from __future__ import annotations

import re
from functools import lru_cache


class Phrases:
    """A regular expression that ignores case, with the matches of ``re.IGNORECASE`` in a tenth of the time.

    The engine skips positions at which no alternative's first letter stands, but only for patterns that
    respect case and begin with letters. So text in ASCII is searched in lower case, and ``\\bword`` is
    written as ``word`` with the boundary looked up behind it.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._pattern = re.compile(pattern, re.IGNORECASE)
        lower = re.sub(r"\\.|[A-Z]", lambda m: m[0] if m[0][0] == "\\" else m[0].lower(), pattern)
        self._lower = re.compile(re.sub(r"\\b([a-z']+)(?![a-z'?*+{])", r"\1(?<=\\b\1)", lower))
        self.search = lru_cache(maxsize=8)(self._search)
        """The first match in a text. A sentence is often searched twice."""

    def _search(self, text: str) -> re.Match[str] | None:
        if not text.isascii():
            return self._pattern.search(text)
        match = self._lower.search(text.lower())
        return None if match is None else self._pattern.match(text, match.start())
