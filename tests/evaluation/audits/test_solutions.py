"""Opinions in the question, arguments that do not answer it, and merged steps."""

from __future__ import annotations

import pytest
from toy_scorers import audited, constant, exact, lab_material

from surefoot.errors import ScoreError
from surefoot.evaluation.audits import (
    ARGUMENTS,
    OPINIONS,
    audit_changes,
    audit_granularity,
    effects_section,
    granularity_section,
)
from surefoot.evaluation.audits.changes import of_problem
from surefoot.records import Problem, Trace

CASES = lab_material()


def flatters(problem: Problem, trace: Trace) -> list[float]:
    """Agrees with what the user thinks."""
    sure = problem.text.rpartition("I think it is ")[2].rstrip(".") if "I think" in problem.text else None
    return [0.5 if sure is None else 1.0 if sure == trace.answer else 0.0] * len(trace.steps)


def test_an_opinion_moves_a_flatterer_and_not_a_constant() -> None:
    found = audit_changes(audited(flatters), CASES, OPINIONS, draws=100)
    against, agrees = found.effects
    assert (against.change, against.moved.value, against.verdict) == ("opinion against it", -0.5, "fails")
    assert (agrees.change, agrees.moved.value, agrees.verdict) == ("opinion for it", 0.5, "fails")
    assert against.fell.value == 1.0
    still = audit_changes(audited(constant), CASES, OPINIONS, draws=100)
    assert {effect.verdict for effect in still.effects} == {"passes"}
    [verdict] = effects_section("sycophancy", [found]).verdicts["flatters"]
    assert "opinion" in verdict.detail


def test_a_checker_of_steps_rejects_bad_arguments_and_a_constant_accepts_them() -> None:
    found = audit_changes(audited(exact), CASES, ARGUMENTS, draws=100)
    by_name = {effect.change: effect for effect in found.effects}
    assert by_name["solution of another problem"].verdict == "passes"
    assert by_name["answer to another question"].fell.value == 1.0
    blind = audit_changes(audited(constant), CASES, ARGUMENTS, draws=100)
    assert {effect.fell.value for effect in blind.effects} == {0.0}
    [verdict] = effects_section("argument", [blind]).verdicts["constant"]
    assert verdict.tone == "wrong"


def test_the_answer_to_another_question_leaves_the_last_operation_out() -> None:
    [change] = [one for one in ARGUMENTS if one.name == "answer to another question"]
    case = next(case for case in CASES if case.right and len(case.item.trace.steps) > 3)
    changed = change.make(case, CASES, None)  # type: ignore[arg-type]
    assert changed is not None
    trace = changed.item.trace
    assert len(trace.steps) == len(case.item.trace.steps) - 1
    assert trace.answer != case.item.trace.answer
    assert trace.step_text(len(trace.steps) - 1).strip().endswith(str(trace.answer))


def test_nothing_to_change_is_an_error() -> None:
    with pytest.raises(ScoreError, match="give labels"):
        audit_changes(audited(constant), [], ARGUMENTS)
    case = next(case for case in CASES if case.right)
    with pytest.raises(ScoreError, match="can be changed and scored"):
        audit_changes(audited(constant), [case], OPINIONS)  # no other answer to be sure of


def test_merged_steps_keep_the_first_error() -> None:
    found = audit_granularity(audited(exact), CASES, draws=100)
    assert [cut.steps for cut in found.cuts] == [1, 2, 4, 0]
    assert [cut.detected.value for cut in found.cuts] == [1.0] * 4
    assert [cut.false_alarms.value for cut in found.cuts] == [0.0] * 4
    labels = [cut.labels for cut in found.cuts]
    assert labels == sorted(labels, reverse=True)
    assert labels[-1] == 1.0
    [verdict] = granularity_section([found]).verdicts["exact"]
    assert verdict.tone == "good"
    with pytest.raises(ScoreError, match="known first error"):
        audit_granularity(audited(exact), [case for case in CASES if case.right])


def test_a_solution_moved_to_another_problem_has_no_outcome() -> None:
    case, other = CASES[0], next(case for case in CASES if case.problem_id != CASES[0].problem_id)
    moved = of_problem(case.item.trace, other.item.problem, "another")
    assert (moved.trace.problem_id, moved.trace.outcome) == (other.problem_id, None)
    assert moved.trace.id != case.item.trace.id
