"""Collapse to the outcome is found in the scorer that waits for the answer, and not in the one that reads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from toy_scorers import audited, constant, exact, lab_material, outcome

from surefoot.errors import ScoreError
from surefoot.evaluation.audits import Case, audit_outcome

CASES = lab_material(60)
LUCKY = [case for case in CASES if case.outcome and case.right is False]


def audit(rule, how="min", **more):
    return audit_outcome(audited(rule, how, **more), CASES, draws=200)


def test_the_material_has_lucky_traces():
    assert len(LUCKY) >= 5
    assert {case.right for case in CASES} == {True, False}


def test_a_scorer_of_outcomes_is_caught():
    found = audit(outcome)
    assert found.lowest_last["wrong answer"].share.value == 1
    assert found.lowest_last["right answer"].share.value == 0
    assert found.around_error["right answer"].traces == len(LUCKY)
    for group in found.around_error.values():
        assert group.by_offset[0].value in (0.5, pytest.approx(group.by_offset[-1].value))
    last, shuffled = found.controls["last step only"], found.controls["shuffled steps"]
    assert found.controls["whole"].auc.value == last.auc.value == shuffled.auc.value == 1
    assert last.correlation.value == shuffled.with_whole.value == pytest.approx(1)


def test_a_scorer_of_steps_is_cleared():
    found = audit(exact)
    for group in found.around_error.values():
        assert group.drop.value == 1
        assert (group.by_offset[-1].value, group.by_offset[0].value, group.by_offset[1].value) == (1, 0, 0)
    # it calls lucky traces wrong, so it tells outcomes less well than an outcome model
    assert 0.5 < found.controls["whole"].auc.value < 1
    # an answer without steps is wrong, whatever it says
    assert found.controls["last step only"].auc.value == 0.5
    assert math.isnan(found.controls["last step only"].correlation.value)
    assert found.controls["shuffled steps"].auc.value < 0.6


def test_a_constant_has_its_lowest_step_last_as_often_as_chance():
    found = audit(constant)
    for group in found.lowest_last.values():
        assert group.share.value == pytest.approx(group.chance)
        assert 0.1 < group.chance < 0.3
    assert found.controls["whole"].auc.value == 0.5
    assert found.around_error["right answer"].drop.value == 0


def test_drops_need_a_step_before_and_all_is_counted():
    found = audit(exact)
    for name, wanted in (("right answer", True), ("wrong answer", False)):
        errors = [c.first_error for c in CASES if c.right is False and c.outcome is wanted]
        assert found.around_error[name].traces == len(errors)
        assert found.around_error[name].with_drop == sum(error > 0 for error in errors)
    blind = Case(item=CASES[0].item, good=())
    item = blind.item.trace.model_copy(update={"outcome": None})
    unjudged = Case(item=type(blind.item)(problem=blind.item.problem, trace=item), good=())
    assert audit_outcome(audited(exact), [*CASES, unjudged], draws=20).no_outcome == 1
    with pytest.raises(ScoreError, match="has an 'outcome'"):
        audit_outcome(audited(exact), [unjudged])


def test_stored_scores_serve_for_all_but_the_altered_texts():
    found = audit(exact, stored=True)
    assert list(found.controls) == ["whole"]
    assert found.without_controls.startswith("stored scores")
    assert audit(exact).without_controls is None
    assert found.around_error == audit(exact).around_error


def test_partial_scores_are_unscored_unless_asked_for():
    def until_error(problem, trace):
        scores = exact(problem, trace)
        end = scores.index(0.0) + 1 if 0.0 in scores else len(scores)
        return [*scores[:end], *[None] * (len(scores) - end)]

    left_out, partial = audit(until_error), audit(until_error, partial=True)
    cut = sum(c.right is False and c.first_error < len(c.good) - 1 for c in CASES)
    assert (left_out.unscored, partial.unscored) == (cut, 0)
    assert partial.controls["whole"].auc == audit(exact).controls["whole"].auc
    assert np.isnan(left_out.around_error["wrong answer"].by_offset[1].value)


def test_controls_are_over_the_same_traces():
    short = _first_step(CASES[0])
    cases = [*CASES, short]
    found = audit_outcome(audited(exact), cases, draws=20)
    assert {control.traces for control in found.controls.values()} == {len(CASES)}
    assert (found.not_in_controls, found.unscored) == (1, 0)
    assert found.controls == audit_outcome(audited(exact), CASES, draws=20).controls
    # stored scores have no altered texts, so the short one counts
    stored = audit_outcome(audited(exact, stored=True), cases, draws=20)
    assert (stored.controls["whole"].traces, stored.not_in_controls) == (len(cases), 0)
    alone = audit_outcome(audited(exact), [short], draws=20)
    assert (list(alone.controls), alone.without_controls) == (
        ["whole"],
        "no trace is a text of two steps or more",
    )

    def no_score_of_one_line(problem, trace):
        return [None] if len(trace.steps) == 1 and trace.id != short.item.trace.id else exact(problem, trace)

    blind = audit_outcome(audited(no_score_of_one_line), cases, draws=20)
    assert {control.traces for control in blind.controls.values()} == {0}
    assert blind.not_in_controls == len(cases)


def _first_step(case: Case) -> Case:
    trace = case.item.trace
    step = trace.steps[0]
    cut = trace.model_copy(update={"id": "short", "text": trace.text[: step.end], "steps": (step,)})
    return Case(item=type(case.item)(problem=case.item.problem, trace=cut), good=case.good[:1])
