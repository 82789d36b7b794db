"""The benchmark of the shop: what it counts, on runs whose truth is written down."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="module")
def benchmark():
    from benchmarks.agents import lab

    return lab


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
    assert {"rules", "replay_rules", "mc_hard_2"} < set(sources)
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


def test_the_gate_passes_the_truth_and_no_length(benchmark, runs):
    rows = benchmark.Rows()
    rows.add(runs)
    scores = {"truth": np.array(rows.good, dtype=float), "length": [-fact.characters for fact in rows.facts]}
    figures = benchmark.gate_figures(scores, rows.facts, rows.good, rows.problems, draws=50)
    named = {one["name"]: one for one in figures}
    assert named["auc_rows_truth"]["value"] == 1
    assert named["reading_within_prefix_truth"]["value"] > 0.1
    assert named["reading_within_prefix_length"]["low"] < 0
    assert named["reads_length"]["value"] == 0


def test_a_comparison_without_pairs_has_a_reason_and_no_value(benchmark, runs):
    rows = benchmark.Rows()
    rows.add(benchmark.Runs(tasks=runs.tasks, items=runs.items[::4], truth=runs.truth[::4]))
    figures = benchmark.gate_figures(
        {"chance": np.zeros(len(rows.good))}, rows.facts, rows.good, rows.problems, draws=50
    )
    named = {one["name"]: one for one in figures}
    one = named["reading_within_prefix_chance"]
    assert (one["value"], one["low"], one["note"]) == (None, None, "no good and bad row share a prefix")
    assert named["reading_within_problem_chance"]["value"] is not None
    assert named["reads_chance"]["value"] == 0
