"""Floors of AgentProcessBench, and what tells runs of tau-bench apart, as the benchmark counts them."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "../shared/data/agent"


@pytest.fixture(scope="module")
def benchmark():
    if not (DATA / "tau_bench_gpt4o_airline.json.gz").exists():
        pytest.skip(f"runs of agents not found under {DATA}")
    from benchmarks.agents import real

    return real


def test_known_floors_and_the_headline(benchmark):
    hotpotqa, judged = benchmark.evaluate(DATA, draws=20)
    assert benchmark.differing(hotpotqa, judged) == []
    counted = [
        (subset, one.system) for part in (hotpotqa, judged) for one in part.scores for subset in one.subsets
    ]
    assert set(benchmark.KNOWN) <= set(counted)
    headline, rules, above, _ = benchmark.headlines(hotpotqa, judged)
    rates = {one.system: one.subsets["all"].first_error.value for one in judged.scores}
    floors = [rates[one.system] for one in judged.scores if one.kind == "floor" and not one.uses_outcome]
    judges = [rates[one.system] for one in judged.scores if one.kind == "labels"]
    assert (len(floors), len(judges)) == (3, 20)
    assert headline["value"] == 100 * max(judges)
    assert headline["ratio"] == pytest.approx(max(judges) / max(floors))
    assert (len(judges), rules["value"] > 0) == (
        20,
        True,
    )  # calls written as text lift the rules above the floor
    assert 0 < above["value"] < 20


def test_the_first_suspicious_step_is_compared_with_the_labels(benchmark):
    figures = {one["name"]: one["value"] for one in benchmark.inspected(DATA, draws=20)}
    assert figures["inspect_precision_confirming"] == pytest.approx(100 * 26 / 31)
    assert figures["inspect_precision_confirming_last_step_iff_failed"] == pytest.approx(100 * 20 / 30)
    assert figures["inspect_named_confirming"] == pytest.approx(100 * 30 / 38)


def test_rules_flag_few_runs_of_tau_bench_and_those_failed(benchmark, tmp_path):
    folder = tmp_path / "tau_bench" / "envs" / "airline" / "tools"
    folder.mkdir(parents=True)
    (folder / "cancel.py").write_text(
        "raise SystemExit\n"
        "class Cancel:\n"
        "    @staticmethod\n"
        "    def get_info():\n"
        "        return {'type': 'function', 'function': {'name': 'cancel_reservation',"
        " 'parameters': {'type': 'object', 'required': ['reason']}}}\n"
    )
    (tool,) = benchmark.airline_tools(tmp_path)
    assert (tool.name, tool.parameters) == (
        "cancel_reservation",
        '{"type": "object", "required": ["reason"]}',
    )
    figures = {one["name"]: one["value"] for one in benchmark.rewards(DATA, draws=20)}
    assert figures["tau_flagged_runs"] == figures["tau_flagged_failed"] == 7
    strict = {one["name"]: one["value"] for one in benchmark.rewards(DATA, draws=20, tools=(tool,))}
    assert 7 < strict["tau_flagged_runs"] < 20  # tools that were not offered answered: that is advice


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
