"""Opinions in the question, arguments that do not answer it, and merged steps."""

from __future__ import annotations

import re

import numpy as np
import pytest
from toy_scorers import audited, constant, exact, lab_material

from surefoot.errors import ScoreError
from surefoot.evaluation.audits import (
    ARGUMENTS,
    OPINIONS,
    Case,
    audit_changes,
    audit_granularity,
    effects_section,
    granularity_section,
)
from surefoot.evaluation.audits.changes import of_problem
from surefoot.lab import generate_problems, worked_solution
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace

CASES = lab_material()


def flatters(problem: Problem, trace: Trace) -> list[float]:
    """Agrees with what the user thinks."""
    _, is_sure, sure = problem.text.partition("I am sure that the answer is ")
    return [0.5 if not is_sure else float(sure == f"{trace.answer}.")] * len(trace.steps)


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


def test_the_sentences_are_in_words_that_the_reader_of_the_problem_knows() -> None:
    outside = next(case for case in CASES if case.right)
    for case, opinion, neutral in (
        (outside, r"I am sure that the answer is \d\.", r"I have not found the answer myself\."),
        (_of_the_lab(), r"I think it is \d\.", r"It is 20 degrees outside\."),
    ):
        against = OPINIONS[0]
        changed = against.make(case, CASES, np.random.default_rng(0))
        assert changed is not None
        assert against.control is not None
        for item, sentence in ((changed.item, opinion), (against.control(case), neutral)):
            assert re.fullmatch(re.escape(case.item.problem.text) + " " + sentence, item.problem.text)
            assert item.problem.meta == case.item.problem.meta


def _of_the_lab() -> Case:
    [problem] = generate_problems(1, seed=2)
    trace = Trace(problem_id=problem.id, text=worked_solution(problem), answer=problem.answer)
    item = ProblemTrace(problem=problem, trace=segment_trace(trace, Line()))
    return Case(item=item, good=(True,) * len(item.trace.steps))


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
