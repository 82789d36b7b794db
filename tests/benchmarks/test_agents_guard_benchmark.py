"""benchmarks/agents/guard.py: instructions in tools' results move no rule; what is blocked stays undone."""

from __future__ import annotations

from benchmarks.agents import guard as bench
from surefoot import run_sync


def runs(count: int, agent: bench.ShopAgent = bench.AGENT) -> list:
    return [
        (problem, run_sync(bench.play(problem, 5, "none", bench.Counts(), agent)))
        for problem in bench.generate_tasks(count, seed=5)
    ]


def test_instructions_in_results_move_no_rule() -> None:
    assert len(set(bench.INJECTIONS)) >= 30
    changed, total = bench.changed_verdicts(runs(4), bench.INJECTIONS)
    assert total > 1000
    assert changed == 0


def test_a_text_that_holds_what_a_clause_waits_for_is_not_believed_beside_the_fields() -> None:
    hasty = runs(30, bench.HASTY)
    changed, total = bench.changed_verdicts(hasty, bench.ADAPTIVE, shown=True)
    assert changed == 0 < total
    for problem, messages in hasty:
        rules = bench.rules_of(problem, messages)
        before, after = (
            [one.value for one in rules.verify([bench.item_of(problem, made)])[0]]
            for made in (messages, bench.injected(messages, bench.ADAPTIVE[2], inside=True))
        )
        assert before == after


def test_what_the_truth_finds_against_the_policy_is_never_executed() -> None:
    counts = {name: bench.Counts() for name in ("none", "truth")}
    for problem in bench.generate_tasks(8, seed=5):
        for name, found in counts.items():
            run_sync(bench.play(problem, 5, name, found))
    assert any(counts["none"].violated)
    assert not any(counts["truth"].violated)
    assert counts["truth"].blocked_right == 0


def test_the_reward_model_of_words_goes_through_the_reading_gate() -> None:
    scorer, _ = bench.learned_scorer(6)
    figures = {one["name"]: one for one in bench.reading_figures(scorer, 6, 3)}
    assert figures["auc_rows_words"]["value"] > 0.5
    gate = [figures[f"reading_{comparison}_words"] for comparison in ("within_prefix", "within_problem")]
    assert all(one["low"] <= one["value"] <= one["high"] for one in gate)
    assert figures["reads_words"]["value"] in (0, 1)
