"""Whether an answer equals a reference, with algebra where it is needed, within limits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from surefoot.answers.plain import MAX_CHARS, compare_plain, normalise, plain_number
from surefoot.errors import AnswerError
from surefoot.io.answer_task import load_comparison
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
