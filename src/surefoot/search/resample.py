"""Accept a step, or reject it and draw again."""

from __future__ import annotations

import math
from dataclasses import dataclass

from surefoot.search.result import require_rule
from surefoot.search.space import Prefix, Space


@dataclass(frozen=True, kw_only=True)
class StepResampling:
    """``n`` solutions, whose steps are drawn again while their score is below ``threshold``.

    A step is accepted if its own score r satisfies r ≥ ``threshold``, as reward-guided speculative decoding
    accepts the step of a draft model (Liao et al. 2025, arXiv 2501.19324, with a threshold for its weight);
    here the same policy draws again, at most ``retries`` times a step and ``budget`` times a problem
    (``None`` = no such bound). After that the best of the rejected is taken. If every step has the chance a
    of being accepted, a step costs (1 - (1 - a)^(retries + 1)) / a draws on average.

    A step that the scorer gives no number is accepted, since nothing speaks against it. It costs little on
    easy problems, where the first draw is good. Raises ``ValueError`` for numbers that make no search.
    """

    n: int = 1
    threshold: float = 0.7
    retries: int = 3
    budget: int | None = None
    rule: str = "weighted_vote"
    name: str = "resample"

    def __post_init__(self) -> None:
        if self.n < 1 or self.retries < 0 or (self.budget or 0) < 0:
            raise ValueError(
                f"'n' must be 1 or more, 'retries' and 'budget' 0 or more, not {self.n}, {self.retries} and "
                f"{self.budget}"
            )
        if not math.isfinite(self.threshold):
            raise ValueError(f"'threshold' must be a number, not {self.threshold}")
        require_rule(self.rule)

    async def explore(self, space: Space) -> list[Prefix]:
        """The ``n`` solutions, where the policy answered."""
        chains = [space.root] * self.n
        going = list(range(self.n))
        left = math.inf if self.budget is None else float(self.budget)
        while going:
            drawn = await space.extend([chains[k] for k in going], 1)
            taken = {k: children[0] for k, children in zip(going, drawn, strict=True) if children}
            left -= await self._redraw(space, chains, taken, left)
            for k, prefix in taken.items():
                chains[k] = prefix
            going = [k for k, prefix in taken.items() if prefix.data.finish is None]
        ends = [chain for chain in chains if chain is not space.root]
        if self.rule != "majority":
            await space.score(ends)
        return ends

    async def _redraw(self, space: Space, chains: list[Prefix], taken: dict[int, Prefix], left: float) -> int:
        """Improve the steps in ``taken``; number of draws that this took."""
        if not self.retries or left < 1:
            return 0
        await space.score(list(taken.values()))
        rejected = [k for k, prefix in taken.items() if not self._accepts(space, prefix, first=True)]
        spent = 0
        for _ in range(self.retries):
            rejected = rejected[: int(min(left - spent, len(rejected)))]
            if not rejected:
                break
            spent += len(rejected)
            drawn = await space.extend([chains[k] for k in rejected], 1)
            await space.score([child for children in drawn for child in children])
            for k, children in zip(rejected, drawn, strict=True):
                taken[k] = max([taken[k], *children], key=space.step_value)  # the first of equals
            rejected = [k for k in rejected if not self._accepts(space, taken[k], first=False)]
        return spent

    def _accepts(self, space: Space, prefix: Prefix, *, first: bool) -> bool:
        value = space.step_value(prefix)
        # an end without text has no step to judge
        return not prefix.text.strip() or value >= self.threshold or (first and value == -math.inf)
