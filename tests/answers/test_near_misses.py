"""No near miss is graded right, and no rewriting wrong, for answers of many kinds."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.answers.near_misses import pairs
from benchmarks.answers.run import OWN
from surefoot.answers import AnswerChecker, group_equal

ANSWERS = OWN.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def checker():
    with AnswerChecker() as checker:
        yield checker


@given(st.sampled_from(ANSWERS), st.integers(0, 2**32))
def test_near_misses_are_wrong_and_rewritings_right(checker, answer, seed):
    for pair in pairs(answer, random.Random(seed), per_kind=1):
        assert checker.grade([(pair.answer, answer)]) == [pair.right], pair
        if pair.right:
            assert len(set(group_equal([pair.answer, answer], checker))) == 1, pair


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_equals_itself_in_dollars(checker, answer):
    assert checker.equal([(f"${answer}$", answer), (answer, f"${answer}$")]) == [True, True]


NUMBERS = st.fractions(-1000, 1000, max_denominator=999)


@given(NUMBERS, NUMBERS, st.integers(2, 99).filter(lambda n: n not in (4, 9, 16, 25, 36, 49, 64, 81)))
def test_sums_with_a_root_are_equal_iff_both_parts_are(checker, whole, factor, root):
    def latex(a: Fraction, b: Fraction) -> str:
        fractions = (
            rf"\frac{{{a.numerator}}}{{{a.denominator}}} + \frac{{{b.numerator} ROOT}}{{{b.denominator}}}"
        )
        return fractions.replace("ROOT", rf"\sqrt{{{root}}}")

    code = f"({factor})*sqrt({root}) + ({whole})"
    other = latex(whole + Fraction(1, 10**9), factor)
    assert checker.equal([(code, latex(whole, factor)), (code, other)]) == [True, False]


@given(st.integers(-(10**18), 10**18), st.integers(-30, 30), st.integers(1, 9))
def test_tiny_and_huge_decimals_differ_in_every_digit(checker, digits, power, change):
    assume(digits % 10 + change < 10)
    pairs = [
        (f"{digits}e{power}", rf"{digits} \times 10^{{{power}}}"),
        (f"{digits + change}e{power}", f"{digits}e{power}"),
    ]
    assert checker.equal(pairs) == [True, False]
