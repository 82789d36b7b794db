"""Whether an answer equals a reference, with algebra where it is needed, within limits."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from surefoot.answers.formulas import TooLargeError, UnreadableError, read_formula
from surefoot.concurrency import FairQueue
from surefoot.errors import AnswerError
from surefoot.maths import (
    MAX_CHARS,
    normalise,
    read_quantity,
    same_quantity,
    split_unit,
    units_agree,
    unwrap_all,
)

T = TypeVar("T")
_MEMO_PAIRS = 20_000
MOST_THREADS = 4
_QUICK_S = 0.1
"""Comparisons of a client that take longer on average leave half of the turns to others."""
UNREADABLE, TOO_LARGE = "unreadable", "too_large"


class AnswerChecker:
    """Compares answers with references.

    Methods:

    - ``math``: equal as normalised text, as quantities, words or choices, else by value: LaTeX and code are
      read whole, or the pair cannot be compared. Numbers are compared exactly; one with six decimals (of an
      exact value: six digits) may be the other rounded. Names, signs, bases, moduli and brackets count, and
      so does the order in a tuple. An equation of numbers that does not hold (``0=18``) equals nothing.
    - ``exact``: the same characters, white space at both ends apart.

    A quantity is a number (``1,234.5``, ``3/4``, ``2 1/2``, ``\\frac{3}{4}``, ``0.\\overline{3}``), perhaps
    with a unit. A unit on one side only is ignored: ``18 dollars`` equals ``18``. Different units are
    unequal, and nothing is converted: ``5 cm`` is not ``5 m``. A letter that touches its number is a variable
    (``4m`` is not ``4``), unless the other side has a unit. ``50%`` equals ``0.5`` and also ``50``; ``2
    dozen`` equals ``24`` and also ``2``. Inequalities of one variable equal the interval of their solutions.

    Answers may be hostile: the work of a comparison is bounded, by no clock, and nothing in them is run.
    Results are remembered by pair, failures too. Safe to share between threads, to pickle and to use after a
    fork. Use as a context manager or call ``close``.
    """

    def __init__(self, method: Literal["math", "exact"] = "math") -> None:
        """Raises ``AnswerError`` for an unknown method."""
        if method not in ("math", "exact"):
            raise AnswerError(f"method is {method!r}; choose from math, exact")
        self.method = method
        self.failures: Counter[str] = Counter()
        """Pairs that could not be compared, by reason: unreadable, too_large (a number, or the work),
        too_long, error."""
        self._turns = FairQueue(MOST_THREADS, quick=MOST_THREADS // 2, quick_cost=_QUICK_S)
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="surefoot-answers")
        self._lock = threading.Lock()
        self._compared = lru_cache(_MEMO_PAIRS)(self._compare)
        self._fingerprinted = lru_cache(_MEMO_PAIRS)(self._compute_fingerprint)

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """One verdict per ``(answer, reference)``; ``None`` = cannot be compared, counted in ``failures``."""
        verdicts: list[bool | None] = []
        for pair in pairs:
            verdict, failure = self._compared(*pair)
            if verdict is None:
                self._count(failure)
            verdicts.append(verdict)
        return verdicts

    def grade(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """As :meth:`equal`, but an answer too large or long to compare with a reference that is not is wrong.

        Otherwise it would be better to break the comparison than to be wrong. An answer that cannot be read
        stays unknown.
        """
        return [
            False if verdict is None and self._broken_by_answer(*pair) else verdict
            for pair, verdict in zip(pairs, self.equal(pairs), strict=True)
        ]

    def _broken_by_answer(self, answer: str, reference: str) -> bool:
        return self._compared(answer, reference)[1] in (TOO_LARGE, "too_long") and bool(
            self.fingerprint(reference)
        )

    def fingerprint(self, answer: str) -> str | None:
        """A text that equal values have in common, by which answers are sorted before they are compared.

        For the ``math`` method; it says nothing of units. ``None`` = it could not be computed within the
        limits, counted in ``failures``.
        """
        text, failure = self._fingerprinted(answer)
        if text is None:
            self._count(failure)
        return text

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, which compares answers, in a thread and in a fair turn of its client."""
        return await self._turns.run(self._threads, work)

    def close(self) -> None:
        """End the threads of :meth:`run`. Can be repeated."""
        self._threads.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return AnswerChecker, (self.method,)

    def _compare(self, answer: str, reference: str) -> tuple[bool | None, str]:
        if answer.strip() == reference.strip():
            return True, ""
        if self.method == "exact":
            return False, ""
        answer, reference = _spaced(answer, reference), _spaced(reference, answer)
        verdict = compare_plain(answer, reference)
        if verdict is not None:
            return verdict, ""
        if max(len(answer), len(reference)) > MAX_CHARS:
            return None, "too_long"
        (body, unit), (other_body, other_unit) = split_unit(answer), split_unit(reference)
        if not units_agree(unit, other_unit):
            return False, ""
        from surefoot.answers.symbolic import same_formulas

        verdict, failure = _attempt(lambda: same_formulas(body, other_body))
        verdict = _compare_texts(answer, reference) if failure == UNREADABLE else verdict
        return verdict, failure if verdict is None else ""

    def _compute_fingerprint(self, answer: str) -> tuple[str | None, str]:
        quantity = read_quantity(answer)
        if quantity is not None:
            return quantity.fingerprint, ""
        words = _choice(answer) or plain_words(answer)
        if words is not None:
            return f"words {words}", ""
        if len(answer) > MAX_CHARS:
            return None, "too_long"
        from surefoot.answers.symbolic import fingerprint

        text, failure = _attempt(lambda: fingerprint(split_unit(answer)[0]))
        return (f"text {normalise(answer)}", "") if failure == UNREADABLE else (text, failure)

    def _count(self, failure: str) -> None:
        with self._lock:
            self.failures[failure] += 1


