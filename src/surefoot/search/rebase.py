"""REBASE: reward-balanced search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from surefoot.search.method import SearchMethod
from surefoot.search.space import Prefix, Space


class Rebase(SearchMethod):
    """Each round shares a budget of ``n`` draws among the open prefixes, by the softmax of their values.

    Wu et al. 2024 (arXiv 2408.00724), section 3.2: prefix j with value R_j is continued
    W_j = Round(B_i · exp(R_j / T_b) / Σ_k exp(R_k / T_b)) times, where B_i is the budget less the solutions
    that are finished. ``temperature`` is T_b; a high one shares evenly, one near 0 gives all to the best.
    As in the authors' code, widths sum to B_i: the best prefix first, each gets the ceiling of its share of
    the rest. That code works with T_b 0.2, steps of at most 256 tokens, sampled at temperature 1.0, and at
    most 25 steps; the last three are settings of :class:`surefoot.search.space.Steps`. Its value is the score
    of the last step, in the search and in the weighted vote after it (``aggregation`` "last"); the default
    here is the rule of the scorer's checkpoint.

    A prefix that was sampled twice is scored once and takes part twice.
    """

    method: ClassVar[str] = "rebase"
    n: int = Field(default=16, ge=1, description="Draws per round, shared among the open prefixes.")
    temperature: float = Field(
        default=0.2, gt=0, description="T_b of the softmax of values: high shares evenly, near 0 greedily."
    )

    @property
    def draws(self) -> int:
        """As :attr:`SearchMethod.draws`."""
        return self.n

    async def explore(self, space: Space) -> list[Prefix]:
        """Finished solutions in the order in which they ended."""
        solutions: list[Prefix] = []
        [prefixes] = await space.extend([space.root], self.n)
        while prefixes:
            done = [prefix for prefix in prefixes if prefix.data.finish is not None]
            open_ = [prefix for prefix in prefixes if prefix.data.finish is None]
            solutions += done
            remaining = self.n - len(solutions)
            if remaining < 1 or not open_:
                break
            alone = len(set(open_)) == 1  # equal prefixes share equally, whatever their score
            values = [0.0] * len(open_) if alone else await space.score(open_)
            widths = share(values, remaining, temperature=self.temperature)
            children = await space.extend(open_, widths)
            prefixes = [child for siblings in children for child in siblings]
            if not prefixes:  # the policy no longer answers
                solutions += open_
        if self.rule != "majority":
            await space.score(solutions)
        return solutions


def share(values: Sequence[float], budget: int, *, temperature: float = 0.2) -> list[int]:
    """How many of ``budget`` draws each prefix gets, given its value (minus infinity = not scored).

    The widths sum to ``budget``. A prefix without a score gets nothing, unless none has one, and then all get
    the same. Ties go to the first. Raises ``ValueError`` for no values.
    """
    if not values:
        raise ValueError("'values' is empty: give at least one prefix")
    top = max(values)
    gaps = [value - top if top > -math.inf else 0.0 for value in values]
    with np.errstate(over="ignore"):  # far below at a low temperature: minus infinity is right
        weights = np.exp(np.asarray(gaps) / temperature)
    order = sorted(range(len(values)), key=lambda k: -values[k])
    widths = [0] * len(values)
    remaining = budget
    for rank, k in enumerate(order):
        if remaining == 0:
            break
        part = remaining * weights[k] / math.fsum(weights[j] for j in order[rank:])
        widths[k] = min(remaining, math.ceil(part - _ROUNDING_ERROR))
        remaining -= widths[k]
    return widths


_ROUNDING_ERROR = 1e-9
"""A share of 2 that comes out as 2.0000000000000004 is 2 draws, not 3."""
