"""Text of strangers in a terminal: shown, not obeyed."""

from __future__ import annotations

import re

_OBEYED = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # C0 and C1, but line break and tab
    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"  # direction of writing, other line ends
    "\\ud800-\\udfff]"  # halves of pairs, which no stream encodes
)


def printable(text: str) -> str:
    """``text`` with every character escaped that a terminal would obey instead of showing it.

    The escapes are those of JSON, in which no such character means anything: JSON stays the same JSON.
    """
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def writable(text: str) -> str:
    """``text`` with halves of surrogate pairs as escapes: JSON can spell them, and no file takes them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
