"""Accuracy against the number of samples: every selector, and the curves and differences reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.evaluation.pools import FloatArray, expected_accuracy, pools_of, sizes_up_to
from surefoot.quickstart.comparison.summary import Curve, rounded
from surefoot.records import Problem, StepScores, Trace
from surefoot.scores import AGGREGATORS, Aggregator
from surefoot.search.estimators import Pool
from surefoot.stats.bootstrap import bootstrap_difference, bootstrap_mean
from surefoot.stats.intervals import Interval

READINGS: Mapping[str, tuple[str, Aggregator]] = {
    "orm": ("orm", "last"),
    "orm_lowest_step": ("orm", "min"),
    "prm": ("prm", "min"),
    "prm_gold": ("prm_gold", "min"),
}
"""Curve → scorer and aggregation. An outcome model is read at its last step (Cobbe et al., arXiv 2110.14168;
Lightman et al., arXiv 2305.20050), a process model at its lowest (Wang et al., arXiv 2312.08935); the second
line asks what the ORM's own step scores are worth."""

PAIRS = (
    ("prm", "orm"),
    ("prm", "orm_lowest_step"),
    ("prm", "majority"),
    ("orm", "majority"),
    ("prm_gold", "prm"),
)
"""Differences that are reported, paired by problem."""


@dataclass(frozen=True, kw_only=True)
class ScoredTraces:
    """Test problems, their traces (the same number each) and each scorer's scores of them."""

    problems: list[Problem]
    traces: list[Trace]
    scores: dict[str, list[StepScores]]

    def pools(self, scorer: str, how: Aggregator) -> list[Pool]:
        """One pool a problem, traces without steps or score staying unscored."""
        groups: dict[str, list[Trace]] = {problem.id: [] for problem in self.problems}
        for trace in self.traces:
            groups[trace.problem_id].append(trace)
        return pools_of(groups.values(), {record.trace_id: record for record in self.scores[scorer]}, how)


def accuracy_curves(scored: ScoredTraces, *, seed: int) -> dict[str, FloatArray]:
    """Expected accuracy ``[problems, sizes]`` of pass@N, majority and best-of-N by each of ``READINGS``."""
    sizes = sizes_up_to(min(len(pool.correct) for pool in scored.pools(*READINGS["prm"])))
    best = {
        _best_of_n(scorer, how): expected_accuracy(scored.pools(scorer, how), "best_of_n", sizes, seed=seed)
        for scorer, how in READINGS.values()
    }
    return headline(scored, best, sizes, seed)


def headline(
    scored: ScoredTraces, selectors: Mapping[str, FloatArray], sizes: Sequence[int], seed: int
) -> dict[str, FloatArray]:
    """pass@N and majority, and those of ``selectors`` that ``READINGS`` names."""
    pools = scored.pools(*READINGS["prm"])
    return {
        "pass_at": expected_accuracy(pools, "pass", sizes, seed=seed),
        "majority": expected_accuracy(pools, "majority", sizes, seed=seed),
    } | {name: selectors[_best_of_n(scorer, how)] for name, (scorer, how) in READINGS.items()}


def selector_accuracy(scored: ScoredTraces, sizes: Sequence[int], seed: int) -> dict[str, FloatArray]:
    """Expected accuracy ``[problems, sizes]`` of best-of-N and weighted vote, by scorer and aggregation."""
    found = {}
    for name in scored.scores:
        for how in AGGREGATORS:
            pools = scored.pools(name, how)
            found[_best_of_n(name, how)] = expected_accuracy(pools, "best_of_n", sizes, seed=seed)
            votes = expected_accuracy(pools, "weighted_vote", sizes, seed=seed, draws=100)
            found[f"{name} weighted vote {how}"] = votes
    return dict(sorted(found.items()))


def _best_of_n(scorer: str, how: Aggregator) -> str:
    return f"{scorer} best-of-N {how}"


def with_intervals(values: FloatArray, sizes: Sequence[int], seed: int) -> Curve:
    """``values`` ``[problems, sizes]`` as the mean over problems for each size."""
    return {
        size: rounded(bootstrap_mean(values[:, column], rng=np.random.default_rng(seed)))
        for column, size in enumerate(sizes)
    }


def paired_differences(
    accuracy: Mapping[str, FloatArray], sizes: Sequence[int], seed: int
) -> dict[str, Interval]:
    """``PAIRS`` at 4 and all samples, and how much the lead of the PRM over the ORM grows between."""
    found = {}
    for first, second in PAIRS:
        for size in {4, sizes[-1]} & set(sizes):
            column = sizes.index(size)
            interval = bootstrap_difference(
                accuracy[first][:, column], accuracy[second][:, column], rng=np.random.default_rng(seed)
            )
            found[f"{first} - {second} @ {size}"] = rounded(interval)
    if 4 in sizes[:-1]:
        gap = accuracy["prm"] - accuracy["orm"]
        growth = bootstrap_difference(gap[:, -1], gap[:, sizes.index(4)], rng=np.random.default_rng(seed))
        found[f"gap prm - orm, @ {sizes[-1]} less @ 4"] = rounded(growth)
    return dict(sorted(found.items()))
