"""Compute-optimal search among the curves of ``search.py``: fitted on development problems.

The trials are five tree methods and the weighted vote at several sizes, all with one aggregation. For each N
the plan may spend on average what best-of-N costs on the development problems, and of that the probe, which
tells how hard a problem is, takes the cost of its own solutions. What a search is worth is measured with the
first seed's PRM, like all that is decided there; how hard a problem is, each PRM says itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from surefoot.scores import Aggregator
from surefoot.search import (
    BestOfNSearch,
    OptimalFit,
    Probe,
    Search,
    SearchMethod,
    SearchResult,
    Trial,
    fit_optimal,
)

PROBE = Probe(n=4)
BINS = 3
"""Of 60 development problems each holds 20: five, as published, would choose by chance."""
PLANNED = ("beam", "dvts", "rebase", "particle", "resample")
"""Left out: variants of these (a beam with lookahead or with finished solutions set aside, Gibbs), and MCTS,
which costs more tokens for less."""
VOTES = (1, 2, 4, 8, 16)
BUDGETS = (8, 16, 32)
"""A plan for the cost of each of these best-of-N; at 4 the probe alone would take it all."""


class Bench(Protocol):
    """Searches on the problems of one set with one PRM."""

    def search(self, name: str, method: Search, aggregation: Aggregator, seed: int) -> list[SearchResult]: ...


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What the searches gave on the development problems."""

    tried: list[Trial]
    costs: dict[int, float]
    """Mean tokens of best-of-N, by N."""


def gather(
    bench: Bench, methods: Callable[[int], Mapping[str, SearchMethod]], sizes: Sequence[int], how: Aggregator
) -> Trials:
    """Run what is not there yet; ``how`` aggregates step scores."""
    tried = []
    for size in sizes:
        for name, method in ((name, methods(size)[name]) for name in PLANNED):
            # the reference size is there already, under the name that the choice of aggregations gave it
            stored = f"{name}-{how}" + ("" if size == max(sizes) else f"-{size}")
            named = method.model_copy(update={"name": f"{name}-{size}"})
            tried.append(Trial(search=named, results=bench.search(stored, method, how, seed=0)))
    costs = {}
    for n in sorted({*VOTES, *BUDGETS, PROBE.n}):
        vote = BestOfNSearch(n=n, rule="weighted_vote", name=f"vote-{n}")
        results = bench.search(f"vote-{how}-{n}", vote, how, seed=0)
        costs[n] = float(np.mean([result.usage.tokens for result in results]))
        if n in VOTES:
            tried.append(Trial(search=vote, results=results))
    return Trials(tried=tried, costs=costs)


def fit_plans(trials: Trials, difficulties: Sequence[float | None]) -> dict[int, OptimalFit]:
    """N → the plan that costs, with its probe, at most what best-of-N does on these problems.

    An N whose cost leaves no room for any search after the probe has no plan.
    """
    plans = {}
    for n in BUDGETS:
        left = trials.costs[n] - trials.costs[PROBE.n]
        if left >= max(trials.costs[1], 1):
            plans[n] = fit_optimal(trials.tried, difficulties, tokens=left, bins=BINS, slack=0.0, probe=PROBE)
    return plans


def described(plans: Mapping[int, OptimalFit]) -> dict[int, dict[str, Any]]:
    """For the JSON file: edges, and the search of each bin with its showing on the development problems."""
    return {
        n: {
            "edges": list(fit.search.edges),
            "searches": [
                {
                    "name": search.name,
                    "accuracy": row[search.name].accuracy,
                    "tokens": row[search.name].tokens,
                    "problems": row[search.name].problems,
                }
                for search, row in zip(fit.search.searches, fit.bins, strict=True)
            ],
        }
        for n, fit in plans.items()
    }
