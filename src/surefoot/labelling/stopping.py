"""When a prefix has enough rollouts, and the value that they give it.

A rule decides after every batch, so that no rollout is sampled whose result cannot matter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from surefoot.errors import LabelError

Borrowed = Literal["none", "right", "all"]
"""Which solutions sampled from another prefix count as rollouts of a prefix that they pass through.

From that prefix on, such a solution is a sample of its continuations. Candidates are the traces themselves
and the rollouts from earlier prefixes.
"""


class StoppingRule(ABC):
    """Decides how many rollouts a prefix gets and turns their outcomes into a value."""

    name: ClassVar[str]
    borrowed: ClassVar[Borrowed]

    @abstractmethod
    def more(self, successes: int, trials: int, sampled: int) -> int:
        """Rollouts to sample next, 0 = decided. ``sampled`` also counts rollouts that could not be graded."""

    def value(self, successes: int, trials: int) -> float:
        """Estimate in [0, 1] from at least one trial."""
        return float(self.good(successes, trials))

    def good(self, successes: int, trials: int) -> bool:  # noqa: ARG002 - for subclasses
        """Whether the answer can be reached from the prefix."""
        return successes > 0


@dataclass(frozen=True, kw_only=True)
class SoftEstimate(StoppingRule):
    """Share of ``rollouts`` that reach the answer (Math-Shepherd, arXiv 2312.08935, eq. 4).

    The number is fixed and nothing is borrowed, so the share is unbiased even if the traces were selected by
    their outcome.
    """

    rollouts: int = 8
    name = "soft"
    borrowed = "none"

    def __post_init__(self) -> None:
        _require_rollouts(self.rollouts)

    def more(self, successes: int, trials: int, sampled: int) -> int:  # noqa: ARG002 - of the base class
        return max(self.rollouts - sampled, 0)

    def value(self, successes: int, trials: int) -> float:
        return successes / trials


@dataclass(frozen=True, kw_only=True)
class HardEstimate(StoppingRule):
    """1 if any of ``rollouts`` reaches the answer, else 0 (Math-Shepherd, arXiv 2312.08935, eq. 3).

    Sampling ends at the first success, which decides the label. Any correct solution that passes through the
    prefix is a success, such as the trace itself. Rollouts come in batches of ``first``, ``first``, 2
    ``first``, 4 ``first`` …: a small ``first`` wastes fewer rollouts, a large one reads the prefix less
    often.
    """

    rollouts: int = 8
    first: int = 2
    name = "hard"
    borrowed = "right"

    def __post_init__(self) -> None:
        _require_rollouts(self.rollouts)
        if self.first < 1:
            raise LabelError(f"first must be at least 1, not {self.first}")

    def more(self, successes: int, trials: int, sampled: int) -> int:  # noqa: ARG002 - of the base class
        if successes:
            return 0
        return min(max(sampled, self.first), max(self.rollouts - sampled, 0))


@dataclass(frozen=True, kw_only=True)
class SequentialTest(StoppingRule):
    """Wald's sequential probability ratio test of "value ≤ ``p_bad``" against "value ≥ ``p_good``".

    After s successes in n trials the log-likelihood ratio is L = s ln(p_good / p_bad) + (n - s)
    ln((1 - p_good) / (1 - p_bad)). The prefix is good once L ≥ ln((1 - b) / a), bad once L ≤ ln(b / (1 - a)),
    with a = ``false_good`` and b = ``false_bad``. So uncertain prefixes get more rollouts. A prefix that is
    still undecided after ``max_rollouts`` gets the likelier value. Each batch is the fewest rollouts that
    could decide.

    a and b are targets. Let A be the chance of calling a prefix of value ``p_bad`` good, and B the chance of
    calling a prefix of value ``p_good`` bad. A test without a limit has A / (1 - B) ≤ a / (1 - b), B / (1 -
    A) ≤ b / (1 - a) and so A + B ≤ a + b (Wald 1945, section 3.2). With the limit ``max_rollouts`` they can
    be larger: with 8 rollouts the other defaults give B = 0.106, with 4 A = 0.186 and B = 0.130.
    :meth:`chance_of_good` computes A and B exactly.

    The number of trials depends on their outcomes, so successes / trials is biased; the value is the
    decision.
    """

    p_bad: float = 0.05
    p_good: float = 0.4
    false_good: float = 0.05
    false_bad: float = 0.05
    max_rollouts: int = 16
    name = "sequential"
    borrowed = "all"

    def __post_init__(self) -> None:
        _require_rollouts(self.max_rollouts)
        if not 0 < self.p_bad < self.p_good < 1:
            raise LabelError(f"need 0 < p_bad < p_good < 1, got p_bad={self.p_bad}, p_good={self.p_good}")
        if not (0 < self.false_good < 0.5 and 0 < self.false_bad < 0.5):
            raise LabelError(
                f"error rates lie between 0 and 0.5, got false_good={self.false_good}, "
                f"false_bad={self.false_bad}"
            )

    @property
    def _gains(self) -> tuple[float, float]:
        """Change of the log-likelihood ratio by a success, and by a failure."""
        return math.log(self.p_good / self.p_bad), math.log((1 - self.p_good) / (1 - self.p_bad))

    def _ratio(self, successes: int, trials: int) -> float:
        success, failure = self._gains
        return successes * success + (trials - successes) * failure

    def more(self, successes: int, trials: int, sampled: int) -> int:
        ratio, (success, failure) = self._ratio(successes, trials), self._gains
        upper = math.log((1 - self.false_bad) / self.false_good)
        lower = math.log(self.false_bad / (1 - self.false_good))
        if not lower < ratio < upper:
            return 0
        to_good, to_bad = math.ceil((upper - ratio) / success), math.ceil((lower - ratio) / failure)
        return min(to_good, to_bad, max(self.max_rollouts - sampled, 0))

    def chance_of_good(self, value: float) -> float:
        """Chance that a prefix of this value is called good (operating characteristic).

        Exact, by recursion over the successes after each trial, for independent rollouts that can all be
        graded. A is ``chance_of_good(p_bad)``, B is 1 - ``chance_of_good(p_good)``.
        """
        undecided, good = {0: 1.0}, 0.0
        for trials in range(self.max_rollouts + 1):
            following: dict[int, float] = {}
            for successes, chance in undecided.items():
                if not self.more(successes, trials, trials):
                    good += chance * self.good(successes, trials)
                    continue
                following[successes] = following.get(successes, 0.0) + chance * (1 - value)
                following[successes + 1] = following.get(successes + 1, 0.0) + chance * value
            undecided = following
        return good

    def good(self, successes: int, trials: int) -> bool:
        return self._ratio(successes, trials) > 0


def _require_rollouts(rollouts: int) -> None:
    if rollouts < 1:
        raise LabelError(f"rollouts must be at least 1, not {rollouts}")
