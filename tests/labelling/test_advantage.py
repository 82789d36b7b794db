import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import LabelError
from surefoot.labelling.advantage import advantage_labels, start_values
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, Problem, Step, StepLabel, Trace
from surefoot.scores import best_of_k

PROBLEM = Problem(text="p", answer="1")

rates = st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=8)


def labelled(values, *, outcome=None, trials=None, kind="value") -> LabelledTrace:
    """A trace of one-character steps with value labels; ``None`` = an unknown value."""
    trace = Trace(
        problem_id=PROBLEM.id,
        text="x" * len(values),
        steps=tuple(Step(start=at, end=at + 1) for at in range(len(values))),
        outcome=outcome,
    )
    labels = tuple(
        StepLabel(
            trace_id=trace.id,
            step=step,
            kind=kind,
            value=value,
            reason="server gone" if value is None else None,
            source="mc",
            evidence=Evidence(
                successes=None if trials is None or value is None else round(value * trials), trials=trials
            ),
        )
        for step, value in enumerate(values)
    )
    return LabelledTrace(problem=PROBLEM, trace=trace, labels=labels)


def advantages(values, start, best_of=1):
    [labels] = advantage_labels([labelled(values)], start={PROBLEM.id: start}, best_of=best_of)
    return [label.value for label in labels]


@given(rates, st.floats(0, 1), st.integers(1, 40))
def test_advantages_telescope_to_the_outcome_less_the_start(values, start, best_of):
    found = advantages(values, start, best_of)
    whole = best_of_k(values[-1], best_of) - best_of_k(start, best_of)
    assert math.fsum(found) == pytest.approx(whole, abs=1e-9)
    assert all(-1 <= value <= 1 for value in found)


def test_the_paper_s_numbers():
    assert advantages([0.2], 0.1) == [pytest.approx(0.1)]
    assert (best_of_k(0.1, 4), best_of_k(0.2, 4)) == (pytest.approx(0.3439), pytest.approx(0.5904))
    assert advantages([0.2], 0.1, best_of=4) == [pytest.approx(0.2465)]
    assert advantages([0.2], 0.1, best_of=32) == [pytest.approx(0.0335, abs=5e-5)]


@given(st.floats(0, 1))
def test_the_best_of_one_is_the_policy_itself(value):
    assert best_of_k(value, 1) == pytest.approx(value, abs=1e-15)
    assert best_of_k(value, 3) >= value - 1e-15


def test_no_sample_at_all_is_refused():
    with pytest.raises(ValueError, match="best_of"):
        best_of_k(0.5, 0)


def test_a_missing_value_leaves_two_steps_unknown_and_says_why():
    [labels] = advantage_labels([labelled([0.5, None, 0.25, 0.0])], start={PROBLEM.id: 0.75})
    assert [label.value for label in labels] == [-0.25, None, None, -0.25]
    assert labels[1].reason == "no value after the step: server gone"
    assert labels[2].reason == "no value before the step"
    assert {label.kind for label in labels} == {"advantage"}


def test_without_the_problem_s_own_rate_the_first_step_is_unknown():
    [labels] = advantage_labels([labelled([0.5, 1.0])], start={})
    assert [label.value for label in labels] == [None, 0.5]
    assert "start" in labels[0].reason


def test_steps_without_a_label_are_unknown():
    item = labelled([0.5, 0.5])
    bare = LabelledTrace(problem=item.problem, trace=item.trace, labels=())
    [labels] = advantage_labels([bare], start={PROBLEM.id: 0.5})
    assert [(label.step, label.value) for label in labels] == [(0, None), (1, None)]


def test_labels_of_other_kinds_are_passed_over():
    [labels] = advantage_labels([labelled([1.0], kind="correctness")], start={PROBLEM.id: 0.5})
    assert labels[0].value is None


def test_evidence_source_and_cost():
    [labels] = advantage_labels([labelled([0.25], trials=8)], start={PROBLEM.id: 0.5}, best_of=4)
    [label] = labels
    assert label.source == "best-of-4-advantage of mc"
    assert (label.evidence.successes, label.evidence.trials) == (2, 8)
    assert label.evidence.message == "value 0.25 after, 0.5 before"
    assert label.evidence.usage.tokens == 0


def test_thresholded_values_are_refused():
    item = labelled([0.25], trials=8)
    hard = item.labels[0].model_copy(update={"value": 1.0})
    with pytest.raises(LabelError, match="soft"):
        advantage_labels(
            [LabelledTrace(problem=PROBLEM, trace=item.trace, labels=(hard,))], start={PROBLEM.id: 0.5}
        )


def test_two_values_of_one_step_are_refused():
    item = labelled([0.25])
    with pytest.raises(LabelError, match="two value labels"):
        advantage_labels([LabelledTrace(problem=PROBLEM, trace=item.trace, labels=item.labels * 2)], start={})


def test_a_start_that_is_no_rate_is_refused():
    with pytest.raises(LabelError, match="start"):
        advantages([0.5], 1.5)


def test_start_values_are_success_rates_of_judged_traces():
    traces = [
        Trace(problem_id=problem, text="x", sample=number, outcome=outcome)
        for number, (problem, outcome) in enumerate([("a", True), ("a", False), ("a", None), ("b", None)])
    ]
    assert start_values(traces) == {"a": 0.5}
