"""The benchmark of the shop: what it counts, on runs whose truth is written down."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import _agents_lab
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return _agents_lab


@pytest.fixture(scope="module")
def runs(benchmark):
    return benchmark.Runs.sampled(0, tasks=8, n=4)


def test_the_truth_as_a_source_is_always_right(benchmark, runs):
    truth = [[one.value < 0 for one in row] for row in runs.truth]
    found = benchmark.rates(benchmark.counted(runs, truth).sum(axis=0)[None, None])[0]
    assert found[:3].tolist() == [1, 1, 0]
    assert found[3:].tolist() == [1, 1, 1]
    nothing = [[False] * len(row) for row in truth]
    found = benchmark.rates(benchmark.counted(runs, nothing).sum(axis=0)[None, None])[0]
    assert found[0] == 1 - np.mean([wrong for row in truth for wrong in row])
    assert found[1] == np.mean([not any(row) for row in truth])
    assert found[2:].tolist() == [0, 0, 0, 0]


def test_sources_have_a_verdict_for_each_step_and_a_cost(benchmark, runs):
    sources = benchmark.label_sources(runs, rollouts=(2,))
    assert {"rules", "replay_rules", "mc_hard_2", "mc_progress_2"} < set(sources)
    for name, (bad, tokens, _) in sources.items():
        assert [len(row) for row in bad] == [len(row) for row in runs.truth]
        assert (tokens > 0) == name.startswith("mc_")


def test_the_best_of_each_task_is_picked_and_ties_are_shared(benchmark, runs):
    outcomes = benchmark.outcomes(runs)
    by_task = np.reshape(outcomes, (8, 4))
    assert benchmark.pick(runs, [0.0] * 32, outcomes) == by_task.mean(axis=1).tolist()
    assert benchmark.pick(runs, outcomes, outcomes) == by_task.max(axis=1).tolist()
    first, rest = runs.split(3)
    assert (len(first.items), len(rest.tasks)) == (12, 5)
    assert benchmark.outcomes(rest) == outcomes[12:]


def test_scorers_learn_from_one_part_and_score_another(benchmark, runs):
    first, rest = runs.split(5)
    for scores in benchmark.learned_scores(first, rest).values():
        assert [len(one) for one in scores] == [len(row) for row in rest.truth]
        assert all(((one > 0) & (one <= 1)).all() for one in scores)
