"""Choosing among solutions of the word world: rules and figures on candidates whose result is plain."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.worlds.words.measure import (
    Candidate,
    accuracies,
    after_check,
    by_vote,
    by_weight,
    candidates,
    policy_figures,
    step_figures,
)
from benchmarks.worlds.words.run import measured
from surefoot.lab import StepTruth
from surefoot.records import Problem, StepScores, Trace
from surefoot.segment import Line, segment_trace

RIGHT = StepTruth(value=1)


def one(answer, *scores, kind=None, correct=None):
    truth = (StepTruth(value=-1, kind=kind) if kind else RIGHT, RIGHT)
    return Candidate(
        answer=answer,
        correct=answer == "7" if correct is None else correct,
        truth=truth,
        refuted=(kind == "slip", False),
        length=2,
        scores={"prm-0": scores or (0.5, 0.5), "orm-0": (0.5, 0.5)},
    )


def lowest(candidate):
    return min(candidate.scores["prm-0"])


def test_the_largest_weight_wins_ties_are_drawn_and_no_answer_is_chosen_last():
    group = [one("7", 0.9, 0.2), one("8", 0.3, 0.4), one(None, 0.99, 0.99, correct=False)]
    assert by_weight(lowest)(group) == 0.0
    assert by_weight(lambda candidate: candidate.scores["prm-0"][0])(group) == 1.0
    assert by_weight(lambda _: 1.0)(group) == 0.5
    assert by_weight(lowest)(group[2:]) == 0.0


def test_votes_add_up_by_answer():
    group = [one("7", 0.2, 0.9), one("7", 0.3, 0.9), one("8", 0.4, 0.9), one(None, 1.0, 1.0, correct=False)]
    assert by_vote(lowest)(group) == 1.0
    assert by_vote(lambda _: 1.0)(group[1:]) == 0.5
    assert by_vote(lowest)(group[3:]) == 0.0


def test_the_check_leaves_out_slips_unless_all_have_one():
    group = [one("8", kind="slip"), one("8", kind="slip"), one("7")]
    majority = by_vote(lambda _: 1.0)
    assert majority(group) == 0.0
    assert after_check(majority)(group) == 1.0
    assert after_check(majority)(group[:2]) == 0.0


def test_fewer_samples_are_averaged_over_all_blocks():
    group = [one("7")] * 4 + [one("8")] * 12
    found = accuracies([group], ["prm-0"])["majority"]
    assert {size: values.tolist() for size, values in found.items()} == {1: [0.25], 4: [0.25], 16: [0.0]}


def test_kinds_of_first_errors_and_right_answers_on_a_wrong_step():
    group = [one("7"), one("7", kind="reasoning"), one("8", kind="slip"), one("8", kind="reasoning")]
    found = {row["name"]: row["value"] for row in policy_figures([group], "test")}
    assert found["test_right"] == 50
    assert found["test_first_errors_slip"] == pytest.approx(100 / 3)
    assert found["test_first_errors_reasoning"] == pytest.approx(200 / 3)
    assert found["test_right_answers_on_a_wrong_step"] == 50


def test_step_auc_counts_steps_up_to_the_first_error_of_a_kind():
    group = [one("7", 0.9, 0.8), one("8", 0.1, 0.99, kind="reasoning"), one("8", 0.85, 0.0, kind="slip")]
    found = {row["name"]: row["value"] for row in step_figures([group], ["prm-0"], "test")}
    assert found["test_step_AUC_reasoning_prm-0"] == 1.0
    assert found["test_step_AUC_slip_prm-0"] == 0.5
    assert found["test_step_AUC_slip_equations"] == 1.0
    assert found["test_step_AUC_reasoning_equations"] == 0.5


def test_candidates_join_truth_check_and_scores_and_seeds_are_averaged():
    problem = Problem(
        text="Ann has 3 cards. Ben has 4 more than Ann. How many cards does Ben have?",
        answer="7",
        meta={
            "lab": {
                "quantities": {"Ben has": [3, "+", 4, "Ann", "", "Ben has 4 more than Ann"]},
                "goal": "Ben has",
            }
        },
    )
    texts = (
        "Ben has 4 more than Ann. Ben has Ann's 3 + 4 = 7.\nAnswer: 7.\n",
        "Ben has 4 more than Ann. Ben has Ann's 3 + 4 = 8.\nAnswer: 8.\n",
    )
    traces = [
        segment_trace(
            Trace(problem_id=problem.id, text=texts[n % 2], sample=n, answer="78"[n % 2], outcome=n % 2 == 0),
            Line(),
        )
        for n in range(16)
    ]
    scores = {
        name: [StepScores(trace_id=trace.id, scores=(at, 0.5), scorer=name) for trace in traces]
        for name, at in (("prm-0", 0.1), ("prm-1", 0.2), ("orm-0", 0.3), ("orm-1", 0.4))
    }
    groups = candidates([problem], traces, scores)
    assert [candidate.first_error for candidate in groups[0][:2]] == [None, "slip"]
    assert [candidate.refuted for candidate in groups[0][:2]] == [(False, False), (True, False)]
    found = {row["name"]: row["value"] for row in measured(groups, list(scores), "test")}
    assert found["test_majority_N=16"] == 50
    assert found["test_check,_majority_N=16"] == 100
    assert found["test_prm_lowest_N=16"] == np.mean([found[f"test_prm-{n}_lowest_N=16"] for n in (0, 1)])
    assert found["test_check,_prm_lowest_-_check,_majority_N=16"] == 0
