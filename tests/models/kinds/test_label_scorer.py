"""A labeller's labels as scores."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.worlds.digits.world import ExactLabeller
from surefoot.errors import ScoreError
from surefoot.models.kinds.derived import LabelScorer
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import Evidence, Problem, Step, StepLabel, Trace, Usage

ITEM = ProblemTrace(
    problem=Problem(text="Start with 7. Add 3. Multiply by 4.", answer="0"),
    trace=Trace(
        problem_id="p",
        text="7 + 3 = 0\n0 * 4 = 4\nAnswer: 4\n",
        steps=(Step(start=0, end=10), Step(start=10, end=20), Step(start=20, end=30)),
    ),
)


class Given:
    """A labeller that gives these labels."""

    def __init__(self, *labels: StepLabel) -> None:
        self.labels = list(labels)

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        return [self.labels for _ in items]


def label(step: int, kind, value, **more) -> StepLabel:
    return StepLabel(trace_id="t", step=step, kind=kind, value=value, source="s", **more)


def scores(scorer) -> tuple[float | None, ...]:
    [record] = scorer.score_traces([ITEM])
    return record.scores


def test_exact_labels_are_scores():
    scorer = LabelScorer(ExactLabeller(after_error="wrong"), name="exact")
    assert isinstance(scorer, StepScorer)
    assert scores(scorer) == (1.0, 0.0, 0.0)


def test_what_each_kind_means():
    rated = Given(*(label(step, "correctness", value) for step, value in enumerate((1, 0, -1))))
    assert scores(LabelScorer(rated, name="s")) == (1.0, 1.0, 0.0)
    assert scores(LabelScorer(rated, name="s", neutral=0.25)) == (1.0, 0.25, 0.0)
    helped = Given(*(label(step, "advantage", value) for step, value in enumerate((1, 0, -0.5))))
    assert scores(LabelScorer(helped, name="s", kind="advantage")) == (1.0, 0.5, 0.25)


def test_several_labels_are_averaged_and_other_kinds_passed_over():
    given = Given(
        *(label(step, "value", 0.5) for step in range(3)),
        label(1, "value", 1.0),
        label(0, "correctness", -1),
    )
    assert scores(LabelScorer(given, name="s", kind="value")) == (0.5, 0.75, 0.5)


def test_unknown_stays_unknown_and_costs_are_counted():
    spent = Evidence(usage=Usage(prompt_tokens=3, completion_tokens=4, calls=1))
    given = Given(
        label(0, "value", 0.5, evidence=spent), label(1, "value", None, reason="no rollout", evidence=spent)
    )
    [record] = LabelScorer(given, name="s", kind="value").score_traces([ITEM])
    assert record.scores == (0.5, None, None)
    assert record.unscored_reason == "no rollout"
    assert record.usage == Usage(verifier_tokens=14, verifier_written=8, calls=2)
    [record] = LabelScorer(Given(), name="s").score_traces([ITEM])
    assert "no label of kind 'correctness'" in (record.unscored_reason or "")


def test_a_neutral_outside_the_range_is_refused():
    with pytest.raises(ScoreError, match="neutral"):
        LabelScorer(Given(), name="s", neutral=2)
