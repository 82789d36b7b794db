"""When a prefix has enough rollouts, and the value that they give it."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from surefoot.records import FrozenModel

Borrowed = Literal["none", "right", "all"]
"""Which solutions sampled from another prefix count as rollouts of a prefix that they pass through.

From that prefix on, such a solution is a sample of its continuations. Candidates are the traces themselves
and the rollouts from earlier prefixes.
"""


class Estimate(FrozenModel):
    """How many rollouts a prefix gets, and the value that they give it.

    It decides after every batch, so that no rollout is sampled whose result cannot matter.

    **soft**: the share of ``rollouts`` that reach the answer (Math-Shepherd, arXiv 2312.08935, eq. 4). The
    number is fixed and nothing is borrowed, so the share is unbiased even if the traces were selected by
    their outcome.

    **hard**: 1 if any of ``rollouts`` reaches the answer, else 0 (eq. 3). Sampling ends at the first success,
    which decides the label. Any correct solution that passes through the prefix is a success, such as the
    trace itself. Rollouts come in batches of ``first``, ``first``, 2 ``first``, 4 ``first`` …: a small
    ``first`` wastes fewer rollouts, a large one reads the prefix less often.

    **sequential**: Wald's sequential probability ratio test of "value ≤ ``p_bad``" against "value ≥
    ``p_good``". After s successes in n trials the log-likelihood ratio is L = s ln(p_good / p_bad) + (n - s)
    ln((1 - p_good) / (1 - p_bad)). With a = ``error_rate`` the prefix is good once L ≥ ln((1 - a) / a), bad
    once L ≤ ln(a / (1 - a)). So uncertain prefixes get more rollouts. A prefix that is still undecided after
    ``rollouts`` gets the likelier value. Each batch is the fewest rollouts that could decide. The number of
    trials depends on their outcomes, so successes / trials is biased; the value is the decision.

    a is a target. Let A be the chance of calling a prefix of value ``p_bad`` good, and B the chance of
    calling a prefix of value ``p_good`` bad. A test without a limit has A / (1 - B) and B / (1 - A) of at
    most a / (1 - a), and so A + B ≤ 2 a (Wald 1945, section 3.2). With the limit ``rollouts`` they can be
    larger: with 8 rollouts the other defaults give B = 0.106, with 4 A = 0.186 and B = 0.130.
    :meth:`chance_of_good` computes A and B exactly.
    """

    kind: Literal["soft", "hard", "sequential"] = Field(
        default="soft",
        description="soft: the share that succeeded. hard: whether any did. sequential: a test that ends "
        "when it is sure.",
    )
    rollouts: int = Field(
        default=8, ge=1, description="Completions per prefix; at most, if hard or sequential."
    )
    first: int = Field(default=2, ge=1, description="Hard: completions in the first batch of a prefix.")
    p_bad: float = Field(
        default=0.05, gt=0, lt=1, description="Sequential: a prefix of at most this value is bad."
    )
    p_good: float = Field(
        default=0.4, gt=0, lt=1, description="Sequential: a prefix of at least this value is good."
    )
    error_rate: float = Field(
        default=0.05,
        gt=0,
        lt=0.5,
        description="Sequential: chance of a wrong decision, either way, that the test aims at. The exact "
        "chances with so many `--rollouts` are printed.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.p_bad < self.p_good:
            raise ValueError(f"'p_bad' must be below 'p_good', not {self.p_bad} and {self.p_good}")
        return self

    @property
    def borrowed(self) -> Borrowed:
        """Which solutions from other prefixes count."""
        return {"soft": "none", "hard": "right", "sequential": "all"}[self.kind]  # type: ignore[return-value]

    def more(self, successes: int, trials: int, sampled: int) -> int:
        """Rollouts to sample next, 0 = decided. ``sampled`` also counts rollouts that could not be graded."""
        remaining = max(self.rollouts - sampled, 0)
        if self.kind == "soft":
            return remaining
        if self.kind == "hard":
            return 0 if successes else min(max(sampled, self.first), remaining)
        ratio, (success, failure) = self._ratio(successes, trials), self._gains
        bound = math.log((1 - self.error_rate) / self.error_rate)
        if not -bound < ratio < bound:
            return 0
        return min(math.ceil((bound - ratio) / success), math.ceil((-bound - ratio) / failure), remaining)

    def value(self, successes: int, trials: int) -> float:
        """The label, in [0, 1], from at least one trial."""
        return successes / trials if self.kind == "soft" else float(self.good(successes, trials))

    def good(self, successes: int, trials: int) -> bool:
        """Whether the answer can be reached from the prefix."""
        return self._ratio(successes, trials) > 0 if self.kind == "sequential" else successes > 0

    def chance_of_good(self, value: float) -> float:
        """Chance that a prefix of this value is called good (operating characteristic).

        Exact, by recursion over the successes after each trial, for independent rollouts that can all be
        graded. A is ``chance_of_good(p_bad)``, B is 1 - ``chance_of_good(p_good)``.
        """
        undecided, good = {0: 1.0}, 0.0
        for trials in range(self.rollouts + 1):
            following: dict[int, float] = {}
            for successes, chance in undecided.items():
                if not self.more(successes, trials, trials):
                    good += chance * self.good(successes, trials)
                    continue
                following[successes] = following.get(successes, 0.0) + chance * (1 - value)
                following[successes + 1] = following.get(successes + 1, 0.0) + chance * value
            undecided = following
        return good

    @property
    def _gains(self) -> tuple[float, float]:
        """Change of the log-likelihood ratio by a success, and by a failure."""
        return math.log(self.p_good / self.p_bad), math.log((1 - self.p_good) / (1 - self.p_bad))

    def _ratio(self, successes: int, trials: int) -> float:
        success, failure = self._gains
        return successes * success + (trials - successes) * failure
