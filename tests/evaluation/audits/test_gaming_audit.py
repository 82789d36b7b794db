"""Each toy scorer fails the tests that it should, and no others."""

from __future__ import annotations

import math

import pytest
from toy_scorers import audited, constant, exact, lab_material, length, outcome

from benchmarks.worlds.digits.audits import digits_right
from surefoot.errors import ScoreError
from surefoot.evaluation.audits import EDIT_CHANGES, Case, audit_changes
from surefoot.evaluation.audits.perturbations import judge
from surefoot.protocols import ProblemTrace
from surefoot.records import Message
from surefoot.stats.intervals import UNKNOWN, Interval

CASES = lab_material()


def audit(rule, how="min", **more):
    return audit_changes(audited(rule, how), CASES, EDIT_CHANGES, truth=digits_right, draws=200, **more)


def effect(found, edit, on="right"):
    return next(e for e in found.effects if (e.change, e.on) == (edit, on))


def test_an_exact_checker_passes_everything():
    found = audit(exact)
    assert {e.verdict for e in found.effects} == {"passes"}
    for e in found.effects:
        if e.must == "fall":
            assert (e.fell.value, e.moved.value) == (1.0, -1.0)
        else:
            assert (e.fell.value, e.rose.value, e.moved.value) == (0.0, 0.0, 0.0)


def test_a_constant_passes_style_and_fails_all_of_logic():
    found = audit(constant)
    assert all((e.verdict == "passes") == (e.must == "stay") for e in found.effects)
    assert all(e.moved.value == e.step.value == e.fell.value == 0 for e in found.effects)


def test_a_lover_of_length_likes_filler_and_does_not_see_numbers():
    found = audit(length, "last")
    assert effect(found, "swapped number").fell.value == 0
    assert effect(found, "swapped number").verdict == "fails"
    assert effect(found, "deleted premise").verdict == "passes"  # for being shorter
    for name in ("instruction", "confident tone", "repetition"):
        for on in ("right", "wrong"):
            assert effect(found, name, on).moved.low > 0.05
            assert effect(found, name, on).verdict == "fails"
    assert effect(found, "merged steps").verdict == effect(found, "split step").verdict == "passes"


def test_a_scorer_of_outcomes_sees_no_broken_step_under_a_right_answer():
    found = audit(outcome, "last")
    for name in ("deleted premise", "reordered steps", "pasted answer"):
        assert effect(found, name).fell.value == 0
        assert effect(found, name).verdict == "fails"
    assert 0 < effect(found, "swapped number").fell.value < 0.5  # where the answer itself is swapped


def test_every_trace_is_accounted_for():
    wrong = sum(case.right is False for case in CASES)
    blank = Case(item=CASES[0].item, good=(None,) * len(CASES[0].good))
    messages = (Message(role="user", content="?"),)
    chat = CASES[0].item.trace.model_copy(update={"text": None, "messages": messages, "steps": ()})
    talk = Case(item=ProblemTrace(problem=CASES[0].item.problem, trace=chat), good=())
    found = audit_changes(audited(exact), [*CASES, blank, talk], EDIT_CHANGES, draws=50)
    assert (found.left_out, found.other) == (1, 1)
    for e in found.effects:
        of = len(CASES) - wrong if e.on == "right" else wrong
        assert e.traces + e.not_applicable + e.not_broken + e.unscored == of
    assert all(e.not_broken == 0 for e in found.effects)  # without a truth nothing is checked
    with pytest.raises(ScoreError, match="can be changed and scored"):
        audit_changes(audited(lambda problem, trace: [None] * len(trace.steps)), CASES, EDIT_CHANGES)


def test_edits_depend_on_the_seed_alone():
    one, two, other = audit(length, seed=1), audit(length, seed=1), audit(length, seed=2)
    assert one == two
    assert one.effects != other.effects
    fewer = audit_changes(audited(length), CASES[:2], EDIT_CHANGES, truth=digits_right, draws=200, seed=1)
    assert effect(fewer, "filler").traces == 1


def test_a_repeat_costs_nothing_and_stored_scores_cannot_be_audited():
    with pytest.raises(ScoreError, match="give a checkpoint"):
        audit_changes(audited(exact, stored=True), CASES, EDIT_CHANGES)
    unknown = [Case(item=c.item, good=(None,) * len(c.good)) for c in CASES]
    with pytest.raises(ScoreError, match="give labels"):
        audit_changes(audited(exact), unknown, EDIT_CHANGES)


@pytest.mark.parametrize(
    ("low", "high", "falls", "stays"),
    [
        (0.95, 1.0, "passes", "fails"),
        (0.2, 0.6, "fails", "fails"),
        (0.85, 0.95, "unclear", "fails"),
        (-0.01, 0.04, "fails", "passes"),
        (-0.2, 0.2, "fails", "unclear"),
        (-0.4, -0.1, "fails", "fails"),
    ],
)
def test_verdicts_rest_on_the_whole_interval(low, high, falls, stays):
    interval = Interval(value=(low + high) / 2, low=low, high=high)
    assert judge(interval, 0.9, math.inf) == falls
    assert judge(interval, -0.05, 0.05) == stays
    assert judge(interval, -math.inf, 0.05) == (stays if high > -0.05 else "passes")
    assert judge(UNKNOWN, -0.05, 0.05) == "unclear"
