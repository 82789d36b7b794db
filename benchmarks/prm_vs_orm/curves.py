"""Accuracy of PRM, ORM and majority vote on the same stored samples, by number of samples and rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.worlds.digits import check_steps
from surefoot.evaluation import CandidateGroup, expected_accuracy, pool_of
from surefoot.records import Problem, StepScores, Trace
from surefoot.scores import AGGREGATORS, Aggregator
from surefoot.search import Pool
from surefoot.stats import Interval, auc_by_problem, mean_over_runs, roc_auc

FloatArray = NDArray[np.float64]
MODELS: Final = ("orm", "prm", "prm_gold")
READINGS: Final[Mapping[str, tuple[str, Aggregator]]] = {
    "orm": ("orm", "last"),
    "orm_lowest_step": ("orm", "min"),
    "prm": ("prm", "min"),
    "prm_gold": ("prm_gold", "min"),
}
"""Curve → scorer and aggregation. An outcome model is read at its last step (Cobbe et al., arXiv 2110.14168;
Lightman et al., arXiv 2305.20050), a process model at its lowest (Wang et al., arXiv 2312.08935); the second
line asks what the ORM's own step scores are worth."""
METHODS: Final = {"best_of_n": "best-of-N", "weighted_vote": "weighted vote"}
RULES: Final = tuple(f"{method} {how}" for method in METHODS.values() for how in AGGREGATORS)
"""Every way to choose by step scores: how many scores become one, and best-of-N or the weighted vote."""


@dataclass(frozen=True, kw_only=True)
class ScoredTraces:
    """Test problems, their traces (the same number each) and the scores of each kind of model.

    A kind has one list of scores for each training seed.
    """

    problems: list[Problem]
    traces: list[Trace]
    scores: dict[str, list[list[StepScores]]]

    def pools(self, scores: Sequence[StepScores], how: Aggregator) -> list[Pool]:
        """One pool per problem; traces without steps or scores stay unscored."""
        groups: dict[str, list[Trace]] = {problem.id: [] for problem in self.problems}
        for trace in self.traces:
            groups[trace.problem_id].append(trace)
        by_trace = {record.trace_id: record for record in scores}
        return [pool_of(CandidateGroup.of(group), by_trace, how) for group in groups.values()]


def accuracy_curves(scored: ScoredTraces, sizes: Sequence[int], *, seed: int) -> dict[str, FloatArray]:
    """Expected accuracy of pass@N, majority, and every scorer by each of ``RULES``.

    Each has shape [training seeds, problems, sizes], with one seed where no model is trained. Rules are
    called like ``prm best-of-N min``; the rules in ``READINGS`` also appear under their own names.
    """
    unscored = scored.pools([], "min")
    curves = {
        "pass_at": expected_accuracy(unscored, "pass", sizes, seed=seed)[None],
        "majority": expected_accuracy(unscored, "majority", sizes, seed=seed)[None],
    }
    for scorer, runs in scored.scores.items():
        for how in AGGREGATORS:
            pools = [scored.pools(scores, how) for scores in runs]
            for method, name in METHODS.items():
                draws = {"draws": 100} if method == "weighted_vote" else {}
                curves[f"{scorer} {name} {how}"] = np.stack(
                    [expected_accuracy(pool, method, sizes, seed=seed, **draws) for pool in pools]
                )
    return curves | {name: curves[f"{scorer} best-of-N {how}"] for name, (scorer, how) in READINGS.items()}


def step_aucs(scored: ScoredTraces, *, seed: int) -> dict[str, tuple[float, Interval]]:
    """By model the step AUC against the truth of the prefix, pooled, and what it is above the position's.

    The position baseline scores an earlier step higher.
    """
    problems = {problem.id: problem for problem in scored.problems}
    good, position, groups = [], [], []
    for trace in scored.traces:
        right = True
        for step, verdict in enumerate(check_steps(problems[trace.problem_id], trace)):
            right = right and verdict.value != -1
            good.append(right)
            position.append(-step)
            groups.append(trace.problem_id)
    by_position = auc_by_problem(position, good, groups)
    found = {}
    for name, runs in scored.scores.items():
        values = [np.array([score for row in run for score in row.scores], dtype=float) for run in runs]
        gaps = np.array([auc_by_problem(one, good, groups) - by_position for one in values])
        pooled = float(np.mean([roc_auc(one, good) for one in values]))
        found[name] = pooled, mean_over_runs(gaps, rng=np.random.default_rng(seed))
    return found
