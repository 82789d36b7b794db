"""Classes of equal answers: a function of the set of answers, computed with few comparisons."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.answers import AnswerChecker, group_equal

SYMBOLIC = [
    *("2^3=8", "8", "4+4=8", "0+1=1", "1"),
    *("1/2", "0.5", r"\frac{1}{2}", "50%", "50", "x+1", "1+x", "x+2", r"\sqrt{8}", r"2\sqrt{2}", "2.828427"),
    *(
        "18",
        "18 dollars",
        r"\$18",
        "18.0",
        "x=18",
        "0=18",
        "5 cm",
        "5 m",
        "5",
        r"5\text{ cm}",
        "east",
        "East",
    ),
    *("(1,2)", r"\{1,2\}", r"\{2,1\}", "1,2", "x>3", "3<x", r"(3,\infty)", "A, D", r"\text{D,A}", "1/3"),
    *(
        "East",
        "0.333333",
        r"0.\overline{3}",
        "(x+1)^2",
        "x^2+2x+1",
        "",
        "no such thing",
        "10^{20}",
        "10^{20}+1",
    ),
]
"""Answers of which several are equal, in ways that need algebra, units, or a decision."""


class Counting(AnswerChecker):
    """Counts what is compared."""

    def equal(self, pairs):
        self.compared = getattr(self, "compared", 0) + len(pairs)
        return super().equal(pairs)


@pytest.fixture(scope="module")
def math_checker():
    with AnswerChecker() as checker:
        yield checker


def test_equal_answers_get_the_shortest_without_a_unit(math_checker):
    answers = ["1/2", "x+1", None, "0.5", r"\frac{1}{2}", "3 cm", "1+x", "x+1", "3.0"]
    grouped = group_equal(answers, math_checker)
    assert grouped == ["0.5", "1+x", None, "0.5", "0.5", "3.0", "1+x", "1+x", "3.0"]
    assert group_equal(grouped, math_checker) == grouped
    assert group_equal([], math_checker) == []


def test_classes_do_not_depend_on_the_order(math_checker):
    rng = np.random.default_rng(0)
    first = dict(zip(SYMBOLIC, group_equal(SYMBOLIC, math_checker), strict=True))
    for _ in range(20):
        answers = [SYMBOLIC[k] for k in rng.permutation(len(SYMBOLIC))]
        assert group_equal(answers, math_checker) == [first[answer] for answer in answers]
    assert not math_checker.failures
    assert first["50%"] == first["1/2"] == first["0.5"] != first["50"]
    assert first["18"] == first["18 dollars"] == first[r"\$18"] == first["x=18"] != first["0=18"]
    assert len({first["5"], first["5 cm"], first["5 m"]}) == 3
    assert first["5 cm"] == first[r"5\text{ cm}"]
    assert first[r"\sqrt{8}"] == first[r"2\sqrt{2}"] == first["2.828427"]
    assert first["2^3=8"] == first["8"] == first["4+4=8"] != first["0+1=1"] == first["1"]
    assert first["x>3"] == first["3<x"]
    assert first["(x+1)^2"] == first["x^2+2x+1"]
    assert first["A, D"] == first[r"\text{D,A}"]
    assert first["10^{20}"] != first["10^{20}+1"]


@pytest.mark.parametrize("votes", [("50%", "0.5", "50"), ("5 cm", "5", "5 m"), ("18 dollars", "18", "18%")])
def test_the_majority_does_not_depend_on_the_order(votes, math_checker):
    rng = np.random.default_rng(1)
    pool = [vote for vote, times in zip(votes, (3, 2, 2), strict=True) for _ in range(times)]
    winners = set()
    for _ in range(10):
        grouped = group_equal([pool[k] for k in rng.permutation(len(pool))], math_checker)
        winners.add(Counter(grouped).most_common(1)[0])
    assert len(winners) == 1


def test_a_percent_sign_or_a_unit_may_be_left_out_where_that_is_clear():
    with AnswerChecker() as checker:
        assert group_equal(["50%", "50"], checker) == ["50", "50"]
        assert group_equal(["50%", "0.5"], checker) == ["0.5", "0.5"]
        assert group_equal(["5 cm", "5"], checker) == ["5", "5"]
        clips = ["72 clips", "72 clips altogether", "72 of them", "72"]
        assert group_equal(clips, checker) == ["72"] * 4
        assert group_equal(["3 boys", "3 girls", "3"], checker) == ["3 boys", "3 girls", "3"]


MADE = st.builds(
    lambda number, unit: f"{number:g}{unit}",
    st.integers(-6, 6).map(lambda n: n / 4) | st.sampled_from([50.0, 0.5, 25.0, 0.333333]),
    st.sampled_from(["", "%", " cm", " m", " clips", " gold clips", " dollars", " dozen"]),
)


@pytest.mark.parametrize("method", ["math", "exact"])
@given(answers=st.lists(st.none() | MADE | st.just("word"), max_size=12), data=st.data())
def test_permuting_the_answers_permutes_their_classes(method, answers, data):
    checker = AnswerChecker(method)
    grouped = group_equal(answers, checker)
    order = data.draw(st.permutations(range(len(answers))))
    assert group_equal([answers[k] for k in order], checker) == [grouped[k] for k in order]
    assert group_equal(grouped, checker) == grouped
    assert [a is None for a in answers] == [g is None for g in grouped]
    assert all(one is None or (one in answers and grouped[answers.index(one)] == one) for one in grouped)


def test_only_answers_that_may_be_equal_are_compared():
    different = [rf"\frac{{{k}+\sqrt{{{k + 2}}}}}{{{k + 3}}}" for k in range(2, 18)]
    different += [rf"{k}x^2+{k + 1}x+1" for k in range(2, 18)]
    same = [rf"\frac{{\sqrt{{{k + 2}}}+{k}}}{{{k + 3}}}" for k in range(2, 18)]
    with Counting() as checker:
        grouped = group_equal([*different, *same], checker)
        assert len(set(grouped)) == len(different)
        assert grouped[:16] == grouped[32:]
        assert checker.compared == len(same)  # all pairs would be 1,128
        assert not checker.failures


def test_hostile_answers_stand_alone_and_cost_one_failure_each():
    bad = ["10^{10^{10}}!", "9^{9^{9^9}}!"]
    answers = [bad[0], "x+y", "1/3", "z", bad[1], bad[0], "y+x"]
    with AnswerChecker() as checker:
        grouped = group_equal(answers, checker)
        assert grouped == [bad[0], "x+y", "1/3", "z", bad[1], bad[0], "x+y"]
        assert sum(checker.failures.values()) <= 2 * len(bad)
