"""Usual and unusual correct solutions, and twins with other numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from graph_reader import solve_by_reading
from toy_scorers import audited, constant, lab_material

from benchmarks.worlds.digits import parse_problem, worked_solution
from benchmarks.worlds.digits.audits import digit_cases
from surefoot.errors import ScoreError
from surefoot.evaluation.audits import TWINS, Case, audit_changes, audit_paths, effects_section, paths_section
from surefoot.evaluation.audits.changes import _twin
from surefoot.lab import Setting, check_steps, generate_problems, read_problem
from surefoot.lab import worked_solution as worked_solution_in_words
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace

CASES = lab_material()
MARBLES = Problem(text="Ann has 12 bags of 6 marbles and 30 loose ones. How many marbles?", answer="102")


def solved(problem: Problem, text: str) -> Case:
    trace = segment_trace(Trace(problem_id=problem.id, text=text, answer=problem.answer), Line())
    return Case(item=ProblemTrace(problem=problem, trace=trace), good=(True,) * len(trace.steps))


def in_bags(bags: int, each: int, loose: int) -> tuple[Problem, str]:
    text = f"Ann has {bags} bags of {each} marbles and {loose} loose ones. How many marbles?"
    inside, together = bags * each, bags * each + loose
    solution = f"{bags} * {each} = {inside}\n{inside} + {loose} = {together}\nThe answer is {together}.\n"
    return Problem(text=text, answer=str(together)), solution


BAGS = [solved(*in_bags(12 + number, 6, 30 + 5 * number)) for number in range(12)]
LEARNED = {case.item.trace.text for case in BAGS}


def memory(problem: Problem, trace: Trace) -> list[float]:
    """Knows the solutions that it was trained on."""
    return [1.0 if trace.text in LEARNED else 0.0] * len(trace.steps)


def recomputed(problem: Problem, trace: Trace) -> list[float]:
    """Reads the numbers of the problem."""
    _, solution = in_bags(*map(int, re.findall(r"\d+", problem.text)))
    return [1.0 if trace.text == solution else 0.0] * len(trace.steps)


def exact_in_the_lab(problem: Problem, trace: Trace) -> list[float]:
    """The checker, by the quantities in the problem's ``meta``."""
    return [float(truth.right) for truth in check_steps(problem, trace)]


def dislikes_restatements(problem: Problem, trace: Trace) -> list[float]:
    return [0.2 if "Now" in (trace.text or "") else 0.9] * len(trace.steps)


def test_a_memory_fails_on_twins_and_a_checker_passes() -> None:
    found = audit_changes(audited(memory), BAGS, TWINS, draws=100)
    assert [(effect.moved.value, effect.verdict) for effect in found.effects] == [
        (-1.0, "fails"),
        (0.0, "fails"),
    ]
    passed = audit_changes(audited(recomputed), BAGS, TWINS, draws=100)
    assert [effect.verdict for effect in passed.effects] == ["passes", "passes"]
    lab = [solved(each, worked_solution_in_words(each)) for each in generate_problems(60, seed=5)]
    checked = audit_changes(audited(exact_in_the_lab), lab, TWINS, draws=100)
    assert [(effect.moved.value, effect.verdict) for effect in checked.effects] == [
        (0.0, "passes"),
        (-1.0, "passes"),
    ]
    falls, moves = effects_section("twins", [found]).verdicts["memory"]
    assert (falls.tone, moves.tone) == ("wrong", "wrong")


@pytest.mark.parametrize("graphs", [0.0, 1.0])
def test_a_twin_of_the_lab_is_correct_and_has_another_answer(graphs: float) -> None:
    made = 0
    for problem in generate_problems(800, seed=11, setting=Setting(graphs=graphs)):
        case = solved(problem, worked_solution_in_words(problem))
        if (twin := _twin(case, [], np.random.default_rng(0))) is None:
            continue
        made += 1
        new, trace = twin.item.problem, twin.item.trace
        assert new.answer != problem.answer
        if graphs:
            assert solve_by_reading(new.text) == int(new.answer or 0)
            assert all(q.fact in new.text for q in read_problem(new)[0].values())
        assert (trace.text or "").endswith(f"Answer: {new.answer}.\n")
        assert all(truth.value == 1 for truth in check_steps(new, trace))
        assert not all(truth.right for truth in check_steps(new, case.item.trace))
        assert worked_solution_in_words(new) == trace.text
    assert made > 400


def test_a_twin_keeps_nothing_that_is_said_of_the_old_text() -> None:
    problem, text = in_bags(12, 6, 30)
    problem = problem.model_copy(update={"meta": {"choices": ["102", "90"], "level": 3}})
    twin = _twin(solved(problem, text), [], np.random.default_rng(0))
    assert twin is not None
    assert twin.item.problem.meta == {}


def test_a_problem_of_the_lab_that_cannot_be_computed_again_has_no_twin() -> None:
    for problem in generate_problems(20, seed=4):
        broken = problem.model_copy(update={"meta": {"lab": {"quantities": {}, "goal": "nothing"}}})
        case = solved(broken, worked_solution_in_words(problem))
        assert _twin(case, [], np.random.default_rng(0)) is None


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
    return digit_cases(
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
