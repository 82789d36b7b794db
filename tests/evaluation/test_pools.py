from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.answers import AnswerChecker
from surefoot.errors import ScoreError
from surefoot.evaluation.best_of_n import (
    CandidateGroup,
    expected_accuracy,
    judged_candidates,
    pool_of,
    sizes_up_to,
)
from surefoot.records import Step, StepScores, Trace
from surefoot.search.estimators import Pool

NUMERIC = AnswerChecker()


def trace(problem: str, sample: int, *, answer: str | None = "1", outcome: bool | None = True) -> Trace:
    return Trace(
        problem_id=problem,
        sample=sample,
        text="ab",
        steps=(Step(start=0, end=1), Step(start=1, end=2)),
        answer=answer,
        outcome=outcome,
    )


def record(of: Trace, *scores: float | None) -> StepScores:
    return StepScores(trace_id=of.id, scorer="s", scores=scores, unscored_reason="why")


def test_unjudged_traces_and_small_problems_are_left_out_and_counted():
    traces = [
        *(trace("a", n, answer=answer) for n, answer in enumerate(["1/2", "0.5", "2"])),
        trace("a", 3, outcome=None),
        trace("b", 0),
        *(trace("c", n) for n in range(2)),
        *(trace("d", n) for n in range(3)),
    ]
    found = judged_candidates(traces, NUMERIC)
    assert {name: len(group) for name, group in found.groups.items()} == {"a": 3, "c": 2, "d": 3}
    assert found.groups["a"].answers == ["0.5", "0.5", "2"], "equal answers are written alike"
    assert found.dropped == {
        "traces without known outcome": 1,
        "problems with fewer than 2 such traces": 1,
        "traces of these problems": 1,
    }
    assert list(judged_candidates(traces, NUMERIC, least=3).groups) == ["a", "d"]
    with pytest.raises(ScoreError, match="no problem has 4 traces with a known 'outcome'"):
        judged_candidates(traces, NUMERIC, least=4)
    with pytest.raises(ScoreError, match="1 trace ids occur twice"):
        judged_candidates([traces[0], traces[0]], NUMERIC)
    with pytest.raises(ScoreError, match="no problem has 1 traces"):
        judged_candidates([], NUMERIC)


def test_pools_leave_unscored_what_is_not_wholly_scored():
    group = [trace("a", n) for n in range(5)]
    known = [record(group[0], 0.5, 0.4), record(group[1], None, 0.4), record(group[2], None, None)]
    rows = {one.trace_id: one for one in [*known[:2], record(group[4])]}
    of = CandidateGroup.of(group)
    pool = pool_of(of, rows, "product")
    assert pool.scores == pytest.approx([0.2, *[np.nan] * 4], nan_ok=True)
    pool = pool_of(of, {known[2].trace_id: known[2]}, "min")
    assert np.isnan(pool.scores).all()
    with pytest.raises(ScoreError, match=r"1 scores .* do not fit the 2 steps"):
        pool_of(of, {group[0].id: record(group[0], 0.5)}, "min")


def test_sizes_are_powers_of_two():
    assert sizes_up_to(64) == [1, 2, 4, 8, 16, 32, 64]
    assert sizes_up_to(6) == [1, 2, 4]


def above_by_chance(value: float, bound: float, draws: int) -> bool:
    """By Hoeffding's bound a mean of random subsets this far above has a chance below 1e-13 otherwise."""
    if value <= bound + 1e-9:
        return True
    rest = (1 - value) * math.log((1 - value) / (1 - bound)) if value < 1 else 0.0
    return bound > 0 and draws * (value * math.log(value / bound) + rest) <= 30


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 1)),
        min_size=6,
        max_size=12,
    ),
    st.integers(0, 5),
)
def test_no_selector_passes_the_ceiling(rows, seed):
    pool = Pool(
        answers=[answer for answer, _ in rows],
        correct=[answer == "a" for answer, _ in rows],
        scores=[score for _, score in rows],
    )
    sizes = [1, 2, 4, len(rows)]
    ceiling = expected_accuracy([pool], "pass", sizes, seed=seed)
    best = expected_accuracy([pool], "best_of_n", sizes, seed=seed)
    assert (best <= ceiling + 1e-9).all()
    for method in ("majority", "weighted_vote"):
        found = expected_accuracy([pool], method, sizes, seed=seed, draws=60)
        assert all(
            above_by_chance(value, bound, 60) for value, bound in zip(found[0], ceiling[0], strict=True)
        )
        assert found[0, 0] == pytest.approx(ceiling[0, 0]), "with one sample all choose alike"
