"""benchmarks/code/run.py: its rules on samples made by hand, and the heads that it learns."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.code import learned, mutants
from benchmarks.code import run as bench
from surefoot import Problem, StepLabel, Trace
from surefoot.labelling import Behaviour
from surefoot.protocols import LabelledTrace
from surefoot.segment import PythonCode, segment_trace

A, B, ERROR = "returned a", "returned b", "raised ValueError"
KINDS = [(ERROR, 0, False)] * 4 + [(A, 1, False)] * 3 + [(B, 2, True)] * 2


def samples(kinds=KINDS):
    return bench.Samples(
        problem=Problem(id="p", text="def f(): ..."),
        texts=["x" * (5 + n) for n in range(len(kinds))],
        right=np.array([right for _, _, right in kinds]),
        behaviours=[
            Behaviour(results=(result,), visible_passed=passed, visible=2) for result, passed, _ in kinds
        ],
        oracle=[result for result, _, _ in kinds],
    )


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        ("random", 2 / 9),
        ("shortest", 0.0),
        ("examples", 1.0),
        ("majority", 0.0),
        ("clean_majority", 0.0),
        ("agreement", 1.0),  # sqrt(2) * 2 against sqrt(3) * 1
        ("examples_majority", 1.0),
        ("examples_clean_majority", 1.0),
        ("oracle_inputs_majority", 0.0),
        ("any", 1.0),
    ],
)
def test_rules_choose_as_they_say(rule, share, monkeypatch):
    monkeypatch.setattr(bench, "SIZES", (1, len(KINDS)))
    task = samples()
    lengths = [np.array([1 / len(text) for text in task.texts])]
    found = bench.accuracies([task], {"shortest": lengths})[rule]
    assert found[0, 0] == pytest.approx(2 / 9), "of one sample all rules choose alike"
    assert found[0, 1] == pytest.approx(share)


def test_auc_counts_ties_as_half():
    assert bench.auc_of_task(np.array([1.0, 1.0, 2.0]), np.array([True, False, True])) == 0.75
    assert np.isnan(bench.auc_of_task(np.ones(2), np.ones(2, dtype=bool)))


def completions(*texts: str) -> learned.Completions:
    ends = [learned.step_ends(text) for text in texts]
    owners = np.concatenate([np.full(len(some), at) for at, some in enumerate(ends)])
    size = len(owners)
    return learned.Completions(
        name="t",
        texts=list(texts),
        states=np.zeros((size, 2), dtype=np.float32),
        logprobs=-np.arange(1.0, size + 1, dtype=np.float32),
        tokens=np.full(size, 2),
        owners=owners,
    )


def test_a_prefix_is_worth_the_share_of_its_samples_that_pass():
    task = completions("    a = 1\n    return a\n", "    a = 1\n    return 2\n", "    return 3\n")
    values = learned.prefix_values(task, np.array([1.0, 0.0, 0.0]), np.array([3.0, 1.0, 1.0]))
    assert values.tolist() == [0.75, 1.0, 0.75, 0.0, 0.0]
    assert task.last.tolist() == [1, 3, 4]
    assert learned.mean_logprobs(task).tolist() == [-3 / 4, -7 / 4, -5 / 2]
    numbers = learned.step_features(task)[:, 2:]
    assert numbers[3].tolist() == pytest.approx([-7 / 4, -2, -4, np.log(2), np.log(5)])


def test_a_head_has_seen_no_label_of_its_task():
    rng = np.random.default_rng(0)
    features = [rng.normal(size=(30, 8)) + 5 * at for at in range(12)]
    truth = np.array([1.0, -1.0, 0, 0, 0, 0, 0, 0])
    targets = [(rows @ truth > rows.mean(0) @ truth).astype(float) for rows in features]
    weights = [np.ones(30)] * 12
    heads = learned.fit_heads(features, targets, weights)
    right = [head.probabilities(rows) for head, rows in zip(heads, features, strict=True)]
    assert all(bench.auc_of_task(one, t == 1) > 0.9 for one, t in zip(right, targets, strict=True))
    changed = [1 - targets[0], *targets[1:]]
    again = learned.fit_heads(features, changed, weights)
    np.testing.assert_allclose(again[0].weights, heads[0].weights, atol=1e-12)
    assert any(not np.allclose(a.weights, b.weights) for a, b in zip(again[1:], heads[1:], strict=True))


def test_the_gate_compares_programs_of_a_task_and_statements_that_share_a_beginning():
    good, bad = "    a = 1\n    return a\n", "    a = 1\n    return 2\n"
    tasks = [completions("", good, bad, f"    return {at}\n") for at in range(12)]
    tasks = [learned.replace(task, name=f"t{at}") for at, task in enumerate(tasks)]
    outcomes = [np.array([0.0, 1.0, 0.0, 0.0])] * 12
    values = [learned.prefix_values(task, outcomes[0], np.ones(4)) for task in tasks]
    figures = learned.reading_figures(
        tasks,
        ["def f():"] * 12,
        programs={"truth": outcomes, "chance": [np.zeros(4)] * 12},
        statements={"truth": values},
        outcomes=outcomes,
        values=values,
    )
    named = {one["name"]: one for one in figures}
    assert named["auc_rows_truth_programs"]["note"] == "on 36 rows of 12 problems"  # without the empty one
    assert named["auc_rows_truth_statements"]["note"] == "on 48 rows of 12 problems"  # "a = 1" counts once
    assert named["reading_within_prefix_truth_programs"]["value"] >= 0
    assert (
        named["reading_within_prefix_truth_programs"]["value"]
        == named["reading_within_problem_truth_programs"]["value"]
    )
    # a bag of words knows "return a" from the other tasks, where it is right, too
    assert named["auc_rows_words_statements"]["value"] > named["auc_rows_length_position_statements"]["value"]
    assert named["reading_similar_length_truth_statements"]["low"] == 0
    assert named["reads_chance_programs"]["value"] == 0


def test_a_mutants_fault_is_compared_with_the_reference_step_after_the_same_prefix():
    items, scores = [], []
    for number in range(12):
        problem = Problem(id=f"p{number}", text="def f(a): ...")
        for last, value in ((f"    return a + {number}\n", 1.0), (f"    return a - {number}\n", -1.0)):
            text = f"    a = a * {number}\n{last}"
            trace = segment_trace(Trace(problem_id=problem.id, text=text), PythonCode())
            labels = tuple(
                StepLabel(trace_id=trace.id, step=at, kind="correctness", value=label, source="s")
                for at, label in enumerate((1.0, value))
            )
            items.append(LabelledTrace(problem=problem, trace=trace, labels=labels))
            scores.append((0.9, 0.5 + 0.3 * value))
    figures = {one["name"]: one for one in mutants.reading_figures(items, scores)}
    within = figures["reading_within_prefix_mutants_prm"]
    assert (within["value"], within["low"]) == (0, 0), "a minus is always wrong here: no reading is needed"
    assert figures["auc_rows_words"]["value"] > 0.9
