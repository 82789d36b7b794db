"""Targets of three classes, the cut at the first error, and who is named where something is left out."""

from __future__ import annotations

import pytest

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.errors import TrainingError
from surefoot.models.encoding import Encoding
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace
from surefoot.training.config import StepTargets
from surefoot.training.examples import build_examples

PROBLEM = Problem(text="Start with 7. Add 3. Add 1.", answer="1")


def rated(*ratings: float, again: dict[int, float] | None = None) -> LabelledTrace:
    text = "".join(f"{step} + 1 = {step + 1}\n" for step in range(len(ratings)))
    trace = segment_trace(Trace(problem_id=PROBLEM.id, text=text), Line())
    labels = tuple(
        StepLabel(trace_id=trace.id, step=step, kind="correctness", value=value, source="test")
        for step, value in [*enumerate(ratings), *(again or {}).items()]
    )
    return LabelledTrace(problem=PROBLEM, trace=trace, labels=labels)


def build(items, **settings):
    return build_examples(build_tokenizer(), Encoding(), items, StepTargets(**settings))


def test_an_error_at_step_three_of_six_leaves_three_targets():
    item = rated(1, 1, -1, 1, -1, 1)
    assert build([item], up_to_first_error=True).examples[0].targets == (1.0, 1.0, 0.0)
    assert build([item]).examples[0].targets == (1.0, 1.0, 0.0, 1.0, 0.0, 1.0)


def test_a_neutral_step_is_a_class_of_its_own():
    assert build([rated(1, 0, -1)], neutral="class").examples[0].targets == (1.0, 0.5, 0.0)


def test_ratings_that_disagree_are_no_neutral_step():
    item = rated(1, 1, 1, again={1: -1.0, 2: 1.0})
    found = build([item], neutral="class")
    assert found.examples[0].targets == (1.0, 1.0)
    assert found.dropped == {"steps whose ratings disagree": 1}
    assert found.first == {"steps whose ratings disagree": item.trace.id}


def test_what_is_left_out_is_named():
    good, bare = rated(1, 1), LabelledTrace(problem=PROBLEM, trace=rated(1, 1, 1).trace, labels=())
    assert build([good, bare]).first == {"traces without a usable label": bare.trace.id}
    with pytest.raises(TrainingError, match=f"first: {bare.trace.id}"):
        build([bare])
