"""Accept a step, or reject it and sample another."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field

from surefoot.scores import step_score
from surefoot.search.method import SearchMethod
from surefoot.search.space import Prefix, Space


class StepResampling(SearchMethod):
    """``n`` solutions, whose steps are sampled again while their score is below ``threshold``.

    A step is accepted if its own score r satisfies r ≥ ``threshold``, as reward-guided speculative decoding
    accepts the step of a draft model (Liao et al. 2025, arXiv 2501.19324, with a threshold for its weight);
    here the same policy draws again, at most ``retries`` times a step and ``budget`` times a problem
    (``None`` = no such bound). After that the best of the rejected is taken. If every step has the chance a
    of being accepted, a step costs (1 - (1 - a)^(retries + 1)) / a draws on average.

    A step without a score is not accepted: it is sampled again, and taken only where no sample
    has a number. The method costs little on easy problems, where the first draw is good.
    """

    method: ClassVar[str] = "resample"
    n: int = Field(default=1, ge=1, description="Solutions per problem.")
    threshold: float = Field(
        default=0.7, allow_inf_nan=False, description="A step is accepted from this score on."
    )
    retries: int = Field(default=3, ge=0, description="Further draws of a rejected step, at most.")
    budget: int | None = Field(default=None, ge=0, description="Further draws per problem, at most.")

    @property
    def draws(self) -> int:
        """As :attr:`SearchMethod.draws`."""
        return self.n * (1 + self.retries)

    async def explore(self, space: Space) -> list[Prefix]:
        """The ``n`` solutions, where the policy answered."""
        chains = [space.root] * self.n
        active = list(range(self.n))
        budget = math.inf if self.budget is None else float(self.budget)
        while active:
            extended = await space.extend([chains[k] for k in active], 1)
            steps = {k: children[0] for k, children in zip(active, extended, strict=True) if children}
            budget -= await self._redraw(space, chains, steps, budget)
            for k, prefix in steps.items():
                chains[k] = prefix
            active = [k for k, prefix in steps.items() if prefix.data.finish is None]
        ends = [chain for chain in chains if chain is not space.root]
        if self.rule != "majority":
            await space.score(ends)
            for end in ends:
                scores = [step_score(step.score, space.aggregation) for step in space.scored_steps(end)]
                space.rejected[end.prefix] = sum(
                    score is not None and score < self.threshold for score in scores
                )
        return ends

    async def _redraw(self, space: Space, chains: list[Prefix], steps: dict[int, Prefix], left: float) -> int:
        """Draw rejected steps again, and put better ones into ``steps``; the number of draws."""
        if not self.retries or left < 1:
            return 0
        await space.score(list(steps.values()))
        rejected = [k for k, prefix in steps.items() if not self._accepts(space, prefix)]
        spent = 0
        for _ in range(self.retries):
            rejected = rejected[: int(min(left - spent, len(rejected)))]
            if not rejected:
                break
            spent += len(rejected)
            extended = await space.extend([chains[k] for k in rejected], 1)
            await space.score([child for children in extended for child in children])
            for k, children in zip(rejected, extended, strict=True):
                steps[k] = max([steps[k], *children], key=space.step_value)  # the first of equals
            rejected = [k for k in rejected if not self._accepts(space, steps[k])]
        return spent

    def _accepts(self, space: Space, prefix: Prefix) -> bool:
        # an end without text has nothing to judge
        return not prefix.text.strip() or space.step_value(prefix) >= self.threshold
