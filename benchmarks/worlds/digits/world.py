"""The last-digit world: a chain of one-digit operations, of which only the last digit is kept.

    Start with 7. Add 3. Multiply by 4. Subtract 9.

is solved one operation a line::

    7 + 3 = 0
    0 * 4 = 0
    0 - 9 = 1
    Answer: 1

A wrong digit is not always fatal (multiplying by 0, 2, 4, 5, 6 or 8 forgets part of it), so some correct
answers rest on a wrong step, and outcome and process differ. Each line can be checked with certainty.

A problem that begins with ``Modulo 7.`` keeps the remainder of that division instead, and one that ends with
``Someone got 5.`` has a note, which a solution may quote in a line ``The note says 5.`` (:mod:`.notes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from surefoot.errors import RecordError
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.protocols import SOLUTION_CHANNELS, ProblemTrace, Verdict
from surefoot.records import Evidence, Problem, StepLabel, Trace

BASE = 10
_WORDS = {"+": "Add", "-": "Subtract", "*": "Multiply by"}
SYMBOLS = tuple(_WORDS)
_SYMBOLS = {word: symbol for symbol, word in _WORDS.items()}
_START = re.compile(r"(?:Modulo (\d)\. )?Start with (\d)\.", re.ASCII)
_OPERATION = re.compile(r" (Add|Subtract|Multiply by) (\d)\.", re.ASCII)
_NOTE = re.compile(r" Someone got (\d)\.", re.ASCII)
_EQUATION = re.compile(r"(?:.*, no, )?(\d) ([-+*]) (\d) = (\d)\n", re.ASCII)
RESULT = re.compile(r"= (\d)\n$", re.ASCII)
"""End of an operation's line, with the digit it results in."""
_RESTATEMENT = re.compile(r"Now (\d)\n", re.ASCII)
QUOTE = re.compile(r"The note says (\d)\.\n", re.ASCII)
ANSWER = re.compile(r"Answer: (\d)\n?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """Settings of the problem generator."""

    min_operations: int = 6
    max_operations: int = 10
    operations: str = "++--*"
    """Symbols to sample from, each character equally likely; multiplying makes lucky answers likelier."""
    base: int = BASE
    """All numbers are below it, and results are modulo it."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_operations <= self.max_operations:
            raise ValueError("need 1 <= min_operations <= max_operations")
        if not self.operations or set(self.operations) - set(_WORDS):
            raise ValueError(f"operations must be made of {''.join(_WORDS)}, got {self.operations!r}")


@dataclass(frozen=True, kw_only=True)
class ArithmeticChain:
    """A parsed problem: a start digit and the operations on it, modulo ``base``."""

    start: int
    operations: tuple[tuple[str, int], ...]
    base: int = BASE
    note: int | None = None
    """The answer that a note in the problem claims."""

    @property
    def in_range(self) -> bool:
        """Whether every number is below the base."""
        return max(self.start, self.note or 0, *(digit for _, digit in self.operations)) < self.base

    @property
    def text(self) -> str:
        """The problem as it is put to a policy."""
        parts = ["" if self.base == BASE else f"Modulo {self.base}. ", f"Start with {self.start}."]
        parts += [f" {_WORDS[symbol]} {digit}." for symbol, digit in self.operations]
        return "".join(parts) + ("" if self.note is None else f" Someone got {self.note}.")

    @property
    def answer(self) -> int:
        """The correct last digit."""
        return self.running(self.start)[-1]

    def running(self, value: int, done: int = 0) -> list[int]:
        """``value``, then the running value after each operation that follows the first ``done``."""
        values = [value]
        for symbol, digit in self.operations[done:]:
            values.append(apply(values[-1], symbol, digit, self.base))
        return values


def apply(value: int, symbol: str, digit: int, base: int = BASE) -> int:
    """Last digit of ``value symbol digit``: its remainder modulo ``base``."""
    match symbol:
        case "+":
            return (value + digit) % base
        case "-":
            return (value - digit) % base
        case _:
            return (value * digit) % base


def parse_problem(text: str) -> ArithmeticChain:
    """Read a problem's text. Raises ``RecordError`` when it is not one of this world."""
    start = _START.match(text)
    end = start.end() if start else 0
    operations = []
    while match := _OPERATION.match(text, end):
        operations.append((_SYMBOLS[match[1]], int(match[2])))
        end = match.end()
    note = _NOTE.match(text, end)
    end = note.end() if note else end
    chain = start and ArithmeticChain(
        start=int(start[2]),
        operations=tuple(operations),
        base=int(start[1] or BASE),
        note=int(note[1]) if note else None,
    )
    if not chain or not operations or text[end:].strip() or not chain.in_range:
        raise RecordError(f"not a problem of the digit world: {text!r} (expected 'Start with 7. Add 3. …')")
    return chain


def draw_chain(rng: np.random.Generator, difficulty: Difficulty) -> ArithmeticChain:
    """Draw one problem."""
    length = int(rng.integers(difficulty.min_operations, difficulty.max_operations + 1))
    symbols = rng.integers(0, len(difficulty.operations), length)
    digits = rng.integers(0, difficulty.base, length + 1)
    pairs = tuple((difficulty.operations[s], int(d)) for s, d in zip(symbols, digits[1:], strict=True))
    return ArithmeticChain(start=int(digits[0]), operations=pairs, base=difficulty.base)


def generate_problems(
    count: int, *, seed: int, difficulty: Difficulty | None = None, exclude: Sequence[Problem] = ()
) -> list[Problem]:
    """``count`` distinct problems, none of them in ``exclude`` (so that splits do not overlap)."""
    rng = np.random.default_rng(seed)
    used = {problem.text for problem in exclude}
    problems: list[Problem] = []
    misses = 0
    while len(problems) < count:
        chain = draw_chain(rng, difficulty or Difficulty())
        if chain.text in used:
            misses += 1
            if misses > 1000 + 100 * count:
                raise ValueError(
                    f"this difficulty has fewer than {count} distinct problems; allow more operations"
                )
            continue
        used.add(chain.text)
        problems.append(Problem(text=chain.text, answer=str(chain.answer), source="digits"))
    return problems


def worked_solution(
    chain: ArithmeticChain, *, rng: np.random.Generator | None = None, restate: float = 0.0, slip: float = 0.0
) -> str:
    """A correct solution.

    With chance ``restate`` a line is followed by one that only repeats the value, and with chance ``slip``
    a line begins with a slip that is corrected at once: ``7 + 3 = 4, no, 7 + 3 = 0``. Both need ``rng``.
    """
    if rng is None and (restate or slip):
        raise ValueError("restatements and slips are random: give an rng")
    value, lines = chain.start, []
    for symbol, digit in chain.operations:
        result = apply(value, symbol, digit, chain.base)
        line = f"{value} {symbol} {digit} = {result}\n"
        if rng is not None and rng.random() < slip:
            line = f"{_slip(value, symbol, digit, rng, chain.base)}, no, {line}"
        lines.append(line)
        value = result
        if rng is not None and rng.random() < restate:
            lines.append(f"Now {value}\n")
    return "".join([*lines, f"Answer: {value}\n"])


def _slip(value: int, symbol: str, digit: int, rng: np.random.Generator, base: int) -> str:
    """A wrong line: half the time a wrong result, else a wrong start, operation or operand."""
    result = apply(value, symbol, digit, base)
    match rng.integers(0, 6):
        case 0:
            value = other_digit(value, rng, base)
        case 1:
            symbol = str(rng.choice([other for other in _WORDS if other != symbol]))
        case 2:
            digit = other_digit(digit, rng, base)
        case _:
            return f"{value} {symbol} {digit} = {other_digit(result, rng, base)}"
    return f"{value} {symbol} {digit} = {apply(value, symbol, digit, base)}"


def other_digit(digit: int, rng: np.random.Generator, base: int = BASE) -> int:
    """Any digit below ``base`` but this one, each equally likely."""
    return int((digit + rng.integers(1, base)) % base)


def check_steps(problem: Problem, trace: Trace) -> list[Verdict]:
    """Judge every step of a text trace, each against the running value that the trace itself has reached.

    A step that follows correctly from an earlier wrong value is therefore +1: the error is counted
    where it was made, and only there.
    """
    state = SolutionState(parse_problem(problem.text))
    return [state.judge(trace.step_text(index)) for index in range(len(trace.steps))]


def is_line(text: str) -> bool:
    """Whether ``text`` has the form of one whole line of a solution, correct or wrong."""
    return any(pattern.fullmatch(text) for pattern in (_EQUATION, _RESTATEMENT, QUOTE, ANSWER))


class SolutionState:
    """State of a solution: running value, operations done, whether it has answered."""

    def __init__(self, chain: ArithmeticChain) -> None:
        self.chain, self.value, self.done, self.answered = chain, chain.start, 0, False
        self.seen: set[tuple[int, str, int, int]] = set()

    def judge(self, line: str) -> Verdict:
        """Judge the next line (with its line break) and advance past it."""
        if self.answered:
            return Verdict(value=-1, reason="a line after the answer")
        if match := _EQUATION.fullmatch(line):
            return self._equation(int(match[1]), match[2], int(match[3]), int(match[4]))
        if match := _RESTATEMENT.fullmatch(line):
            return self._restatement(int(match[1]))
        if match := QUOTE.fullmatch(line):
            quoted = int(match[1]) == self.chain.note
            return Verdict(value=0 if quoted else -1, reason="quotes the note" if quoted else "no such note")
        if match := ANSWER.fullmatch(line):
            return self._answer(int(match[1]))
        return Verdict(value=-1, reason=f"not a line of this world: {line.strip()[:40]!r}")

    def _equation(self, left: int, symbol: str, right: int, result: int) -> Verdict:
        operations = self.chain.operations
        expected = operations[self.done] if self.done < len(operations) else None
        if left != self.value or (symbol, right) != expected:
            if (left, symbol, right, result) in self.seen:
                return Verdict(value=0, reason="repeats an earlier correct step")
            reason = f"starts from {left}, but the running value is {self.value}"
            if left == self.value:
                hint = f"{expected[0]} {expected[1]}" if expected else "to answer"
                reason = f"does {symbol} {right}, but the next step is {hint}"
            self.value, self.done = result, min(self.done + 1, len(operations))
            return Verdict(value=-1, reason=reason)
        self.value, self.done = result, self.done + 1
        right_result = apply(left, symbol, right, self.chain.base)
        if result != right_result:
            return Verdict(value=-1, reason=f"{left} {symbol} {right} ends in {right_result}, not {result}")
        self.seen.add((left, symbol, right, result))
        return Verdict(value=1, reason="correct")

    def _restatement(self, stated: int) -> Verdict:
        if stated == self.value:
            return Verdict(value=0, reason="restates the running value")
        reason = f"states {stated}, but the running value is {self.value}"
        self.value = stated
        return Verdict(value=-1, reason=reason)

    def _answer(self, stated: int) -> Verdict:
        self.answered = True
        remaining = len(self.chain.operations) - self.done
        if remaining:
            return Verdict(value=-1, reason=f"answers with {remaining} operations left")
        if stated != self.value:
            return Verdict(value=-1, reason=f"answers {stated}, but the running value is {self.value}")
        return Verdict(value=1, reason="correct")


class DigitVerifier:
    """A :class:`surefoot.protocols.StepVerifier`: the exact checker of this world.

    Problems of another world raise ``RecordError``.
    """

    reads = SOLUTION_CHANNELS
    name = "digit-checker"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step, each against the running value of the trace itself."""
        return [check_steps(item.problem, item.trace) for item in items]


@dataclass(frozen=True, kw_only=True)
class ExactLabeller:
    """Correctness labels that are known to be true (a :class:`surefoot.protocols.Labeller`).

    ``after_error`` says what the steps after the first wrong one get: ``unlabelled`` (PRM800K: raters stop
    there), ``step`` (each judged independently) or ``wrong`` (Uesato et al.: the prefix stays wrong).
    """

    reads = SOLUTION_CHANNELS
    after_error: Literal["unlabelled", "step", "wrong"] = "unlabelled"
    source: str = "digit-checker"

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step."""
        return [list(self._labels(item)) for item in items]

    def _labels(self, item: ProblemTrace) -> Iterator[StepLabel]:
        failed = False
        for index, verdict in enumerate(check_steps(item.problem, item.trace)):
            value: float | None = verdict.value
            reason = None
            if failed and self.after_error == "unlabelled":
                value, reason = None, AFTER_FIRST_ERROR
            elif failed and self.after_error == "wrong":
                value = -1
            failed = failed or verdict.value == -1
            yield StepLabel(
                trace_id=item.trace.id,
                step=index,
                kind="correctness",
                value=value,
                reason=reason,
                source=self.source,
                evidence=Evidence(message=verdict.reason),
            )
