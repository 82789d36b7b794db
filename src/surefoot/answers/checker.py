"""Whether an answer equals a reference, with algebra where it is needed, within limits."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache, partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from surefoot.answers.symbolic import load_mathematics
from surefoot.errors import AnswerError
from surefoot.extras import installed, sentence
from surefoot.io.workers import Reply, RequestBudget, WorkerPool
from surefoot.maths import (
    MAX_CHARS,
    normalise,
    read_quantity,
    read_stated_quantity,
    same_quantity,
    split_unit,
    units_agree,
    unwrap_all,
)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
_MEMO_PAIRS = 20_000
_MOST_THREADS = 256
_NO_ALGEBRA = "no_algebra"
_PASSING = frozenset({"budget", "cancelled", _NO_ALGEBRA})
"""Failures that say nothing of the pair."""
_LOG = logging.getLogger("surefoot.answers")


class AnswerChecker:
    """Compares answers with references; holds worker processes for the symbolic cases.

    Methods:

    - ``math``: equal as normalised text, as quantities or as words, else as `math-verify` parses and verifies
      them. Integers are compared exactly, decimals to six places. An equation of numbers that does not hold
      (``0=18``) equals nothing.
    - ``numeric``: quantities alone, the difference at most ``rel_tol`` of the larger; also the last side of
      equations that hold (``x = 12``, ``3 + 4 = 7``), and one with a remark (``12 (twelve)``). An answer that
      is not one is unequal; a reference that is not one cannot be compared.
    - ``exact``: the same characters, white space at both ends apart.

    A quantity is a number (``1,234.5``, ``3/4``, ``2 1/2``, ``\\frac{3}{4}``, ``0.\\overline{3}``), perhaps
    with a unit. A unit on one side only is ignored: ``18 dollars`` equals ``18``. Different units are
    unequal, and nothing is converted: ``5 cm`` is not ``5 m``. ``50%`` equals ``0.5`` and also ``50``; ``2
    dozen`` equals ``24`` and also ``2``. Inequalities of one variable equal the interval of their solutions.

    Symbolic comparison runs in separate processes limited to ``timeout_s`` seconds a pair and ``memory_mb``
    MiB (where the platform can limit memory), which are started when first needed and replaced after a
    failure. It needs the extra ``math``; without it, pairs that need algebra are not compared, which is
    counted and logged. Use as a context manager or call ``close``. Results are remembered by pair, failures
    too. Safe to share between threads, to pickle (the copy starts its own processes) and to use after a fork.

    A server shares one among its requests: :meth:`limited` is the same checker for one of them, with a
    budget, and its ``workers`` are shared fairly among their callers (``surefoot.io.workers``).
    """

    def __init__(
        self,
        method: Literal["math", "numeric", "exact"] = "math",
        *,
        timeout_s: float = 5.0,
        memory_mb: int = 1024,
        rel_tol: float = 1e-6,
        workers: int = 1,
    ) -> None:
        """Raises ``AnswerError`` for an unknown method or a limit that is not positive."""
        if method not in ("math", "numeric", "exact"):
            raise AnswerError(f"method is {method!r}; choose from math, numeric, exact")
        if timeout_s <= 0 or memory_mb <= 0 or workers <= 0 or rel_tol < 0:
            raise AnswerError(
                f"timeout_s={timeout_s}, memory_mb={memory_mb} and workers={workers} must be positive, "
                f"rel_tol={rel_tol} must not be negative"
            )
        self.method = method
        self.failures: Counter[str] = Counter()
        """Pairs that could not be compared, by reason: timeout, memory, too_deep, too_long, crash, error,
        reference_not_a_number, no_algebra (the extra ``math`` is not installed); and of limited checkers
        budget, cancelled."""
        self._settings: dict[str, Any] = {
            "timeout_s": timeout_s,
            "memory_mb": memory_mb,
            "rel_tol": rel_tol,
            "workers": workers,
        }
        self._algebra = installed("math_verify")
        self._tolerance = Fraction(str(rel_tol))
        self._workers = WorkerPool(
            load_mathematics, size=workers, timeout_s=timeout_s, memory_mb=memory_mb, error=AnswerError
        )
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="surefoot-answers")
        self._budget: RequestBudget | None = None
        self._turn: asyncio.Lock | None = None
        self._memo: dict[tuple[str, str], tuple[bool | None, str]] = {}
        self._fingerprints: dict[str, tuple[str | None, str]] = {}
        self._lock = threading.Lock()

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """One verdict per ``(answer, reference)``; ``None`` = could not be compared, counted in ``failures``.

        Raises ``AnswerError`` if the comparing process cannot be started.
        """
        verdicts: list[bool | None] = []
        for pair in pairs:
            remembered = self._memo.get(pair)
            verdict, failure = remembered or self._compare(*pair)
            if remembered is None:
                self._remember(self._memo, pair, (verdict, failure))
            if verdict is None:
                self._count(failure)
            verdicts.append(verdict)
        return verdicts

    def grade(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """As :meth:`equal`, but an answer that cannot be compared with a reference that can be read is wrong.

        Otherwise it would be better to break the comparison than to be wrong.
        """
        return [
            False if verdict is None and self._broken_by_answer(*pair) else verdict
            for pair, verdict in zip(pairs, self.equal(pairs), strict=True)
        ]

    def _broken_by_answer(self, answer: str, reference: str) -> bool:
        # a failure that says nothing of the pair is not remembered
        return (
            self.method == "math" and (answer, reference) in self._memo and bool(self.fingerprint(reference))
        )

    def fingerprint(self, answer: str) -> str | None:
        """A text that equal values have in common, by which answers are sorted before they are compared.

        For the ``math`` method; it says nothing of units. ``None`` = it could not be computed within the
        limits, counted in ``failures``. Raises ``AnswerError`` as ``equal`` does.
        """
        remembered = self._fingerprints.get(answer)
        text, failure = remembered or self._compute_fingerprint(answer)
        if remembered is None:
            self._remember(self._fingerprints, answer, (text, failure))
        if text is None:
            self._count(failure)
        return text

    def limited(self, seconds: float, *, caller: str = "") -> AnswerChecker:
        """The same checker for one request, whose symbolic comparisons take at most ``seconds`` in all.

        Memory, workers and ``failures`` are shared; workers go first to the ``caller`` whose requests have
        used them least. Once the budget is spent, answers are only compared as text, quantities and words; an
        answer that needs algebra is a failure ``budget``.
        """
        other = object.__new__(type(self))  # copy() would make another checker, as pickle does
        vars(other).update(vars(self))
        other._budget, other._turn = RequestBudget(seconds, caller=caller), asyncio.Lock()
        return other

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, which compares answers, in a thread of this checker's own.

        Of a limited checker one runs at a time, and cancelling ends the comparisons too: nothing is left
        running for a client who has gone.
        """
        loop = asyncio.get_running_loop()
        if self._budget is None or self._turn is None:
            return await loop.run_in_executor(self._threads, work)
        try:
            async with self._turn:
                return await loop.run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            self._budget.cancel()
            raise

    def close(self) -> None:
        """Stop the worker processes. Can be repeated; a later ``equal`` starts others."""
        self._workers.close()

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
        (body, unit), (other_body, other_unit) = split_unit(answer), split_unit(reference)
        if not units_agree(unit, other_unit):
            return False, ""
        reply = self._ask({"answer": body, "reference": other_body})
        return reply.answer, reply.failure or ""

    def _compare_numbers(self, answer: str, reference: str) -> tuple[bool | None, str]:
        expected = read_stated_quantity(reference)
        if expected is None:
            return None, "reference_not_a_number"
        number = read_stated_quantity(answer)
        if number is None or not units_agree(number.unit, expected.unit):
            return False, ""
        pairs = [(x, y) for x in number.readings(expected) for y in expected.readings(number)]
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
        reply = self._ask({"answer": split_unit(answer)[0]})
        return reply.answer, reply.failure or ""

    def _ask(self, question: dict[str, str]) -> Reply:
        if not self._algebra:
            _warn_of_algebra()
            return Reply(failure=_NO_ALGEBRA)
        return self._workers.ask(question, self._budget)

    def _remember(self, memo: dict[K, tuple[V, str]], key: K, result: tuple[V, str]) -> None:
        if result[1] in _PASSING:
            return
        with self._lock:
            if len(memo) >= _MEMO_PAIRS:
                memo.clear()
            memo[key] = result

    def _count(self, failure: str) -> None:
        with self._lock:
            self.failures[failure] += 1


@cache
def _warn_of_algebra() -> None:
    _LOG.warning(
        "answers that only algebra can compare are not compared: it needs %s", sentence("math_verify")
    )


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
    words, other_words = plain_words(answer), plain_words(reference)
    return None if words is None or other_words is None else words == other_words


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
