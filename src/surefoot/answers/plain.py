"""Answers that are compared without algebra: as normalised text, as plain numbers, as words."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 2000
"""Longest answer sent to the symbolic comparison."""

DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
"""A number as pattern: thousands separators and decimals, no sign."""
_PLAIN = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:\\?\$)?\s*(?P<sign2>[+-]?)(?:\\frac\s*\{{(?P<over>{DIGITS})\}}\s*\{{(?P<under>{DIGITS})\}}"
    rf"|(?P<top>{DIGITS}\.?(?:[eE][+-]?[0-9]{{1,3}})?)(?:\s*/\s*(?P<bottom>{DIGITS}))?)\s*(?P<percent>\\?%)?"
)
_SPELLINGS = (
    (re.compile(r"\\[!,;]|\\(?:left|right)(?![a-zA-Z])"), ""),
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\{,\}"), ","),
)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textrm|textit|mathrm|mbox)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"(?=.*[^\W\d_]{3})[^\W\d_]+(?:[ '-][^\W\d_]+)*", re.DOTALL)


def compare_plain(answer: str, reference: str) -> bool | None:
    """Verdict where none needs algebra; ``None`` = ask the worker."""
    left, right = normalise(answer), normalise(reference)
    if left == right:
        return True
    x, y = plain_number(answer), plain_number(reference)
    if x is not None and y is not None:
        if x == y:
            return True
        whole = x[0].denominator == y[0].denominator == 1
        return False if whole and not x[1] and not y[1] else None
    # Words would be read as products of letters, in which "east" equals "seat".
    if len(left) <= MAX_CHARS and len(right) <= MAX_CHARS:
        words = [" ".join(_TEXT_COMMAND.sub(r"\1", text).split()) for text in (left, right)]
        if all(_WORDS.fullmatch(text) for text in words):
            return words[0].casefold() == words[1].casefold()
    return None


def plain_number(text: str) -> tuple[Fraction, bool] | None:
    """Value as written, and whether a percent sign follows; ``None`` = not a plain number."""
    if len(text) > MAX_CHARS:
        return None
    match = _PLAIN.fullmatch(normalise(text))
    if match is None or (match["sign"] and match["sign2"]):
        return None
    top = match["over"] or match["top"]
    bottom = match["under"] or match["bottom"] or "1"
    numerator, denominator = (Fraction(_bare(part)) for part in (top, bottom))
    if denominator == 0:
        return None
    value = numerator / denominator
    return (-value if "-" in (match["sign"], match["sign2"]) else value), match["percent"] is not None


def _bare(digits: str) -> str:
    return "0" + digits.replace(",", "").rstrip(".")


def normalise(answer: str) -> str:
    """``answer`` without what never changes its meaning: outer dollars, full stop, spacing commands."""
    text = " ".join(answer.replace("\u2212", "-").split()).rstrip(".").rstrip()
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = text[len(opening) : len(text) - len(closing)]
        wrapped = text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing)
        if wrapped and "$" not in inner:
            text = inner.strip().rstrip(".").rstrip()
            break
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text.strip()
