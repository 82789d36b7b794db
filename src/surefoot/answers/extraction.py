"""The final answer in the text of a solution."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Literal, get_args

from surefoot.answers.quantities import DIGITS, without_emphasis
from surefoot.errors import AnswerError

AnswerStyle = Literal["boxed", "hash", "phrase", "last_number"]
"""boxed: ``\\boxed{5}``; hash: ``#### 5``; phrase: ``the answer is 5``; last_number: the last number."""

_NUMBER_IN_TEXT = re.compile(
    rf"(?:(?<![\w)\]}}])[+\-\u2212](?:\\?\$)?)?(?:\\[dt]?frac\{{{DIGITS}\}}\{{{DIGITS}\}}|{DIGITS}(?:/{DIGITS})?)(?:\\?%)?"
)
_BRACES = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])[ \t]*(?P<open>\{)?|\\.|[{}]", re.DOTALL)
_BARE_BOXED = re.compile(r"([^\s{}$,\\]+)")
_PHRASE = re.compile(r"answer\s*(?:is\b\s*:?|:)(?:[\s:]|[*_]++(?![^\s:]))*", re.IGNORECASE)
_DOLLAR_OR_STOP = re.compile(r"\$|\.(?=\s)")


def extract_answer(
    text: str, styles: Sequence[AnswerStyle] = ("boxed", "hash", "phrase", "last_number")
) -> str | None:
    """Final answer of a solution by the first of ``styles`` that finds one; ``None`` = none does.

    - boxed: content of the last ``\\boxed{...}`` or ``\\fbox{...}`` whose braces balance, or ``\\boxed 5``.
    - hash: from the last ``####`` to the end of its line.
    - phrase: after the last "answer is" or "answer:", to the end of the sentence or line.
    - last_number: the last number, with sign, thousands separators, decimals, fraction and percent sign.

    Reasoning is no answer: only what follows the last ``</think>`` is read, and nothing of a text that is
    still inside ``<think>``.

    The time taken is linear in the length of ``text``. Raises ``AnswerError`` for an unknown style.
    """
    text = text.rpartition("</think>")[2]
    if text.lstrip().startswith("<think>"):
        return None
    for style in styles:
        if style not in _EXTRACTORS:
            raise AnswerError(f"styles has {style!r}; choose from {', '.join(get_args(AnswerStyle))}")
        answer = _EXTRACTORS[style](text)
        if answer:
            return answer
    return None


def _boxed(text: str) -> str | None:
    """One pass with a stack: searching the closing brace of each box anew would be quadratic."""
    boxes: list[tuple[int, str]] = []
    opened: list[tuple[bool, int]] = []
    for match in _BRACES.finditer(text):
        mark = match.group()
        if mark == "}":
            if opened:
                is_box, start = opened.pop()
                if is_box:
                    boxes.append((start, text[start : match.start()]))
        elif match["open"] or mark == "{":
            opened.append((match["open"] is not None, match.end()))
        elif mark.startswith(("\\boxed", "\\fbox")):
            bare = _BARE_BOXED.match(text, match.end())
            if bare:
                boxes.append((match.end(), bare[1].rstrip(".")))
    filled = [(start, content.strip()) for start, content in boxes if content.strip()]
    return max(filled)[1] if filled else None


def _hash(text: str) -> str | None:
    start = text.rfind("####")
    if start < 0:
        return None
    return (text[start + 4 :].splitlines() or [""])[0].strip() or None


def _phrase(text: str) -> str | None:
    last = _last(_PHRASE, text)
    if last is None:
        return None
    rest = (text[last.end() :].splitlines() or [""])[0]
    maths = False
    for mark in _DOLLAR_OR_STOP.finditer(rest):
        if mark.group() == "$":
            maths = not maths
        elif not maths:  # a full stop inside $...$ ends no sentence
            rest = rest[: mark.start()]
            break
    rest = without_emphasis(rest).strip().strip("*_").strip()
    answer = _trim(rest)
    return _boxed(answer) or answer or None


def _trim(text: str) -> str:
    """``text`` without a trailing full stop and the dollars around it."""
    text = text.rstrip(".").strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$").strip().rstrip(".")
    return text.strip()


def _last_number(text: str) -> str | None:
    last = _last(_NUMBER_IN_TEXT, text)
    return None if last is None else last.group().strip()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


_EXTRACTORS = {"boxed": _boxed, "hash": _hash, "phrase": _phrase, "last_number": _last_number}
