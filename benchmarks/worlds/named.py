"""Worlds of solutions in which labels and searches are measured, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.worlds import digits
from surefoot import lab
from surefoot.labels import first_error
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Problem
from surefoot.scores import Aggregator
from surefoot.search import Steps


@dataclass(frozen=True, kw_only=True)
class World:
    """Problems with the exact truth of every step, and the policy that solves them."""

    policy: Path
    problems: Callable[[int, int], list[Problem]]
    """A number of problems, from a seed."""
    first_errors: Callable[[Sequence[ProblemTrace]], list[int | None]]
    """Place of the first wrong step of each solution; -1 = none."""
    steps: Steps
    """How a search writes solutions step by step; whole ones are sampled by its ``sampling``."""
    trained: str
    """Directory of a PRM below the directory of runs, by ``{seed}``."""
    vote: Aggregator
    """How the scores of the steps weigh a vote."""


def _digit_errors(items: Sequence[ProblemTrace]) -> list[int | None]:
    rows = asyncio.run(digits.ExactLabeller(after_error="wrong").label(items))
    return [first_error([None if label.value is None else label.value >= 0 for label in row]) for row in rows]


def _word_errors(items: Sequence[ProblemTrace]) -> list[int | None]:
    judged = [lab.check_steps(item.problem, item.trace) for item in items]
    return [first_error([truth.right for truth in row]) for row in judged]


WORLDS: Final = {
    "digits": World(
        policy=digits.POLICY,
        problems=lambda count, seed: digits.generate_problems(count, seed=seed),
        first_errors=_digit_errors,
        steps=Steps(step_tokens=24, max_steps=14, sampling=Sampling(temperature=1.0, max_tokens=96)),
        trained="seed-{seed}/prm",
        vote="product",
    ),
    "words": World(
        policy=lab.POLICY,
        problems=lambda count, seed: lab.generate_problems(count, seed=seed),
        first_errors=_word_errors,
        steps=Steps(step_tokens=48, max_steps=8, sampling=Sampling(temperature=1.0, max_tokens=120)),
        trained="prm-{seed}",
        vote="min",
    ),
}
