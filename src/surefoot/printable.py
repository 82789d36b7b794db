"""Control characters in untrusted text are escaped, and what other servers say is bounded."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # C0 and C1, except line break and tab
    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"  # direction of writing, other line ends
    "\\ud800-\\udfff]"  # halves of pairs, which no stream encodes
)
_SEQUENCE = re.compile(  # ECMA-48: CSI … final byte; OSC, DCS … up to their end; other escapes
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
)
MOST_QUOTED = 500
"""Characters of another server's message that are quoted."""


def quoted(text: str, most: int = MOST_QUOTED) -> str:
    """What another server says, for people: at most ``most`` characters, without escape sequences, and with
    other control characters escaped."""
    return printable(_SEQUENCE.sub("", text[: 4 * most]))[:most]


def printable(text: str) -> str:
    """Escape every character that a terminal would interpret instead of showing it.

    The escapes are JSON's, and such characters only occur in JSON strings, so JSON keeps its meaning.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def writable(text: str) -> str:
    """Escape unpaired surrogates, which JSON can hold but no file encoding can write."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
