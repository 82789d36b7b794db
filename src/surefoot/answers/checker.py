"""Whether an answer equals a reference, with algebra where it is needed, within limits."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from surefoot.answers.quantities import (
    MAX_CHARS,
    normalise,
    read_quantity,
    same_quantity,
    split_unit,
    units_agree,
    unwrap_all,
)
from surefoot.answers.symbolic import load_mathematics
from surefoot.errors import AnswerError
from surefoot.io.bounded_worker import BoundedWorker

_MEMO_PAIRS = 20_000


class AnswerChecker:
    """Compares answers with references; holds one worker process for the symbolic cases.

    Methods:

    - ``math``: equal as normalised text, as quantities or as words, else as `math-verify` parses and verifies
      them. Integers are compared exactly, decimals to six places. An equation of numbers that does not hold
      (``0=18``) equals nothing.
    - ``numeric``: quantities alone, the difference at most ``rel_tol`` of the larger. An answer that is not
      one is unequal; a reference that is not one cannot be compared.
    - ``exact``: the same characters, white space at both ends apart.

    A quantity is a number (``1,234.5``, ``3/4``, ``\\frac{3}{4}``, ``0.\\overline{3}``) and perhaps a unit. A
    unit that only one side gives is no difference: ``18 dollars`` equals ``18``; two that differ are one:
    ``5 cm`` is not ``5 m``, and nothing is converted. ``50%`` equals ``0.5`` and also ``50``; ``2 dozen``
    equals ``24`` and also ``2``.

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
            load_mathematics, timeout_s=timeout_s, memory_mb=memory_mb, error=AnswerError
        )
        self._memo: dict[tuple[str, str], tuple[bool | None, str]] = {}
        self._fingerprints: dict[str, tuple[str | None, str]] = {}
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

    def fingerprint(self, answer: str) -> str | None:
        """A text that equal values have in common, by which answers are sorted before they are compared.

        For the ``math`` method; it says nothing of units. ``None`` = it could not be computed within the
        limits, counted in ``failures``. Raises ``AnswerError`` as ``equal`` does.
        """
        with self._lock:
            if answer not in self._fingerprints:
                if len(self._fingerprints) >= _MEMO_PAIRS:
                    self._fingerprints.clear()
                self._fingerprints[answer] = self._compute_fingerprint(answer)
            text, failure = self._fingerprints[answer]
            if text is None:
                self.failures[failure] += 1
            return text

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
        (left, unit), (right, other_unit) = split_unit(answer), split_unit(reference)
        if not units_agree(unit, other_unit):
            return False, ""
        reply = self._worker.ask({"answer": left, "reference": right})
        return reply.answer, reply.failure or ""

    def _compare_numbers(self, answer: str, reference: str) -> tuple[bool | None, str]:
        right = read_quantity(reference)
        if right is None:
            return None, "reference_not_a_number"
        left = read_quantity(answer)
        if left is None or not units_agree(left.unit, right.unit):
            return False, ""
        pairs = [(x, y) for x in left.readings(right) for y in right.readings(left)]
        return any(self.close_numbers(x, y) for x, y in pairs), ""

    def close_numbers(self, x: Fraction, y: Fraction) -> bool:
        """Whether two numbers are equal by ``rel_tol``."""
        return abs(x - y) <= self._tolerance * max(abs(x), abs(y))

    def _compute_fingerprint(self, answer: str) -> tuple[str | None, str]:
        quantity = read_quantity(answer)
        if quantity is not None:
            return quantity.fingerprint, ""
        words = plain_words(answer)
        if words is not None:
            return f"words {words}", ""
        if len(answer) > MAX_CHARS:
            return None, "too_long"
        reply = self._worker.ask({"answer": split_unit(answer)[0]})
        return reply.answer, reply.failure or ""


_CHOICES = re.compile(r"\(?[A-Z]\)?(?:(?: ?[,;&] ?(?:(?:and|or) )?| (?:and|or) )\(?[A-Z]\)?)*")
_CHOICE = re.compile(r"[A-Z]")
_WORDS = re.compile(r"(?=.*[^\W\d_]{3})[^\W\d_]+(?:[ '-][^\W\d_]+)*", re.DOTALL)


def compare_plain(answer: str, reference: str) -> bool | None:
    """Verdict where none needs algebra; ``None`` = ask the worker."""
    if normalise(answer) == normalise(reference):
        return True
    x, y = read_quantity(answer), read_quantity(reference)
    if x is not None and y is not None:
        return same_quantity(x, y)
    left, right = plain_words(answer), plain_words(reference)
    return None if left is None or right is None else left == right


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
