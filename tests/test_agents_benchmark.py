"""Floors of AgentProcessBench, and what tells runs of tau-bench apart, as the benchmark counts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT / "../shared/data/agent"


@pytest.fixture(scope="module")
def benchmark():
    if not (DATA / "tau_bench_gpt4o_airline.json.gz").exists():
        pytest.skip(f"runs of agents not found under {DATA}")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import agents
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return agents


def test_known_floors_and_the_headline(benchmark):
    hotpotqa, judged = benchmark.evaluate(DATA, draws=20)
    assert benchmark.differing(hotpotqa, judged) == []
    counted = [
        (subset, one.system) for part in (hotpotqa, judged) for one in part.scores for subset in one.subsets
    ]
    assert set(benchmark.KNOWN) <= set(counted)
    headline, above, _ = benchmark.headlines(judged)
    rates = {one.system: one.subsets["all"].first_error.value for one in judged.scores}
    floors = [rates[one.system] for one in judged.scores if one.kind == "floor" and not one.uses_outcome]
    judges = [rates[one.system] for one in judged.scores if one.kind == "labels"]
    assert (len(floors), len(judges)) == (4, 20)
    assert headline["value"] == 100 * max(judges)
    assert headline["ratio"] == pytest.approx(max(judges) / max(floors))
    assert 0 < above["value"] < 20


def test_what_tells_runs_with_a_reward(benchmark):
    """Counted pair by pair from the file by a script of a few lines, independently of this package."""
    figures = {one["name"]: one for one in benchmark.rewards(DATA, draws=20)}
    assert [
        round(figures[f"tau_auc_{name}"]["value"], 3) for name in ("short", "no_tool_errors", "gold_actions")
    ] == [
        0.683,
        0.566,
        0.767,
    ]
