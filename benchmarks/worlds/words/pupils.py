"""Solutions as pupils write them: with misconceptions that are known from classrooms.

The policy is an ordinary language model of such solutions, so it makes these mistakes as often as the writers
of its texts. A pupil goes on from a wrong value as if it were right.

- **reversal**: where a sentence says the inverse of what has to be calculated, its keyword decides on the
  operation ("Ben has 17 fewer than Ann" makes Ann's number the smaller one; Lewis & Mayer 1987).
- **skip**: the middle step of a template is left out, and its number is taken from the step before.
- **slip**: a carry is forgotten, or the smaller digit is taken from the larger one (Brown & Burton 1978).
- **mix-up**: the number of another person.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from surefoot.lab import Calculation, WordProblem, worked_solution
from surefoot.lab.problems import MOST, calculate


@dataclass(frozen=True, kw_only=True)
class Pupil:
    """Chances of mistakes, each where it can be made."""

    reversal: float = 0.6
    careless_reversal: float = 0.03
    """The wrong operation where the sentence says what has to be calculated."""
    skip: float = 0.5
    slip: float = 0.05
    mix_up: float = 0.04


PUPIL = Pupil()
EXACT = Pupil(reversal=0, careless_reversal=0, skip=0, slip=0, mix_up=0)
OPPOSITE = {"+": "-", "-": "+", "*": "/", "/": "*"}


def pupil_solution(rng: random.Random, problem: WordProblem, pupil: Pupil = PUPIL) -> str:
    """A solution with a pupil's mistakes; the correct one where the mistakes lead nowhere."""
    for _ in range(10):
        if text := _attempt(rng, problem, pupil):
            return text
    return worked_solution(problem.record())


def _attempt(rng: random.Random, problem: WordProblem, pupil: Pupil) -> str | None:
    stated: dict[str, int] = {}
    text = ""
    for at, label in enumerate(problem.needed):
        true = problem.quantities[label]
        middle = not true.fact and len(problem.needed) == 3 and at == 1
        if middle and rng.random() < pupil.skip:
            stated[label] = stated[problem.needed[0]]
            continue
        quantity = _misread(rng, problem, label, _carried(problem, true, stated), pupil)
        result = calculate(quantity.left, quantity.symbol, quantity.right)
        if result is None or result > MOST:
            return None
        if rng.random() < pupil.slip:
            result = slipped(quantity.left, quantity.symbol, quantity.right)
            if not 0 < result <= MOST:
                return None
        stated[label] = result
        text += quantity.line(label, result)
    return f"{text}Answer: {stated[problem.goal]}.\n"


def _carried(problem: WordProblem, quantity: Calculation, stated: dict[str, int]) -> Calculation:
    """The quantity with the numbers that were calculated before as they were stated."""
    values = {problem.quantities[label].value: value for label, value in stated.items()}
    if quantity.fact:
        held = [stated.get(f"{owner} has") for owner in quantity.owners]
        left, right = held[0] or quantity.left, held[1] or quantity.right
    else:
        left, right = values.get(quantity.left, quantity.left), values.get(quantity.right, quantity.right)
    return replace(quantity, left=left, right=right)


def _misread(
    rng: random.Random, problem: WordProblem, label: str, quantity: Calculation, pupil: Pupil
) -> Calculation:
    if not quantity.fact or quantity.owners[1]:
        return quantity
    chance = pupil.careless_reversal if quantity.fact.startswith(label) else pupil.reversal
    turned = replace(quantity, symbol=OPPOSITE[quantity.symbol])
    result = calculate(turned.left, turned.symbol, turned.right)
    if rng.random() < chance and result is not None and result <= MOST:
        return turned
    if rng.random() < pupil.mix_up:
        others = [q for q in problem.quantities.values() if q.owners[0] and q.owners[0] != quantity.owners[0]]
        if others:
            other = rng.choice(others)
            return replace(quantity, left=other.left, owners=(other.owners[0], ""))
    return quantity


def slipped(left: int, symbol: str, right: int) -> int:
    """The result without the carry, or with the smaller digit taken from the larger; right where none is."""
    result = calculate(left, symbol, right) or 0
    match symbol:
        case "+":
            return result - 10 if left % 10 + right % 10 > 9 else result
        case "-":
            return result + 2 * (right % 10 - left % 10) % 20 if left % 10 < right % 10 else result
        case "*":
            carry = left % 10 * (right % 10) // 10
            return result - 10 * carry
        case _:
            return result
