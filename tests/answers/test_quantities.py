"""Answers with units, emphasis and the like, against what a reader takes them to mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.answers import AnswerChecker, Grader, Solution, extract_answer

EQUAL = [
    ("18 dollars", "18"),
    ("$18", "18 dollars"),
    ("18 dollars", "18.00"),
    ("-$5", "-5"),
    ("USD 1,250", "1250"),
    ("€7", "7 euros"),
    ("72 clips altogether", "72"),
    ("8 years old", "8"),
    ("40 more points than on Friday", "40"),
    ("6 pages a day", "6"),
    ("15 liters of water out of the 24 liters", "15"),
    ("22 times", "22"),
    ("36 square feet", r"36\text{ ft}^2"),
    ("12 cm^2", r"12\text{ cm}^2"),
    ("60 km/h", "60 kilometers per hour"),
    ("90°", "90"),
    (r"90^\circ", "90 degrees"),
    ("5cm", "5"),
    ("90 degrees", "90°F"),
    ("2 L", "2 liters"),
    ("5 million dollars", "5000000"),
    ("2 dozen eggs", "24"),
    ("2 dozen eggs", "2"),
    ("50 percent", "0.5"),
    (r"50\% of the eggs", "50"),
    ("**18**", "18"),
    ("**18** dollars", "18"),
    ("__18__", "18"),
    (r"\textbf{18}", "18"),
    (r"\mathbf{18}", "18"),
    (r"\text{18 dollars}", "18"),
    (r"0.\overline{3}", "1/3"),
    (r"0.\bar 3", r"\frac{1}{3}"),
    (r"-2.1\overline{36}", r"-\frac{47}{22}"),
    (r"0.\overline{142857}", "1/7"),
]
UNEQUAL = [
    ("5 cm", "5 m"),
    ("5cm", "5m"),
    (r"5\text{ cm}", "5 m"),
    ("12 cm^2", "12 cm"),
    ("60 miles per hour", "60 miles"),
    ("$5", "5 cents"),
    ("3 boys", "3 girls"),
    ("18 dollars", "19"),
    ("50%", "50 cm"),
    ("5 million", "5"),
    ("5 and a half", "5"),
    ("5 and 6", "5"),
    ("5, 6", "5"),
    ("5 or 7 eggs", "5"),
    ("5 squared", "5"),
    ("5 times 2", "5"),
    ("3 thirds", "3"),
    ("5 eggs x 2", "5"),
    ("1.5 hours", "1 hour"),
    (r"0.\overline{3}", "0.3"),
    ("0.3", "1/3"),
    ("5:30", "5"),
    ("5 feet 6 inches", "5"),
    ("5 hours 30 minutes", "5 hours"),
    ("121 base 3", "121"),
    ("50%-60%", "50"),
    ("5 M", "5"),
    ("90°F", "90°C"),
    ("90 degrees Celsius", "90°F"),
]


@pytest.fixture(scope="module")
def math_checker():
    with AnswerChecker() as checker:
        yield checker


def test_numbers_with_units():
    with AnswerChecker() as checker:
        assert [pair for pair in EQUAL if not checker.equal([pair])[0]] == []
        assert [pair for pair in UNEQUAL if checker.equal([pair])[0]] == []
        assert checker.failures.keys() <= {"unreadable"}


def test_expressions_with_units_and_words(math_checker):
    equal = [
        (r"2\sqrt{3} cm", r"2\sqrt{3}"),
        (r"2\sqrt{3}\text{ cm}", r"2\sqrt{3}\text{ centimeters}"),
        (r"9\pi \text{ square inches}", r"9\pi"),
        (r"\sqrt{(7/0.7)^2-7^2}", r"\sqrt{51}"),
        (r"\text{A,D}", "A, D"),
        (r"\text{A and D}", "D,A"),
        ("(C)", r"\text{C}"),
        (r"\textbf{(C)}", "C"),
        ("6*3=18", "18"),
        ("x = 18", "18"),
    ]
    assert [pair for pair in equal if not math_checker.equal([pair])[0]] == []
    unequal = [
        (r"2\sqrt{3}\text{ cm}", r"2\sqrt{3}\text{ m}"),
        (r"\sqrt{(7/0.7)^2-7^2}", r"\sqrt{50}"),
        ("0=18", "18"),
        ("18=0", "0"),
        ("2*9=19", "19"),
        ("1=2=3", "3"),
        ("A,D", "A,C"),
        ("A", "A, D"),
        ("5x", "5"),
        ("2**10", "210"),
        ("3 pi", "3"),
    ]
    assert [pair for pair in unequal if math_checker.equal([pair])[0]] == []
    assert not math_checker.failures


PHRASES = [
    ("The answer is 18 dollars.", "18"),
    ("The answer is **18** dollars a week.", "18"),
    ("The answer is $1,250 for the whole trip.", "1250"),
    ("The answer is 45 miles away from home.", "45"),
    ("The answer is 2.5 hours.", "2.5"),
    ("So the answer is 7 bags with sweets left.", "7"),
    ("The answer is: 40% of the class.", "40"),
    ("The answer is 9 points in the 40 minutes.", "9"),
    ("**Answer:** 3 bolts of fabric", "3"),
    ("#### 12 apples", "12"),
    (r"Therefore \boxed{12\text{ apples}}.", "12"),
]


def test_solutions_that_end_in_a_unit_are_graded_by_their_number():
    texts, references = zip(*PHRASES, strict=True)
    solutions = [Solution(text=text) for text in texts]
    with AnswerChecker() as checker:
        right = Grader(checker=checker).grade(solutions, references)
        wrong = Grader(checker=checker).grade(solutions, [f"{reference}1" for reference in references])
    assert [grade.outcome for grade in right] == [True] * len(PHRASES)
    assert [grade.outcome for grade in wrong] == [False] * len(PHRASES)


def test_a_letter_is_a_unit_only_if_it_is_no_variable_of_the_problem():
    # Of two metres and of the variable m.
    with AnswerChecker() as checker:
        grader, solution = Grader(checker=checker), Solution(text=r"So \boxed{4 m}")
        for problem, outcome in (
            ("How long is it?", True),
            ("Find $2m + 2m$.", False),
            (r"$\text{in m}$", True),
        ):
            assert grader.grade([solution], ["4"], problem)[0].outcome is outcome
        assert grader.grade([solution], [r"4\text{ m}"], "Is $m$ known?")[0].outcome is True
        assert checker.equal([("4m", "4"), ("4m", "4 m"), ("6-6c", "0")]) == [False, True, False]


@given(st.integers(0, 10**5), st.sampled_from(["cm", "dollars", "clips left", "%", "miles per hour", "m^2"]))
def test_a_unit_changes_no_number(number, unit):
    with AnswerChecker() as checker:
        pairs = [(f"{number:,} {unit}", str(number)), (f"{number} {unit}", str(number + 1))]
        assert checker.equal(pairs) == [True, False]


@given(st.text("*_ABD ,()and%$\\text{}.overlin30-", max_size=60))
def test_reading_never_raises(text):
    with AnswerChecker() as checker:
        checker.equal([(text, "1"), ("1", text)])
    extract_answer(text)


@pytest.mark.parametrize("unit", ["A ", "A,  ", "5 cm ", "** a", "__a", "3 a", "x\\text{ a}", "5 and ", ".0"])
def test_reading_is_quick_on_hostile_text(unit):
    with AnswerChecker() as checker:
        for text in (unit * 600, "5 " + unit * 600, unit * 20_000):
            checker.equal([(text[:2000], "5"), (text, "5")])
