"""Where sentences end, as far as words and punctuation tell."""

from __future__ import annotations

import re
from collections.abc import Iterator

from surefoot.segment.tiling import VISIBLE

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


def sentence_ends(text: str) -> Iterator[int]:
    """Character after each full stop, question or exclamation mark (with closing quotes) of a sentence."""
    return (match.end() for match in _SENTENCE_END.finditer(text) if not _abbreviates(text, match))


def _abbreviates(text: str, stop: re.Match[str]) -> bool:
    """Whether the full stop ends an abbreviation or a list number, and not the sentence."""
    at = stop.start()
    if stop.group() != ".":
        return False
    before = _WORD_BEFORE.search(text, max(0, at - 16), at)
    word = before.group() if before else ""
    if word.lower() in _ABBREVIATIONS or word in _TITLES:
        return True
    following = VISIBLE.search(text, stop.end())
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
