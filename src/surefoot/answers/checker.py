"""Whether an answer equals a reference, with algebra where it is needed, within limits."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from surefoot.errors import AnswerError
from surefoot.io.bounded_worker import BoundedWorker

_MEMO_PAIRS = 20_000


class AnswerChecker:
    """Compares answers with references; holds one worker process for the symbolic cases.

    Methods:

    - ``math``: equal as normalised text or as plain numbers, else as `math-verify` parses and verifies them.
      Integers are compared exactly, decimals to six places, ``50%`` equals ``0.5`` and ``50``.
    - ``numeric``: plain numbers (``1,234.5``, ``3/4``, ``\\frac{3}{4}``, ``50%``), the difference at
      most ``rel_tol`` of the larger. An answer that is not a number is unequal; a reference that is not one
      cannot be compared.
    - ``exact``: the same characters, white space at both ends apart.

    Symbolic comparison runs in a separate process limited to ``timeout_s`` seconds a pair and ``memory_mb``
    MiB (where the platform can limit memory), which is started when first needed and replaced after a
    failure. Use as a context manager or call ``close``. Results are remembered by pair, failures too. Safe to
    share between threads, to pickle (the copy starts its own process) and to use after a fork.
    """

    def __init__(
        self,
        method: Literal["math", "numeric", "exact"] = "math",
        *,
        timeout_s: float = 5.0,
        memory_mb: int = 1024,
        rel_tol: float = 1e-6,
    ) -> None:
        """Raises ``AnswerError`` for an unknown method or a limit that is not positive."""
        if method not in ("math", "numeric", "exact"):
            raise AnswerError(f"method is {method!r}; choose from math, numeric, exact")
        if timeout_s <= 0 or memory_mb <= 0 or rel_tol < 0:
            raise AnswerError(
                f"timeout_s={timeout_s} and memory_mb={memory_mb} must be positive, "
                f"rel_tol={rel_tol} must not be negative"
            )
        self.method = method
        self.failures: Counter[str] = Counter()
        """Pairs that could not be compared, by reason: timeout, memory, too_deep, too_long, crash, error,
        reference_not_a_number."""
        self._settings: dict[str, Any] = {"timeout_s": timeout_s, "memory_mb": memory_mb, "rel_tol": rel_tol}
        self._tolerance = Fraction(str(rel_tol))
        self._worker = BoundedWorker(
            load_comparison, timeout_s=timeout_s, memory_mb=memory_mb, error=AnswerError
        )
        self._memo: dict[tuple[str, str], tuple[bool | None, str]] = {}
        self._lock = threading.Lock()

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """One verdict per ``(answer, reference)``; ``None`` = could not be compared, counted in ``failures``.

        Raises ``AnswerError`` if the comparing process cannot be started.
        """
        verdicts: list[bool | None] = []
        with self._lock:
            for pair in pairs:
                if pair not in self._memo:
                    if len(self._memo) >= _MEMO_PAIRS:
                        self._memo.clear()
                    self._memo[pair] = self._compare(*pair)
                verdict, failure = self._memo[pair]
                if verdict is None:
                    self.failures[failure] += 1
                verdicts.append(verdict)
        return verdicts

    def close(self) -> None:
        """Stop the worker process. Can be repeated; a later ``equal`` starts another."""
        with self._lock:
            self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(AnswerChecker, self.method, **self._settings), ()

    def _compare(self, answer: str, reference: str) -> tuple[bool | None, str]:
        if answer.strip() == reference.strip():
            return True, ""
        if self.method == "exact":
            return False, ""
        if self.method == "numeric":
            return self._compare_numbers(answer, reference)
        verdict = compare_plain(answer, reference)
        if verdict is not None:
            return verdict, ""
        if max(len(answer), len(reference)) > MAX_CHARS:
            return None, "too_long"
        reply = self._worker.ask({"answer": normalise(answer), "reference": normalise(reference)})
        return reply.answer, reply.failure or ""

    def _compare_numbers(self, answer: str, reference: str) -> tuple[bool | None, str]:
        right = plain_number(reference)
        if right is None:
            return None, "reference_not_a_number"
        left = plain_number(answer)
        if left is None:
            return False, ""
        (x, x_percent), (y, y_percent) = left, right
        # "50%" may be meant as 0.5 or as 50 when the other side does not say.
        xs = [x, x / 100] if x_percent and not y_percent else [x]
        ys = [y, y / 100] if y_percent and not x_percent else [y]
        return any(abs(a - b) <= self._tolerance * max(abs(a), abs(b)) for a in xs for b in ys), ""


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


def load_comparison() -> Callable[[dict[str, str]], bool]:
    """Task of the worker process: import math-verify; returns what compares ``answer`` with ``reference``."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    def read(text: str) -> list[Any]:
        # No time limits of its own anywhere below: they rest on SIGALRM, and the parent holds the clock.
        latex = text if "$" in text else f"${text}$"
        trees: list[Any] = parse(latex, extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
        if all(isinstance(item, str) for item in trees):
            # "2**10" is no LaTeX. This reader takes digits and arithmetic operators alone.
            trees = parse(text, extraction_config=[ExprExtractionConfig()], parsing_timeout=None) or trees
        return trees

    def compare(pair: dict[str, str]) -> bool:
        gold, target = read(pair["reference"]), read(pair["answer"])
        return bool(verify(gold, target, timeout_seconds=None, raise_on_error=True))

    # Fills the parser's tables, so that the first pair is not charged for them.
    compare({"answer": "x+1", "reference": "1+x"})
    return compare
