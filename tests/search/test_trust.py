"""What a checkpoint says of itself: AUC beside its baselines, a threshold, and best-of-N against votes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Step, StepLabel, StepScores, Trace
from surefoot.search.trust import balanced_threshold, false_accepts, score_held_out, training_rows, trust_of


class Reads:
    """The score of a step is the digit that it ends with, in tenths."""

    name = "reads"

    def score_traces(self, items):
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer=self.name,
                scores=[int(item.trace.step_text(k)[-1]) / 10 for k in range(len(item.trace.steps))],
            )
            for item in items
        ]


def item(problem: int, sample: int, digits: str, good: str, answer: str) -> LabelledTrace:
    """A trace with a step for each digit, which is good where ``good`` has a plus."""
    task = Problem(text=f"problem {problem}", answer="1")
    text = "".join(f"x{digit}" for digit in digits)
    steps = tuple(Step(start=2 * k, end=2 * k + 2) for k in range(len(digits)))
    trace = Trace(
        problem_id=task.id, text=text, sample=sample, steps=steps, answer=answer, outcome=answer == "1"
    )
    labels = tuple(
        StepLabel(
            trace_id=trace.id, step=k, kind="correctness", value=1.0 if sign == "+" else -1.0, source="t"
        )
        for k, sign in enumerate(good)
    )
    return LabelledTrace(problem=task, trace=trace, labels=labels)


def test_a_good_scorer_and_its_baselines():
    items = [
        item(p, s, "98" if s else f"8{p % 4}", "++" if s else "+-", "1" if s else "2")
        for p in range(10)
        for s in (0, 1)
    ]
    trust = trust_of(score_held_out(Reads(), items))
    assert trust.problems == 10
    assert trust.steps == 40
    assert trust.auc == pytest.approx((1, 1, 1))
    assert trust.rival_auc >= 20 / 30 + 10 / 30 / 2, "position alone"
    assert trust.threshold == pytest.approx(0.55)
    assert (trust.best_of_n, trust.majority, trust.choices) == (1.0, 0.0, 10)
    assert f"more than the {trust.rival_auc:.2f} of {trust.rival} alone" in str(trust)
    assert "solves 100%, better than majority voting with 0%" in str(trust)


def test_a_scorer_that_votes_beat_says_so():
    pool = [("9", "2"), ("1", "1"), ("1", "1")]
    items = [
        item(p, s, digit, "+" if answer == "1" else "-", answer)
        for p in range(30)
        for s, (digit, answer) in enumerate(pool)
    ]
    trust = trust_of(score_held_out(Reads(), items))
    assert trust.auc[0] == 0
    assert (trust.best_of_n, trust.majority, trust.lead) == (0.0, 1.0, (-1.0, -1.0, -1.0))
    assert "less than" in str(trust)
    assert "worse than majority voting with 100%" in str(trust)


def test_outcomes_count_where_nothing_is_labelled_and_one_class_says_nothing():
    items = [item(p, 0, "19" if p % 2 else "91", "", str(p % 2)) for p in range(10)]
    trust = trust_of(score_held_out(Reads(), items))
    assert (trust.steps, trust.auc[0], trust.lead) == (10, 1.0, None)
    assert "was not measured" in str(trust)
    assert trust_of(score_held_out(Reads(), items[1::2])) is None


SCORES = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=12)


@given(SCORES.filter(lambda rows: len({good for _, good in rows}) == 2))
def test_no_threshold_separates_better(rows):
    scores, good = np.array([s for s, _ in rows], dtype=float), np.array([g for _, g in rows])

    def balanced(cut):
        return (scores[good] >= cut).mean() + (scores[~good] < cut).mean()

    chosen = balanced(balanced_threshold(scores, good))
    assert chosen >= max(balanced(cut) for cut in (*scores, *(scores + 0.5))) - 1e-12 or chosen >= 1


@given(
    solutions=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.sampled_from("+-")), min_size=1, max_size=4),
        min_size=1,
        max_size=12,
    ),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 0.9]),
    how=st.sampled_from(["min", "last"]),
)
def test_false_accepts_are_the_wrong_solutions_that_reach_the_threshold(solutions, threshold, how):
    items = [
        item(p, 0, "".join(str(digit) for digit, _ in steps), "".join(sign for _, sign in steps), "1")
        for p, steps in enumerate(solutions)
    ]
    with pytest.MonkeyPatch.context() as patch:  # fitting rivals takes nearly all the time, and none is read
        patch.setattr("surefoot.search.trust.rival_scores", lambda facts, *_: np.zeros((1, len(facts))))
        share = false_accepts(score_held_out(Reads(), items).steps, threshold, how)
    wrong = [[digit / 10 for digit, _ in steps] for steps in solutions if "-" in {sign for _, sign in steps}]
    if not wrong:
        assert share is None
        return
    accepted = [(min(scores) if how == "min" else scores[-1]) >= threshold for scores in wrong]
    assert share.value == sum(accepted) / len(wrong)
    assert share.low <= share.value <= share.high


def test_rivals_get_a_bounded_sample_of_the_training_steps_and_all_of_few():
    items = [item(p, 0, "98", "+-", "1") for p in range(50)]
    everything = training_rows(iter(items))
    assert [good for _, good in everything] == [True, False] * 50
    some = training_rows(iter(items), most=20)
    assert len(some) == 20
    assert {fact.prefix for fact, _ in some} < {fact.prefix for fact, _ in everything}
    late = sum(fact.prefix in {other.prefix for other, _ in everything[50:]} for fact, _ in some)
    assert 4 <= late <= 16, "the first ones have no better chance"