def _attempt(work: Callable[[], T]) -> tuple[T | None, str]:
    """What ``work`` returns, or why it failed."""
    try:
        return work(), ""
    except UnreadableError:
        return None, UNREADABLE
    except (TooLargeError, RecursionError):
        return None, TOO_LARGE
    except (ArithmeticError, TypeError, AttributeError):  # a fault here: other answers are not to suffer
        return None, "error"


_CHOICES = re.compile(r"\(?[A-Z]\)?(?:(?: ?[,;&] ?(?:(?:and|or) )?| (?:and|or) )\(?[A-Z]\)?)*")
_CHOICE = re.compile(r"[A-Z]")
_CHOICE_WITH_TEXT = re.compile(
    r"(?:\(([A-J])\)|(?:(?:[Oo]ption|[Cc]hoice)\s+)\(?([A-J])\)?|([A-J])\s*[:.)](?![0-9]))"
    r"[\s\\:]*(?![-+*/^=<>_|!(])(?!.*(?:\([A-J]\)|\b[A-J]\s*[:)]|\bor\b))(?P<text>.*)",
    re.DOTALL,
)
_WORDS = re.compile(r"(?=.*[^\W\d_]{3})[^\W\d_]+(?:[ '-][^\W\d_]+)*|[A-Z]{2,}", re.DOTALL)
_PROSE = re.compile(r"[^\W_]*[^\W\d_]{2}[\w\s.,:;'()-]*|[0-9:]+ ?[ap]\.?m\.?", re.IGNORECASE)
_TOKEN = re.compile(r"[^\W\d_]+|-?[0-9]+(?:[.,:][0-9]+)*")
_TOUCHING_LETTER = re.compile(r"(.*[0-9])([a-zA-Z](?:\^\{?[23]\}?)?)")


def _spaced(text: str, other: str) -> str:
    """``text`` with a space before a letter that touches the number, where the ``other`` side has a unit."""
    letter = _TOUCHING_LETTER.fullmatch(text) if len(text) < MAX_CHARS else None
    return f"{letter[1]} {letter[2]}" if letter and split_unit(other)[1] else text


def _compare_texts(answer: str, reference: str) -> bool | None:
    """Verdict on two answers of which one cannot be read as a formula; ``None`` = unknown."""
    texts = [unwrap_all(normalise(text)) for text in (answer, reference)]
    prose = [_PROSE.fullmatch(text) is not None for text in texts]
    if not any(prose):
        return True if texts[0].split() == texts[1].split() else None
    if not all(prose):
        other = texts[prose.index(False)]
        value = re.search("[0-9]", other) and _is_formula(other)
        return False if value and _WORDS.fullmatch(texts[prose.index(True)]) else None
    tokens = [_TOKEN.findall(re.sub(r"(?<=[^\W\d_])\.", "", text.casefold())) for text in texts]
    words = [[token for token in line if token.isalpha()] for line in tokens]
    return tokens[0] == tokens[1] if words[0] == words[1] else None


def _is_formula(text: str) -> bool:
    try:
        return bool(read_formula(split_unit(text)[0]))
    except UnreadableError:
        return False


def compare_plain(answer: str, reference: str) -> bool | None:
    """Verdict on texts, quantities, words and choices; ``None`` = compare the values of formulas."""
    texts = [normalise(answer), normalise(reference)]
    if texts[0] == texts[1] or not all(texts):
        return texts[0] == texts[1]
    x, y = read_quantity(answer), read_quantity(reference)
    if x is not None and y is not None:
        return same_quantity(x, y)
    words, other_words = plain_words(answer), plain_words(reference)
    if words is not None and other_words is not None and words == other_words:
        return True
    choices = [_choice(text) for text in (answer, reference)]
    if all(choices) and any(len(choice) == 1 for choice in (words or "", other_words or "")):
        return choices[0] == choices[1]
    return None if words is None or other_words is None else False


def _choice(answer: str) -> str:
    """The letter of a choice, perhaps with its text: "(E) 40", "E: forty"; empty = it is another answer."""
    text = unwrap_all(normalise(answer)) if len(answer) <= MAX_CHARS else ""
    match = _CHOICE_WITH_TEXT.fullmatch(text)
    return next(filter(None, match.groups())) if match else text * bool(_CHOICE.fullmatch(text))


def plain_words(answer: str) -> str | None:
    """An answer of words or of the letters of choices ("A, D"), in one spelling; ``None`` = it is another.

    Words would be read as products of letters, in which "east" equals "seat".
    """
    if len(answer) > MAX_CHARS:
        return None
    text = unwrap_all(normalise(answer))
    if _CHOICES.fullmatch(text):
        return ", ".join(sorted(_CHOICE.findall(text)))
    return text.casefold() if _WORDS.fullmatch(text) else None
