"""Stages of a Ray Data pipeline: the scores and labels of the same traces outside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from surefoot import load_prm
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace
from surefoot.work.ray_data import ScoreSteps, VerifySteps

PROBLEMS = ["Add 2 and 3.", "Add 2 and 3.", "Add 4 and 4, then 1."]
RESPONSES = [
    "2 + 3 = 5\nThe answer is 5.",
    "2 + 3 = 6\nThe answer is 6.",
    "4 + 4 = 8\n8 + 1 = 9\nThe answer is 9.",
]


def expected(prm):
    items = []
    for text, response in zip(PROBLEMS, RESPONSES, strict=True):
        problem = Problem(text=text)
        trace = segment_trace(Trace(problem_id=problem.id, text=response), Line())
        items.append(ProblemTrace(problem=problem, trace=trace))
    return [list(one.scores) for one in load_prm(prm).score_traces(items)]


def test_a_batch_keeps_its_columns_and_gets_steps_and_scores(prm):
    batch = {"question": np.array(PROBLEMS), "text": np.array(RESPONSES), "id": np.arange(3)}
    out = ScoreSteps(str(prm), problem="question", response="text")(batch)
    assert set(out) == {*batch, "steps", "step_scores", "unscored_reason", "verifier_tokens"}
    assert ["".join(steps) for steps in out["steps"]] == RESPONSES
    assert [pytest.approx(row, abs=1e-6) for row in expected(prm)] == list(out["step_scores"])
    assert (out["verifier_tokens"] > 0).all()


def test_a_verifier_that_says_nothing_is_nan():
    batch = {"problem": np.array(PROBLEMS), "response": np.array(RESPONSES)}
    labels = VerifySteps("arithmetic")(batch)["step_labels"]
    assert [row[0] for row in labels] == [1.0, -1.0, 1.0]
    assert math.isnan(labels[0][1])


def test_a_column_that_is_missing_is_named():
    with pytest.raises(KeyError, match="response"):
        VerifySteps("arithmetic")({"problem": np.array(PROBLEMS)})
