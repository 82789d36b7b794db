"""benchmarks/search/run.py: plans of compute-optimal search at the cost of best-of-N, and their figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.search import run as search
from surefoot.records import Trace, Usage
from surefoot.search import BestOfNSearch, DifficultyEstimate, SearchResult, StepResampling
from surefoot.search.method import SearchCounts

PROBLEMS = 9


def result(number: int, right: bool, tokens: int) -> SearchResult:
    problem = f"p{number}"
    return SearchResult(
        problem_id=problem,
        method="m",
        seed=0,
        candidates=(Trace(problem_id=problem, text="so", outcome=right),),
        scores=(),
        values=(None,),
        weights=(1,),
        rule="majority",
        chosen=0,
        usage=Usage(completion_tokens=tokens),
        counts=SearchCounts(),
    )


class FakeBench:
    """A vote solves the easy third, DVTS the middle one as well, a large resampling all; ``n`` solutions cost
    100 tokens each, up to ``most``."""

    def __init__(self, most: int = 32) -> None:
        self.asked: list[str] = []
        self.most = most

    def search(self, name, method, aggregation, seed):
        self.asked.append(name)
        if isinstance(method, BestOfNSearch):
            tokens, solved = 100 * min(method.n, self.most), 3
        elif isinstance(method, StepResampling):
            tokens, solved = 150 * method.n, PROBLEMS if method.n == 8 else 0
        else:
            kind, _, rest = name.partition("-")
            size = int(rest.removeprefix(aggregation).removeprefix("-") or 16)
            tokens, solved = 60 * size, 6 if kind == "dvts" else 0
        return [result(number, number < solved, tokens) for number in range(PROBLEMS)]


PROBED = [DifficultyEstimate(difficulty=number / 10, tokens=400) for number in range(PROBLEMS)]


@pytest.fixture(scope="module")
def plans():
    trials = search.gather(FakeBench(), search.tree_methods, (4, 8, 16), "min")
    return search.fit_plans(trials, PROBED)


def test_a_plan_spends_no_more_than_best_of_n_with_its_probe(plans):
    assert sorted(plans) == [8, 16, 32]
    for n, fit in plans.items():
        for chosen, row in zip(fit.search.searches, fit.bins, strict=True):
            assert 400 < row[chosen.name].tokens <= 100 * n


def test_each_bin_gets_the_cheapest_of_the_best(plans):
    def names(n):
        return [search.name for search in plans[n].search.searches]

    assert names(8) == ["vote-1", "dvts-4", "vote-1"]  # nothing solves the hard third for the 400 tokens left
    assert names(16) == ["vote-1", "dvts-4", "resample-16"]
    assert names(32) == names(16)
    described = json.loads(json.dumps(search.described(plans)))
    assert described["16"]["searches"][2] == {
        "name": "resample-16",
        "accuracy": 1,
        "tokens": 1600,
        "problems": 3,
    }
    assert described["16"]["edges"] == pytest.approx([0.2, 0.5])


def test_the_reference_size_is_what_the_choice_of_aggregations_left():
    bench = FakeBench()
    search.gather(bench, search.tree_methods, (4, 16), "min")
    assert {"dvts-min", "dvts-min-4", "vote-min-32"} <= set(bench.asked)
    assert not any(name.startswith("mcts") for name in bench.asked)


def test_where_the_probe_takes_it_all_there_is_no_plan():
    for most, budgets in ((16, [8, 16, 32]), (4, [])):
        trials = search.gather(FakeBench(most), search.tree_methods, (4, 16), "min")
        assert list(search.fit_plans(trials, PROBED)) == budgets


BETWEEN = 50 + 50 * np.log(600 / 500) / np.log(1100 / 500)
"""Accuracy of the curve below at 600 tokens."""


def test_figures_compare_within_the_cost_of_best_of_16():
    def point(cost, *right):
        return search.Point(right=[np.array(right, dtype=float)], tokens=[np.full(len(right), float(cost))])

    points = {
        "best_of_n": {16: point(1000, 1, 0, 0, 0)},
        "weighted_vote": {16: point(1000, 1, 1, 0, 0)},
        "majority": {16: point(800, 0, 0, 1, 0)},
        "dvts": {8: point(500, 1, 1, 0, 0), 16: point(1100, 1, 1, 1, 1)},
        "optimal": {8: point(600, 1, 1, 1, 0), 32: point(2000, 1, 1, 1, 1)},
    }
    found = {figure["name"]: figure["value"] for figure in search.figures(points, "dvts")}
    assert found["accuracy_vs_best_of_16"] == 25
    assert found["accuracy_vs_majority"] == 25
    assert found["accuracy_of_optimal_vs_best_tree"] == pytest.approx(75 - BETWEEN)
    assert found["accuracy_of_optimal_vs_best_of_16"] == 50
    assert found["tokens_at_equal_accuracy_of_optimal"] == pytest.approx(1000 / 600)
    del points["optimal"]
    assert "accuracy_of_optimal_vs_best_tree" not in {f["name"] for f in search.figures(points, "dvts")}
