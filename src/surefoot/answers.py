"""The only answer extraction and equality in the package."""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, get_args

from surefoot._answer_task import load_comparison
from surefoot._bounded_worker import BoundedWorker
from surefoot.errors import AnswerError

AnswerStyle = Literal["boxed", "hash", "phrase", "last_number"]
"""boxed: ``\\boxed{5}``; hash: ``#### 5``; phrase: ``the answer is 5``; last_number: the last number."""

MAX_CHARS = 2000
"""Longest answer sent to the symbolic comparison."""

_MEMO_PAIRS = 20_000
_PROBE = "1"


def extract_answer(
    text: str, styles: Sequence[AnswerStyle] = ("boxed", "hash", "phrase", "last_number")
) -> str | None:
    """Final answer of a solution by the first of ``styles`` that finds one; ``None`` = none does.

    - boxed: content of the last ``\\boxed{...}`` or ``\\fbox{...}`` whose braces balance, or ``\\boxed 5``.
    - hash: from the last ``####`` to the end of its line.
    - phrase: after the last "answer is" or "answer:", to the end of the sentence or line.
    - last_number: the last number, with sign, thousands separators, decimals, fraction and percent sign.

    The time taken is linear in the length of ``text``. Raises ``AnswerError`` for an unknown style.
    """
    for style in styles:
        if style not in _EXTRACTORS:
            raise AnswerError(f"styles has {style!r}; choose from {', '.join(get_args(AnswerStyle))}")
        answer = _EXTRACTORS[style](text)
        if answer:
            return answer
    return None


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
        verdict = _compare_simple(answer, reference)
        if verdict is not None:
            return verdict, ""
        if max(len(answer), len(reference)) > MAX_CHARS:
            return None, "too_long"
        reply = self._worker.ask({"answer": _normalise(answer), "reference": _normalise(reference)})
        return reply.answer, reply.failure or ""

    def _compare_numbers(self, answer: str, reference: str) -> tuple[bool | None, str]:
        right = _plain_number(reference)
        if right is None:
            return None, "reference_not_a_number"
        left = _plain_number(answer)
        if left is None:
            return False, ""
        (x, x_percent), (y, y_percent) = left, right
        # "50%" may be meant as 0.5 or as 50 when the other side does not say.
        xs = [x, x / 100] if x_percent and not y_percent else [x]
        ys = [y, y / 100] if y_percent and not x_percent else [y]
        return any(abs(a - b) <= self._tolerance * max(abs(a), abs(b)) for a in xs for b in ys), ""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The final answer of one solution, and whether it is right."""

    answer: str | None
    """``None`` = none found, which counts as a wrong outcome."""
    outcome: bool | None
    """``None`` = unknown: no reference, or the comparison failed (see ``AnswerChecker.failures``)."""


@dataclass(frozen=True, kw_only=True)
class Grader:
    """Extraction and comparison in one: the gold grader of a data set."""

    checker: AnswerChecker
    styles: tuple[AnswerStyle, ...] = ("boxed", "hash", "phrase", "last_number")

    def grade(self, texts: Sequence[str], references: Sequence[str | None]) -> list[Grade]:
        """One grade per solution, against the reference of the same place."""
        answers = [extract_answer(text, self.styles) for text in texts]
        pairs = [(a, r) for a, r in zip(answers, references, strict=True) if a is not None and r is not None]
        verdicts = iter(self.checker.equal(pairs))
        grades = []
        for answer, reference in zip(answers, references, strict=True):
            outcome = None
            if reference is not None:
                outcome = next(verdicts) if answer is not None else False
            grades.append(Grade(answer=answer, outcome=outcome))
        return grades


def group_equal(answers: Sequence[str | None], checker: AnswerChecker) -> list[str | None]:
    """Canonical form of each answer, so that equal answers become equal strings and can be counted.

    The first seen member stands for its class, and an answer is compared with these alone, in order of
    appearance; so classes never overlap, whatever the comparison. ``None`` stays ``None``. An answer that
    cannot be compared at all stands alone, and costs at most two failures however many answers there are.
    """
    canonical: dict[str, str] = {}
    representatives: list[str] = []
    for answer in answers:
        if answer is None or answer in canonical:
            continue
        canonical[answer] = answer
        match, comparable = _find_class(answer, representatives, checker)
        if match is not None:
            canonical[answer] = match
        elif comparable:
            representatives.append(answer)
    return [None if answer is None else canonical[answer] for answer in answers]


def _normalise(answer: str) -> str:
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


_SPELLINGS = (
    (re.compile(r"\\[!,;]|\\(?:left|right)(?![a-zA-Z])"), ""),
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\{,\}"), ","),
)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textrm|textit|mathrm|mbox)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"(?=.*[^\W\d_]{3})[^\W\d_]+(?:[ '-][^\W\d_]+)*", re.DOTALL)

_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_PLAIN = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:\\?\$)?\s*(?P<sign2>[+-]?)(?:\\frac\s*\{{(?P<over>{_DIGITS})\}}\s*\{{(?P<under>{_DIGITS})\}}"
    rf"|(?P<top>{_DIGITS}\.?(?:[eE][+-]?[0-9]{{1,3}})?)(?:\s*/\s*(?P<bottom>{_DIGITS}))?)\s*(?P<percent>\\?%)?"
)
_NUMBER_IN_TEXT = re.compile(
    rf"(?:(?<![\w)\]}}])[+\-\u2212](?:\\?\$)?)?(?:\\[dt]?frac\{{{_DIGITS}\}}\{{{_DIGITS}\}}|{_DIGITS}(?:/{_DIGITS})?)(?:\\?%)?"
)


def _plain_number(text: str) -> tuple[Fraction, bool] | None:
    """Value as written, and whether a percent sign follows; ``None`` = not a plain number."""
    if len(text) > MAX_CHARS:
        return None
    match = _PLAIN.fullmatch(_normalise(text))
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


def _compare_simple(answer: str, reference: str) -> bool | None:
    """Verdict where none needs algebra; ``None`` = ask the worker."""
    left, right = _normalise(answer), _normalise(reference)
    if left == right:
        return True
    x, y = _plain_number(answer), _plain_number(reference)
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


def _find_class(answer: str, representatives: list[str], checker: AnswerChecker) -> tuple[str | None, bool]:
    """Representative equal to ``answer``, if any; and whether ``answer`` can be compared at all.

    Removes representatives that turn out not to be comparable.
    """
    for representative in list(representatives):
        verdict = checker.equal([(answer, representative)])[0]
        if verdict:
            return representative, True
        if verdict is None:
            # Which of the two is to blame? One that also fails against a plain number would spend a time-out
            # on every other answer, so it takes part no more.
            if checker.equal([(answer, _PROBE)])[0] is None:
                return None, False
            if checker.equal([(_PROBE, representative)])[0] is None:
                representatives.remove(representative)
    return None, True


_BRACES = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])[ \t]*(?P<open>\{)?|\\.|[{}]", re.DOTALL)
_BARE_BOXED = re.compile(r"([^\s{}$,\\]+)")


def _boxed(text: str) -> str | None:
    """One pass with a stack: searching the closing brace of each box anew would be quadratic."""
    found: list[tuple[int, str]] = []
    opened: list[tuple[bool, int]] = []
    for match in _BRACES.finditer(text):
        mark = match.group()
        if mark == "}":
            if opened:
                is_box, start = opened.pop()
                if is_box:
                    found.append((start, text[start : match.start()]))
        elif match["open"] or mark == "{":
            opened.append((match["open"] is not None, match.end()))
        elif mark.startswith(("\\boxed", "\\fbox")):
            bare = _BARE_BOXED.match(text, match.end())
            if bare:
                found.append((match.end(), bare[1].rstrip(".")))
    filled = [(start, content.strip()) for start, content in found if content.strip()]
    return max(filled)[1] if filled else None


def _hash(text: str) -> str | None:
    start = text.rfind("####")
    if start < 0:
        return None
    return (text[start + 4 :].splitlines() or [""])[0].strip() or None


_PHRASE = re.compile(r"answer\s*(?:is\b\s*:?|:)[\s*_:]*", re.IGNORECASE)
_DOLLAR_OR_STOP = re.compile(r"\$|\.(?=\s)")


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
    rest = rest.strip().strip("*_").strip()
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
