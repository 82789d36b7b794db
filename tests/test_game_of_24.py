"""The example of a verifier: moves and answers by hand, reachability by brute force over all expressions."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.protocols import Labeller, ProblemTrace, StepVerifier
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace

ROOT = Path(__file__).parents[1]
DATA = ROOT / "../shared/data/bon"
sys.path.insert(0, str(ROOT / "examples"))
from game_of_24 import Game24Values, Game24Verifier, play, problem_numbers, reachable  # noqa: E402


def game(text, numbers="4 5 6 10"):
    problem = Problem(text=numbers)
    return ProblemTrace(problem=problem, trace=segment_trace(Trace(problem_id=problem.id, text=text), Line()))


def judged(text, numbers="4 5 6 10"):
    return [(step.verdict.value, step.value) for step in play(game(text, numbers))]


SOLVED = """Steps:
10 - 4 = 6 (left: 5 6 6)
5 * 6 = 30 (left: 6 30)
30 - 6 = 24 (left: 24)
Answer: (10 - 4) * 5 - 6 = 24"""


def test_a_right_game():
    assert judged(SOLVED) == [(None, None), (1, 1.0), (1, 1.0), (1, 1.0), (1, 1.0)]


def test_legal_moves_that_lose():
    assert judged("4 * 5 = 20 (left: 6 10 20)\n20 * 10 = 200 (left: 6 200)\n200 + 6 = 206 (left: 206)") == [
        (1, 1.0),
        (1, 0.0),
        (1, 0.0),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("10 - 4 = 7 (left: 5 6 7)", "10 - 4 is 6, not 7"),
        ("9 - 4 = 5 (left: 5 5 6)", "takes 9, but left are 4 5 6 10"),
        ("5 + 5 = 10 (left: 4 6 10)", "takes 5, but left are 4 5 6 10"),
        ("10 - 4 = 6 (left: 5 6)", "left are 5 6 6, not 5 6"),
        ("10 - 4 = 6 (left: 5 6 7)", "left are 5 6 6, not 5 6 7"),
        ("10 - 4 = 6 (left:)", "left are 5 6 6, not none"),
        ("10 / 0 = 6 (left: 5 6 6)", "cannot be evaluated"),
        ("Answer: (10 - 4) * 5 - 6 = 25", "does not say that it is 24"),
        ("Answer: (10 - 4) * 4 = 24", "uses 10 4 4, not each of 4 5 6 10 once"),
        ("Answer: (10 - 4) * 5 + 6 = 24", "that is 36, not 24"),
        ("Answer: 4^5 - 6 * 10 = 24", "only numbers and + - * / are allowed"),
        ("Answer: __import__('os') = 24", "cannot be evaluated"),
        ("Answer: 5 / (4 - 4) = 24", "cannot be evaluated"),
        ("Answer: 9^9^9^9 = 24", "only numbers and + - * / are allowed"),
        ("Answer:", "no expression"),
        ("Answer: There is no solution.", "gives up, but 4 5 6 10 can make 24"),
        ("No solution found.", "gives up, but 4 5 6 10 can make 24"),
    ],
)
def test_wrong_steps(line, reason):
    (step,) = play(game(line))
    assert step.verdict.value == -1
    assert reason in step.verdict.reason
    assert step.value in (0.0, None)


def test_no_solution_is_right_where_there_is_none():
    assert judged("Answer: no solution", "1 1 1 1") == [(1, 0.0)]


def test_an_error_counts_once_and_the_game_goes_on_from_what_the_trace_says():
    text = "10 - 4 = 7 (left: 5 6 7)\n5 * 7 = 35 (left: 6 35)\nAnswer: (10 - 4) * 5 - 6 = 24"
    assert judged(text) == [(-1, 0.0), (1, 0.0), (1, 1.0)]


def test_without_a_list_the_numbers_left_are_known_only_after_legal_moves():
    assert judged("10 - 4 = 6\n5 * 6 = 30") == [(1, 1.0), (1, 1.0)]
    assert judged("10 - 4 = 7\n5 * 7 = 35") == [(-1, 0.0), (None, 0.0)]


def test_fractions_and_their_decimals():
    text = "10 / 6 = 1.666 (left: 1.666 4 5)\n1.666 * 5 = 8.33 (left: 4 8.33)\n8.33 * 4 = 33.33 (left: 33.33)"
    assert [value for value, _ in judged(text)] == [1, 1, 1]
    assert judged("6 / 4 = 3/2 (left: 3/2 5 10)\n3/2 * 10 = 15 (left: 5 15)")[1][0] == 1
    assert judged("6 / 4 = 1.4 (left: 1.4 5 10)")[0][0] == -1
    assert judged("4 - 5 = -1 (left: -1 6 10)\n-1 * 6 = -6 (left: -6 10)")[1][0] == 1


def test_two_moves_in_one_line():
    assert judged("10 - 4 - 5 = 1 (left: 1 6)") == [(1, 0.0)]
    assert judged("10 - 4 - 4 = 2 (left: 2 6)")[0][0] == -1


def test_numbers_of_a_problem():
    four = tuple(map(Fraction, (4, 5, 6, 10)))
    assert problem_numbers("10 4 6 5") == four
    assert problem_numbers("Use 4, 5, 6 and 10 to make 24.") == four
    assert problem_numbers("Use 4 5 6") is None
    (step,) = play(game("4 + 5 = 9", "Use 4 5 6"))
    assert step.verdict.value is None
    assert "four numbers" in step.verdict.reason


def test_hostile_lines_are_bounded():
    for line in (
        "(left: " + "1" * 390,
        "1 " * 190 + "= 1",
        "(" * 390,
        "Answer: " + "(" * 300 + "= 24",
        "9" * 10**5,
    ):
        assert judged(line)[0][0] in (None, -1)


def brute_force(numbers, target):
    """All orders, operators and the five bracketings."""

    def apply(a, operator, b):
        if a is None or b is None or (operator == "/" and b == 0):
            return None
        return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[operator]()

    for a, b, c, d in permutations(map(Fraction, numbers)):
        for o, p, q in product("+-*/", repeat=3):
            made = (
                apply(apply(apply(a, o, b), p, c), q, d),
                apply(apply(a, o, apply(b, p, c)), q, d),
                apply(apply(a, o, b), p, apply(c, q, d)),
                apply(a, o, apply(apply(b, p, c), q, d)),
                apply(a, o, apply(b, p, apply(c, q, d))),
            )
            if target in made:
                return True
    return False


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 13), min_size=4, max_size=4))
def test_reachability_is_that_of_brute_force(numbers):
    assert reachable(tuple(sorted(map(Fraction, numbers)))) == brute_force(numbers, 24)


def test_known_hard_games():
    for numbers in ((3, 3, 8, 8), (1, 5, 5, 5), (3, 3, 7, 7), (4, 4, 10, 10)):
        assert reachable(tuple(map(Fraction, numbers)))
    assert not reachable(tuple(map(Fraction, (1, 1, 1, 1))))


def test_values_are_labels():
    item = game(SOLVED)
    labeller = Game24Values()
    assert isinstance(labeller, Labeller)
    (values,) = asyncio.run(labeller.label([item]))
    assert [label.value for label in values] == [None, 1.0, 1.0, 1.0, 1.0]
    assert {(label.source, label.kind) for label in values} == {("game24", "value")}
    assert values[1].evidence.message == "legal: makes 6"


def test_verifier_gives_the_verdicts():
    verifier = Game24Verifier()
    assert isinstance(verifier, StepVerifier)
    (verdicts,) = verifier.verify([game(SOLVED)])
    assert [verdict.value for verdict in verdicts] == [None, 1, 1, 1, 1]


@pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data")
def test_agreement_with_published_judgements():
    with gzip.open(DATA / "tot_game24_search_values.json.gz") as file:
        numbers = {game["idx"]: game["steps"][0]["x"] for game in json.load(file)}
    with gzip.open(DATA / "tot_game24_cot100.json.gz") as file:
        games = json.load(file)[:20]
    differ = []
    for row in games:
        for text, info in zip(row["ys"], row["infos"], strict=True):
            steps = play(game(text, numbers[row["idx"]]))
            right = "Answer:" in text and steps[-1].verdict.value == 1
            if right != bool(info["r"]):
                differ.append(text)
    assert differ == []
