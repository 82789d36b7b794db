"""The truth that audits take for gold, against the lab's own checker."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.worlds.digits.audits import digit_cases, digits_right
from benchmarks.worlds.digits.world import generate_problems, parse_problem, worked_solution
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace

PROBLEM = Problem(text="Start with 3. Subtract 8. Add 2.", answer="7")


def item(problem: Problem, text: str) -> ProblemTrace:
    return ProblemTrace(problem=problem, trace=segment_trace(Trace(problem_id=problem.id, text=text), Line()))


@pytest.mark.parametrize("slip", [0.0, 0.5, 1.0])
def test_the_truth_agrees_with_the_checker_also_where_slips_are_taken_back(slip):
    rng = np.random.default_rng(0)
    for problem in generate_problems(30, seed=3):
        text = worked_solution(parse_problem(problem.text), rng=rng, restate=0.3, slip=slip)
        found = item(problem, text)
        [case] = digit_cases([found])
        assert case.right
        assert digits_right(problem, found.trace)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("3 - 8 = 5\n5 + 2 = 7\nAnswer: 7\n", True),
        ("Surely 3 - 8 = 5\nStep ready.\n5 + 2 = 7\nAnswer: 7\n", True),
        ("3 - 8 = 8, no, 3 - 8 = 5\n5 + 2 = 7\nAnswer: 7\n", True),
        ("3 - 8 = 5, no, 3 - 8 = 8\n8 + 2 = 0\nAnswer: 0\n", False),
        ("3 - 8 = 5\n5 + 2 = 7\nAnswer: 71\n", False),
        ("3 - 8 = 5\n5 + 2 = 71\nAnswer: 7\n", False),
        ("3 - 8 = 5\n5 + 2 = 7\n", False),
    ],
)
def test_words_around_the_lines_do_not_count_and_longer_numbers_are_no_digits(text, right):
    assert digits_right(PROBLEM, item(PROBLEM, text).trace) == right
