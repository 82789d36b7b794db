"""benchmarks/code/run.py: its rules on samples made by hand, and the gate of mutants."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.code import mutants
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
