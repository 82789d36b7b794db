"""The exact truth of every step of a solution, and of which kind its errors are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from surefoot.lab.problems import Quantities, calculate, read_problem
from surefoot.protocols import SOLUTION_CHANNELS, ProblemTrace, Verdict
from surefoot.records import Problem, Trace

_NUMBER: Final = r"(?:([A-Z][a-z]{1,8})'s )?(\d{1,4})"
_LINE: Final = re.compile(
    rf"(?:([A-Za-z0-9 ]{{1,80}})\. )?([A-Za-z ]{{1,40}}) {_NUMBER} ([-+*/]) {_NUMBER} = (\d{{1,4}})\.\n?",
    re.ASCII,
)
_ANSWER: Final = re.compile(r"Answer: (\d{1,4})\.\n?", re.ASCII)

Kind = Literal["slip", "reasoning", "carried", "form"]
"""What is wrong with a step.

``slip``: its equation does not hold, which a check of arithmetic finds. ``reasoning``: the equation holds,
but the numbers or the operation are not those that the problem gives this quantity, or the answer is not the
goal's value. ``carried``: right but for an earlier wrong value. ``form``: it is not a line of this world."""


@dataclass(frozen=True, kw_only=True)
class StepTruth:
    """One step: 1 right, 0 repeats a right step, -1 wrong."""

    value: Literal[-1, 0, 1]
    kind: Kind | None = None
    reason: str = "right"

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return self.value >= 0


def check_steps(problem: Problem, trace: Trace) -> list[StepTruth]:
    """Judge every step of a text trace. Raises ``RecordError`` for a problem of another world.

    A step is right if its arithmetic holds *and* its numbers, operation and value are the ones that the
    problem gives the quantity it names; the order of a sum or product does not matter. So a step that follows
    correctly from a wrong value is wrong, of the kind ``carried``.
    """
    quantities, goal = read_problem(problem)
    values = {label: calculate(q.left, q.symbol, q.right) for label, q in quantities.items()}
    stated: dict[str, int] = {}
    truths, answered = [], False
    for index in range(len(trace.steps)):
        text = trace.step_text(index)
        if answered:
            truth = StepTruth(value=-1, kind="form", reason="a line after the answer")
        elif match := _ANSWER.fullmatch(text):
            answered = True
            truth = _judge_answer(int(match[1]), values[goal], stated.get(goal))
        elif match := _LINE.fullmatch(text):
            truth = _judge_line(match, quantities, values, stated)
            stated.setdefault(match[2], int(match[8]))
        else:
            truth = StepTruth(
                value=-1, kind="form", reason=f"not a line of this world: {text.strip()[:40]!r}"
            )
        truths.append(truth)
    return truths


def _judge_answer(answer: int, right: int | None, stated: int | None) -> StepTruth:
    if answer == right:
        return StepTruth(value=1)
    if answer == stated:
        return StepTruth(
            value=-1, kind="carried", reason=f"the goal's value is {right}, not {answer} as above"
        )
    return StepTruth(value=-1, kind="reasoning", reason=f"answers {answer}, but the goal's value is {right}")


def _judge_line(
    match: re.Match[str],
    quantities: Quantities,
    values: dict[str, int | None],
    stated: dict[str, int],
) -> StepTruth:
    label, symbol = match[2], match[5]
    a, b, result = int(match[4]), int(match[7]), int(match[8])
    if not _holds(a, symbol, b, result):
        return StepTruth(value=-1, kind="slip", reason=f"{a} {symbol} {b} is not {result}")
    quantity = quantities.get(label)
    if quantity is None:
        return StepTruth(value=-1, kind="reasoning", reason=f"nothing to calculate is called {label!r}")
    if (match[1] or "") != quantity.fact:
        return StepTruth(value=-1, kind="reasoning", reason=f"the fact to go by is {quantity.fact!r}")
    first, second = quantity.owners
    expected = _numbers(symbol, (first, quantity.left), (second, quantity.right))
    owners = match[3] or "", match[6] or ""
    if symbol == quantity.symbol and _numbers(symbol, (owners[0], a), (owners[1], b)) == expected:
        repeated = label in stated and stated[label] == values[label]
        return StepTruth(value=0, reason="repeats a right step") if repeated else StepTruth(value=1)
    truth = quantity.line(label).strip()
    wrong = {stated[other]: value for other, value in values.items() if stated.get(other, value) != value}
    for corrected_a in (a, wrong.get(a)):
        for corrected_b in (b, wrong.get(b)):
            numbers = _numbers(symbol, (owners[0], corrected_a or 0), (owners[1], corrected_b or 0))
            if symbol == quantity.symbol and numbers == expected:
                reason = f"an earlier value is wrong; right is {truth}"
                return StepTruth(value=-1, kind="carried", reason=reason)
    return StepTruth(value=-1, kind="reasoning", reason=f"right is {truth}")


def _holds(a: int, symbol: str, b: int, result: int) -> bool:
    """Whether the equation is true, also with a result that no quantity may have (``24 - 24 = 0``)."""
    return {"+": a + b, "-": a - b, "*": a * b}.get(symbol) == result or (
        symbol == "/" and b * result == a > 0
    )


def _numbers(symbol: str, left: tuple[str, int], right: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    """Both numbers with their owners, in one order where the order does not matter."""
    return tuple(sorted((left, right))) if symbol in "+*" else (left, right)


class LabVerifier:
    """A :class:`surefoot.protocols.StepVerifier`: the exact checker of this world.

    Problems of another world raise ``RecordError``.
    """

    reads = SOLUTION_CHANNELS
    name = "lab-checker"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step; the reason begins with the kind of error."""
        return [[_verdict(truth) for truth in check_steps(item.problem, item.trace)] for item in items]


def _verdict(truth: StepTruth) -> Verdict:
    return Verdict(value=truth.value, reason=f"{truth.kind}: {truth.reason}" if truth.kind else truth.reason)
