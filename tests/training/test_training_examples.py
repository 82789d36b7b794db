from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.errors import TrainingError
from surefoot.labelling.advantage import advantage_labels
from surefoot.models.encoding import Encoding
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace
from surefoot.training.config import OutcomeTargets, StepTargets
from surefoot.training.examples import build_examples

PROBLEM = Problem(text="Start with 7. Add 3. Add 1.", answer="1")
TEXT = "7 + 3 = 0\n0 + 1 = 1\nAnswer: 1\n"
POSITIONS = (12, 18, 21)


def trace(text: str = TEXT, outcome: bool | None = True) -> Trace:
    return segment_trace(Trace(problem_id=PROBLEM.id, text=text, outcome=outcome), Line())


def labelled(*labels: tuple[int, str, float | None], **kind) -> LabelledTrace:
    made = trace(**kind)
    rows = tuple(
        StepLabel(
            trace_id=made.id,
            step=step,
            kind=kind,
            value=value,
            reason=None if value is not None else "unknown",
            source="test",
        )
        for step, kind, value in labels
    )
    return LabelledTrace(problem=PROBLEM, trace=made, labels=rows)


def build(items, targets=None, **encoding):
    return build_examples(build_tokenizer(), Encoding(**encoding), items, targets or StepTargets())


def targets_of(item: LabelledTrace, targets) -> dict[int, float]:
    [example] = build([item], targets).examples
    return {POSITIONS.index(at): value for at, value in zip(example.positions, example.targets, strict=True)}


CORRECTNESS = labelled((0, "correctness", 1), (1, "correctness", 0), (2, "correctness", -1))
VALUES = labelled((0, "value", 0.75), (1, "value", 0.0), (2, "value", 0.25))


@pytest.mark.parametrize(
    ("item", "targets", "expected"),
    [
        (CORRECTNESS, StepTargets(), {0: 1.0, 1: 1.0, 2: 0.0}),
        (CORRECTNESS, StepTargets(neutral="bad"), {0: 1.0, 1: 0.0, 2: 0.0}),
        (CORRECTNESS, StepTargets(neutral="drop"), {0: 1.0, 2: 0.0}),
        (VALUES, StepTargets(), {0: 0.75, 1: 0.0, 2: 0.25}),
        (VALUES, StepTargets(hard=True), {0: 1.0, 1: 0.0, 2: 1.0}),
        (VALUES, StepTargets(up_to_first_error=True), {0: 0.75, 1: 0.0}),
        (CORRECTNESS, StepTargets(up_to_first_error=True), {0: 1.0, 1: 1.0, 2: 0.0}),
        (CORRECTNESS, OutcomeTargets(at="last"), {2: 1.0}),
        (CORRECTNESS, OutcomeTargets(), {0: 1.0, 1: 1.0, 2: 1.0}),
        (labelled(outcome=False), OutcomeTargets(at="last"), {2: 0.0}),
        (labelled((1, "value", 0.5)), StepTargets(), {1: 0.5}),
        (labelled((0, "value", None), (1, "value", 0.5)), StepTargets(), {1: 0.5}),
        (labelled((0, "correctness", 1), (0, "correctness", -1)), StepTargets(), {0: 0.5}),
        (labelled((0, "value", 0.5), (0, "value", None), (0, "value", 1.0)), StepTargets(), {0: 0.75}),
        (labelled((0, "correctness", 0), (0, "correctness", -1)), StepTargets(neutral="drop"), {0: 0.0}),
    ],
)
def test_targets(item, targets, expected):
    assert targets_of(item, targets) == expected


def test_what_is_left_out_is_counted():
    empty = LabelledTrace(problem=PROBLEM, trace=trace(""), labels=())
    found = build([VALUES, labelled(), labelled((0, "value", None)), empty, labelled((9, "value", 1.0))])
    assert len(found.examples) == 1
    assert found.dropped == {
        "traces without steps": 1,
        "traces without a usable label": 3,
        "labels of steps that the trace does not have": 1,
    }


def test_a_complete_set_drops_nothing():
    assert build([VALUES]).dropped == {}


def test_labelled_steps_beyond_the_context_are_counted():
    found = build([VALUES], max_length=15)
    assert found.examples[0].positions == (12,)
    assert found.dropped == {"labelled steps beyond the context": 2}


def test_traces_without_outcome_train_no_orm():
    unknown = labelled((0, "value", 1.0), outcome=None)
    found = build([unknown, CORRECTNESS], OutcomeTargets())
    assert [example.trace_id for example in found.examples] == [CORRECTNESS.trace.id]
    reason = "traces without an 'outcome', which sample and import find where problems have an answer"
    assert found.dropped == {reason: 1}
    with pytest.raises(TrainingError, match=f"nothing to train on: 1 {reason}"):
        build([unknown], OutcomeTargets())


def test_nothing_to_train_on_says_why():
    with pytest.raises(TrainingError, match="2 traces without a usable label"):
        build([labelled(), labelled((0, "value", None))])
    with pytest.raises(TrainingError, match="no traces given"):
        build([])


ADVANTAGES = labelled((0, "advantage", 0.5), (1, "advantage", 0.0), (2, "advantage", -1.0))


def test_an_advantage_is_trained_towards_half_of_one_plus_it():
    assert targets_of(ADVANTAGES, StepTargets()) == {0: 0.75, 1: 0.5, 2: 0.0}
    averaged = labelled((0, "advantage", 1.0), (0, "advantage", -0.5), (1, "advantage", None))
    assert targets_of(averaged, StepTargets()) == {0: 0.625}


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_targets_of_advantages_of_values_add_up_to_the_whole_change(values):
    """Closed form: the targets' 2 s - 1 are differences of values, so their sum is last less first."""
    start, *rest = values
    item = labelled(*((step, "value", value) for step, value in enumerate(rest)))
    [labels] = advantage_labels([item], start={PROBLEM.id: start})
    found = targets_of(replace(item, labels=tuple(labels)), StepTargets())
    assert sum(2 * target - 1 for target in found.values()) == pytest.approx(rest[-1] - start, abs=1e-12)


@pytest.mark.parametrize("other", ["value", "correctness"])
def test_advantages_are_not_mixed_with_other_labels(other):
    within = labelled((0, "advantage", 0.5), (1, other, 1.0))
    for items in ([within], [ADVANTAGES, labelled((0, other, 1.0))]):
        with pytest.raises(TrainingError, match=f"advantage labels are mixed with {other} labels"):
            build(items)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hard": True}, "'hard' is for value labels"),
        ({"up_to_first_error": True}, "'up_to_first_error' is for"),
        ({"neutral": "class"}, "three classes"),
    ],
)
def test_what_is_not_for_advantages_is_refused(settings, says):
    with pytest.raises(TrainingError, match=says):
        build([ADVANTAGES], StepTargets(**settings))


def test_outcomes_do_not_look_at_labels():
    assert targets_of(ADVANTAGES, OutcomeTargets(at="last")) == {2: 1.0}
