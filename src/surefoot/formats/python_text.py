"""Lists and objects that a table holds as Python text, as pandas and NumPy write them into CSV."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic_core import from_json, to_json

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")
    | (?P<value>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|True|False|None|nan)
    | (?P<mark>[\[\](){}:,]))""",
    re.VERBOSE | re.DOTALL,
)
_AS_JSON: Final = {"True": "true", "False": "false", "None": "null", "nan": "null", "(": "[", ")": "]"}
_ESCAPE: Final = re.compile(r"\\(x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": ""}


def python_value(text: str) -> Any:
    """The list or object that ``text`` writes as Python: made JSON token by token, never evaluated.

    Texts side by side are elements of a NumPy array, not one text. Raises ``ValueError`` for anything but
    lists, tuples, objects, texts, numbers, booleans and ``None``.
    """
    tokens, at = [""], 0
    while match := _TOKEN.match(text, at):
        at = match.end()
        token = match[0].strip()
        if match["mark"] is None and tokens[-1][-1:] not in ("", "[", "{", ":", ","):
            tokens.append(",")
        elif token in ("]", ")", "}") and tokens[-1] == ",":
            tokens.pop()
        if match["text"] is not None:
            token = to_json(_ESCAPE.sub(_unescaped, token[1:-1])).decode()
        tokens.append(_AS_JSON.get(token, token))
    if text[at:].strip():
        raise ValueError(f"no Python value from character {at} on")
    return from_json("".join(tokens))


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, match[0])
