"""Usual and unusual correct solutions, and twins with other numbers."""

from __future__ import annotations

import numpy as np
import pytest
from toy_scorers import audited, constant, exact, lab_material

from benchmarks.worlds.digits import parse_problem, worked_solution
from benchmarks.worlds.digits.world import check_steps
from surefoot.errors import ScoreError
from surefoot.evaluation.audits import TWINS, Case, audit_changes, audit_paths, effects_section, paths_section
from surefoot.evaluation.audits.cases import lab_cases
from surefoot.evaluation.audits.changes import _twin
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace

CASES = lab_material()
LEARNED = {case.item.trace.text for case in CASES}
MARBLES = Problem(text="Ann has 12 bags of 6 marbles and 30 loose ones. How many marbles?", answer="102")


def solved(problem: Problem, text: str) -> Case:
    trace = segment_trace(Trace(problem_id=problem.id, text=text, answer=problem.answer), Line())
    return Case(item=ProblemTrace(problem=problem, trace=trace), good=(True,) * len(trace.steps))


def memory(problem: Problem, trace: Trace) -> list[float]:
    """Knows the solutions that it was trained on."""
    return [1.0 if trace.text in LEARNED else 0.0] * len(trace.steps)


def dislikes_restatements(problem: Problem, trace: Trace) -> list[float]:
    return [0.2 if "Now" in (trace.text or "") else 0.9] * len(trace.steps)


def test_a_memory_fails_on_twins_and_a_checker_passes() -> None:
    found = audit_changes(audited(memory), CASES, TWINS, draws=100)
    assert [(effect.moved.value, effect.verdict) for effect in found.effects] == [
        (-1.0, "fails"),
        (0.0, "fails"),
    ]
    passed = audit_changes(audited(exact), CASES, TWINS, draws=100)
    assert [effect.verdict for effect in passed.effects] == ["passes", "passes"]
    falls, moves = effects_section("twins", [found]).verdicts["memory"]
    assert (falls.tone, moves.tone) == ("wrong", "wrong")


def test_a_twin_of_the_lab_is_correct_and_has_another_answer() -> None:
    case = next(case for case in CASES if case.right)
    twin = _twin(case, CASES, np.random.default_rng(0))
    assert twin is not None
    assert twin.item.problem.answer != case.item.problem.answer
    assert all(verdict.value == 1 for verdict in check_steps(twin.item.problem, twin.item.trace))


def test_equations_are_computed_again() -> None:
    case = solved(MARBLES, "12 * 6 = 72\n72 + 30 = 102\nThe answer is 102.\n")
    twins = [_twin(case, [], np.random.default_rng(seed)) for seed in range(8)]
    texts = {(twin.item.problem.text, twin.item.trace.text) for twin in twins if twin is not None}
    assert (
        "Ann has 12 bags of 6 marbles and 60 loose ones. How many marbles?",
        "12 * 6 = 72\n72 + 60 = 132\nThe answer is 132.\n",
    ) in texts
    assert all(twin is not None and twin.item.problem.answer == twin.item.trace.answer for twin in twins)


@pytest.mark.parametrize(
    "text",
    [
        "12 * 6 = 73\n73 + 30 = 103\nThe answer is 102.\n",  # an equation that does not hold
        "In all there are 102.\n",  # nothing to compute
        "12 * 6 = 72\n72 + 30 = 102\n102 - 90 = 12\nThe answer is 102.\n",  # 12 would have two meanings
    ],
)
def test_no_twin_without_a_truth(text: str) -> None:
    case = solved(MARBLES, text)
    twins = [_twin(case, [], np.random.default_rng(seed)) for seed in range(4)]
    for twin in twins:  # of the last case, only the number that does not touch 12 may change
        assert twin is None or "12 bags" in twin.item.problem.text


def many_ways() -> list[Case]:
    rng = np.random.default_rng(0)
    problems = list({case.problem_id: case.item.problem for case in CASES}.values())
    return lab_cases(
        [
            ProblemTrace(
                problem=problem,
                trace=segment_trace(Trace(problem_id=problem.id, text=text, sample=number), Line()),
            )
            for problem in problems
            for chain in [parse_problem(problem.text)]
            for number, text in enumerate(
                [worked_solution(chain), *(worked_solution(chain, rng=rng, restate=0.5) for _ in range(3))]
            )
        ]
    )


def test_a_scorer_that_dislikes_detours_prefers_usual_paths() -> None:
    cases = many_ways()
    found = audit_paths(audited(dislikes_restatements), cases, draws=100)
    still = audit_paths(audited(constant), cases, draws=100)
    assert still.preference.value == 0.0
    assert still.steps.value == found.steps.value != 0.0
    assert found.preference.value != 0.0
    assert found.solutions >= 3 * found.problems
    [verdict] = paths_section([found]).verdicts["dislikes_restatements"]
    assert "unusual" in verdict.claim


def test_too_few_correct_solutions_are_an_error() -> None:
    with pytest.raises(ScoreError, match="3 different correct solutions"):
        audit_paths(audited(constant), CASES)
