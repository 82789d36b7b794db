"""Solutions graded against references: the one rule of what counts as a policy's final answer."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol, get_args, runtime_checkable

from surefoot.answers.checker import AnswerChecker
from surefoot.errors import AnswerError
from surefoot.maths import DIGITS, as_product, restore_backslashes, variables_of, without_emphasis
from surefoot.records import Problem, ending_of

AnswerStyle = Literal["boxed", "hash", "phrase", "last_number"]
"""boxed: ``\\boxed{5}``; hash: ``#### 5``; phrase: ``the answer is 5``; last_number: the last number."""

_NUMBER_IN_TEXT = re.compile(
    rf"(?:(?<![\w)\]}}])[+\-\u2212](?:\\?\$)?)?(?:\\[dt]?frac\{{{DIGITS}\}}\{{{DIGITS}\}}|{DIGITS}(?:/{DIGITS})?)(?:\\?%)?"
)
_BRACES = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])[ \t]*(?P<open>\{)?|\\.|[{}]", re.DOTALL)
_BARE_BOXED = re.compile(r"([^\s{}$,\\]+)")
_PHRASE = re.compile(r"answer\s*(?:is\b\s*:?|:)(?:[\s:]|[*_]++(?![^\s:]))*", re.IGNORECASE)
_REJECTED = re.compile(r"not\s+(?=[-+\u2212($\[]*\\?[\d$.])", re.IGNORECASE)
"""Before an answer that the writer rejects: "not 5"; "not defined" is an answer."""
_NOT = re.compile(r"\bnot\s+$", re.IGNORECASE)
_CORRECTION = re.compile(
    r"\b(?:(?:it|that|this)(?:\s+(?:is|should\s+be|must\s+be)|'s)|but(?:\s+rather)?|rather)\s+"
    r"(?!\s*not\b)(?=[-+\u2212($\[]*\\?[\d$.])",
    re.IGNORECASE,
)
_ADVERBS = re.compile(
    r"(?:(?:clearly|simply|just|thus|therefore|hence|then|indeed|obviously|evidently|definitely|certainly"
    r"|exactly|precisely|actually|finally|now)\s*(?:,\s*|:\s*|\s))+(?=\S)"
)
_DOLLAR_OR_STOP = re.compile(r"\$|\.(?=\s)")


EXPLICIT: frozenset[AnswerStyle] = frozenset({"boxed", "hash", "phrase"})
"""Styles in which a solution says which of its words are the answer."""


@dataclass(frozen=True, kw_only=True)
class ExtractedAnswer:
    """A final answer and where its statement ends in the text."""

    answer: str
    style: AnswerStyle
    end: int
    """Index of the first character after the statement, closing brace or line included."""
    closed: bool
    """Whether something ends the statement: a brace, the end of the line or sentence, and no other one has
    begun. A text that was cut off may have gone on with an answer that is not closed."""


def extract_answer(
    text: str, styles: Sequence[AnswerStyle] = ("boxed", "hash", "phrase", "last_number")
) -> str | None:
    """Final answer of a solution by the first of ``styles`` that finds one; ``None`` = none does.

    - boxed: content of the last ``\\boxed{...}`` or ``\\fbox{...}``, or ``\\boxed 5``. If the last one is
      never closed, no style finds an answer.
    - hash: from the last ``####`` to the end of its line.
    - phrase: after the last "answer is" or "answer:", without an adverb such as "clearly", to the end of the
      sentence or line. "The answer is not 5" gives none, but "it is 6" after it does.
    - last_number: the last number, with sign, thousands separators, decimals, fraction and percent sign;
      not one after "not".

    Text inside ``<think>`` is ignored: only the text after the last ``</think>`` counts. Backslashes that
    JSON took as escapes are restored.

    The time taken is linear in the length of ``text``. Raises ``AnswerError`` for an unknown style.
    """
    text = restore_backslashes(text)
    statement = None if last_box_is_cut(text) else extract_statement(text, styles)
    return None if statement is None else statement.answer


def extract_statement(text: str, styles: Sequence[AnswerStyle], *, start: int = 0) -> ExtractedAnswer | None:
    """What :func:`extract_answer` finds, with its place; only what follows index ``start`` is read."""
    for style in styles:
        if style not in _EXTRACTORS:
            raise AnswerError(f"styles has {style!r}; choose from {', '.join(get_args(AnswerStyle))}")
    start = max(start, text.rfind(_THOUGHT_END) + len(_THOUGHT_END) if _THOUGHT_END in text else 0)
    if _THOUGHT_END not in text and text.lstrip().startswith("<think>"):
        return None
    for style in styles:
        statement = _EXTRACTORS[style](text[start:])
        if statement is not None:
            return replace(statement, end=start + statement.end) if start else statement
    return None


_THOUGHT_END = "</think>"


def _boxed(text: str) -> ExtractedAnswer | None:
    boxes, _ = _boxes(text)
    for start, stop, end, closed in sorted(boxes, reverse=True):
        if answer := text[start:stop].strip():
            return ExtractedAnswer(answer=answer, style="boxed", end=end, closed=closed)
    return None


def last_box_is_cut(text: str) -> bool:
    """Whether the last box of a text is never closed."""
    boxes, unfinished = _boxes(text.rpartition(_THOUGHT_END)[2])
    return unfinished > max((start for start, *_ in boxes), default=-1)


def _boxes(text: str) -> tuple[list[tuple[int, int, int, bool]], int]:
    """Start, stop and end of each box and whether it is closed; the start of the last that is not, or -1.

    One pass with a stack; searching the closing brace of each box would take quadratic time.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return [], -1
    boxes: list[tuple[int, int, int, bool]] = []
    opened: list[tuple[bool, int]] = []
    for match in _BRACES.finditer(text):
        mark = match.group()
        if mark == "}":
            if opened:
                is_box, start = opened.pop()
                if is_box:
                    boxes.append((start, match.start(), match.end(), True))
        elif match["open"] or mark == "{":
            opened.append((match["open"] is not None, match.end()))
        elif mark.startswith(("\\boxed", "\\fbox")):
            bare = _BARE_BOXED.match(text, match.end())
            if bare:
                stop = match.end() + len(bare[1].rstrip("."))
                boxes.append((match.end(), stop, bare.end(), bare.end() < len(text)))
    return boxes, max((start for is_box, start in opened if is_box), default=-1)


def _hash(text: str) -> ExtractedAnswer | None:
    start = text.rfind("####")
    if start < 0:
        return None
    line = (text[start + 4 :].splitlines() or [""])[0]
    end = start + 4 + len(line)
    answer = line.strip()
    return ExtractedAnswer(answer=answer, style="hash", end=end, closed=end < len(text)) if answer else None


def _phrase(text: str) -> ExtractedAnswer | None:
    start = last = -1
    first = text.lower().find("answer") if text.isascii() else 0
    for match in _PHRASE.finditer(text, first) if first >= 0 else ():
        last = match.end()
        start = start if _REJECTED.match(text, last) else last
    if last > start:
        correction = _CORRECTION.search(text, last)
        start = correction.end() if correction else start
    if start < 0:
        return None
    adverbs = _ADVERBS.match(text, start)
    start = adverbs.end() if adverbs else start
    line = (text[start:].splitlines() or [""])[0]
    maths = False
    for mark in _DOLLAR_OR_STOP.finditer(line):
        if mark.group() == "$":
            maths = not maths
        elif not maths:  # a full stop inside $...$ ends no sentence
            line = line[: mark.start()]
            break
    end = start + len(line)
    line = without_emphasis(line).strip().strip("*_").strip()
    answer = _trim(line)
    box = _boxed(answer)
    answer = box.answer if box else answer
    return ExtractedAnswer(answer=answer, style="phrase", end=end, closed=end < len(text)) if answer else None


def _trim(text: str) -> str:
    """``text`` without a trailing full stop and the dollars around it."""
    text = text.rstrip(".").strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$").strip().rstrip(".")
    return text.strip()


def _last_number(text: str) -> ExtractedAnswer | None:
    numbers = deque(
        (
            match
            for match in _NUMBER_IN_TEXT.finditer(text)
            if not _NOT.search(text, max(match.start() - 8, 0), match.start())
        ),
        maxlen=1,
    )
    if not numbers:
        return None
    last = numbers[0]
    closed = last.end() < len(text)
    return ExtractedAnswer(answer=last.group().strip(), style="last_number", end=last.end(), closed=closed)


_EXTRACTORS: dict[AnswerStyle, Callable[[str], ExtractedAnswer | None]] = {
    "boxed": _boxed,
    "hash": _hash,
    "phrase": _phrase,
    "last_number": _last_number,
}


_REMEMBERED = 32
"""Solutions whose answer is remembered: a search asks for it several times."""
_WORD = re.compile(r"\w")
_CLOSING = re.compile(r"\s*\W*\s*I hope (?:it|this) is correct\W*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A solution to grade: a completion and its prefix."""

    text: str
    """The completion."""
    prefix: str = ""
    """The text that the completion continues: answers in it are not the policy's."""
    finish_reason: str | None = None
    """Why it ended, in the provider's word; unknown is treated as a natural end."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The final answer of one solution, and whether it is correct."""

    answer: str | None
    """``None`` = there is none, which counts as a wrong outcome."""
    outcome: bool | None
    """``None`` = unknown: no reference, or it cannot be compared (see ``AnswerChecker.grade``)."""


@dataclass(frozen=True, kw_only=True)
class Grader:
    """Extraction and comparison in one: the gold grader of a data set."""

    reads = frozenset({"answer"})

    checker: AnswerChecker
    styles: tuple[AnswerStyle, ...] = ("boxed", "hash", "phrase", "last_number")

    def grade(
        self, solutions: Sequence[Solution], references: Sequence[str | None], problem: str = ""
    ) -> list[Grade]:
        """One grade per solution, against the reference of the same place.

        A variable of the ``problem`` (its text) is not read as a unit: "4 m" is then not 4.
        """
        answers = [final_answer(solution, self.styles) for solution in solutions]
        products = [answer and as_product(answer, variables_of(problem)) for answer in answers]
        pairs = [(a, r) for a, r in zip(products, references, strict=True) if a is not None and r is not None]
        verdicts = iter(self.checker.grade(pairs))
        grades = []
        for answer, reference in zip(answers, references, strict=True):
            outcome = None
            if reference is not None:
                outcome = next(verdicts) if answer is not None else False
            grades.append(Grade(answer=answer, outcome=outcome))
        return grades

    def can_grade(self, problem: Problem) -> bool:
        """Whether it has a reference answer."""
        return problem.answer is not None

    async def grade_problem(self, problem: Problem, solutions: Sequence[Solution]) -> list[Grade]:
        """One grade per solution; other requests go on during algebra, which may take seconds."""
        references = [problem.answer] * len(solutions)
        if self.checker.method != "math":
            return self.grade(solutions, references, problem.text)
        return await self.checker.run(lambda: self.grade(solutions, references, problem.text))


@runtime_checkable
class ProblemGrader(Protocol):
    """Decides the outcome of solutions of one problem: by its reference answer, or by running its tests."""

    def can_grade(self, problem: Problem) -> bool:
        """Whether this grader can grade solutions of the problem."""
        ...

    async def grade_problem(self, problem: Problem, solutions: Sequence[Solution]) -> list[Grade]:
        """One grade per solution."""
        ...


def final_answer(solution: Solution, styles: Sequence[AnswerStyle]) -> str | None:
    """The answer that a solution gives; ``None`` = it gives none.

    - An explicit answer (every style but ``last_number``) counts if its statement ends in the completion.
    - One in the prefix counts if the solution was finished there: it ends the prefix, and the completion adds
      no word and ended naturally. A policy adds nothing to a finished solution.
    - The last number counts if it is in the completion, and the completion ended naturally.
    - Of a text that ended otherwise (at a limit, a filter or a tool call), an explicit answer counts if it is
      closed: "The answer is 1" may be the beginning of "The answer is 18."
    - A text whose last box is never closed has none.

    Raises ``AnswerError`` for an unknown style.
    """
    return _final_answer(solution, tuple(styles))


@lru_cache(_REMEMBERED)
def _final_answer(solution: Solution, styles: tuple[AnswerStyle, ...]) -> str | None:
    prefix = restore_backslashes(solution.prefix)
    text, prefix_end = prefix + restore_backslashes(solution.text), len(prefix)
    if last_box_is_cut(text):
        return None
    cut_off = ending_of(solution.finish_reason) not in ("finished", "unknown")
    for style in styles:
        if style not in EXPLICIT:
            statement = None if cut_off else extract_statement(text, [style], start=prefix_end)
            if statement is not None:
                return statement.answer
            continue
        statement = extract_statement(text, [style])
        if statement is None:
            continue
        if statement.end > prefix_end:
            if statement.closed or not cut_off:
                return statement.answer
        elif not cut_off and _adds_nothing(text[statement.end :]):
            return statement.answer
    return None


def _adds_nothing(text: str) -> bool:
    return not _WORD.search(text) or _CLOSING.fullmatch(text) is not None
