"""Extraction on written examples; equality against real hostile expressions in the real worker."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.answers import AnswerChecker, extract_answer
from surefoot.errors import AnswerError
from surefoot.maths import read_quantity


@pytest.fixture(scope="module")
def math_checker():
    with AnswerChecker() as checker:
        yield checker


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}", "5"),
        (r"first \boxed{4}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\fbox{ 7 }", "7"),
        (r"thus $\boxed 5$ holds", "5"),
        (r"\boxed {x^{2}}", "x^{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"good \boxed{8} and then cut off \boxed{\frac{1}{", None),
        (r"{ left open \boxed{8}", "8"),
        (r"\boxed{}", None),
        (r"\boxedtext{5}", None),
        ("no box 5", None),
    ],
)
def test_boxed(text, answer):
    assert extract_answer(text, ["boxed"]) == answer


@pytest.mark.parametrize(
    ("text", "style", "answer"),
    [
        ("a #### 1\nb\n#### 1,234 \nmore", "hash", "1,234"),
        ("####", "hash", None),
        ("The answer is 3. No, the answer is $4.5$. I hope so.", "phrase", "4.5"),
        ("**Answer:** 42.", "phrase", "42"),
        ("ANSWER: x = 3", "phrase", "x = 3"),
        ("Answer:\n\n\\frac{1}{2}\nbye", "phrase", r"\frac{1}{2}"),
        ("The final answer is: $\\boxed{7}$.", "phrase", "7"),
        ("The answer is $a. b$ and so", "phrase", "$a. b$ and so"),
        ("the answer is", "phrase", None),
        ("So the answer is clearly 12.", "phrase", "12"),
        ("The answer is therefore, $\\frac{1}{2}$.", "phrase", r"\frac{1}{2}"),
        ("The answer is just", "phrase", "just"),
        ("The answer is not 5. It is 6.", "phrase", "6"),
        ("The answer is not $5$ but $6$.", "phrase", "6"),
        ("The answer is 6. The answer is not 5.", "phrase", "6"),
        ("The answer is not 5.", "phrase", None),
        ("The answer is not 5.", "last_number", None),
        ("The answer is not defined.", "phrase", "not defined"),
        ("It is 7, not 8.", "last_number", "7"),
        ("it costs 12,345.50.", "last_number", "12,345.50"),
        ("from -$1,200", "last_number", "-$1,200"),
        ("5-3", "last_number", "3"),
        ("x = -3", "last_number", "-3"),
        ("x = \u22123", "last_number", "\u22123"),
        ("it is 3/4.", "last_number", "3/4"),
        (r"it is -\frac{3}{4}.", "last_number", r"-\frac{3}{4}"),
        ("about 45% of it", "last_number", "45%"),
        ("take .5", "last_number", ".5"),
        ("none", "last_number", None),
    ],
)
def test_other_styles(text, style, answer):
    assert extract_answer(text, [style]) == answer


def test_styles_are_tried_in_order():
    text = "The answer is 2.\n#### 3"
    assert extract_answer(text) == "3"
    assert extract_answer(text, ["phrase", "hash"]) == "2"
    assert extract_answer(text, ["boxed"]) is None
    with pytest.raises(AnswerError, match="boxed, hash, phrase, last_number"):
        extract_answer(text, ["box"])


@given(st.text(alphabet=r"\boxed{}5$ #answeris:./,-%", max_size=200))
def test_extraction_never_raises_and_returns_visible_text(text):
    answer = extract_answer(text)
    assert answer is None or (answer and answer == answer.strip())


@pytest.mark.parametrize(
    "unit", [r"\boxed{", "{", "}", "answer is ", ". $", "#### ", "1,", "1,111", "-", "\\frac{1}"]
)
def test_extraction_is_linear_in_hostile_text(unit):
    begin = time.perf_counter()
    for style in ("boxed", "hash", "phrase", "last_number"):
        extract_answer(unit * 50_000, [style])
    assert time.perf_counter() - begin < 5


@given(st.text(alphabet="ab{}\\", max_size=30).filter(lambda s: "\\" not in s))
def test_boxed_gives_back_any_balanced_content(content):
    depth, balanced = 0, True
    for character in content:
        depth += (character == "{") - (character == "}")
        balanced = balanced and depth >= 0
    if balanced and depth == 0:
        assert extract_answer(f"x \\boxed{{{content}}} y", ["boxed"]) == (content or None)


def test_exact_compares_characters():
    with AnswerChecker("exact") as exact:
        assert exact.equal([(" 5", "5 "), ("5.0", "5")]) == [True, False]


def test_numbers_in_all_spellings():
    pairs = [
        ("1,234.50", "1234.5"),
        ("$3", r"\$3"),
        ("3/4", "0.75"),
        (r"-\dfrac{3}{4}", "-.75"),
        ("50%", "0.5"),
        ("50%", "50"),
        ("50%", "0.5%"),
        ("0.3333333", "1/3"),
        ("0.333", "1/3"),
        ("-5", "5"),
        ("2e3", "2000"),
    ]
    expected = [True] * 6 + [False, True, False, False, True]
    hostile = [("five", "5"), ("1/0", "1"), ("5", "five"), ("9" * 5000, "1"), ("1e999999999", "1")]
    with AnswerChecker() as checker:
        assert checker.equal(pairs) == expected
        assert not any(checker.equal(hostile))


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
def test_fractions_and_thousands_keep_their_value(top, bottom):
    with AnswerChecker() as checker:
        assert checker.equal([(f"{top:,}", str(top)), (f"{top}/{bottom}", str(Fraction(top, bottom)))]) == [
            True,
            True,
        ]
        assert checker.equal([(str(top + 1), str(top))]) == [False]


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("x = 12", 12),
        ("$x_1 = 3\\times 4 = 12$", 12),
        ("3 + 4 = 7", 7),
        ("10 - 2 * 3 / 4 = 8.5", 8.5),
        ("2 1/2", 2.5),
        (r"2\frac12", 2.5),
    ],
)
def test_the_last_side_of_equations_is_the_answer(math_checker, answer, number):
    assert math_checker.equal([(answer, str(number)), (str(number), answer)]) == [True, True]


@pytest.mark.parametrize(
    "answer", ["3 + 4 = 8", "2x = 12", "1/0 = 12", "12 (mod 7)", "x > 12", "a = b = 12 = 11"]
)
def test_nothing_else_is_a_number(answer):
    with AnswerChecker() as checker:
        assert not any(checker.equal([(answer, "12"), (answer, "8")]))


@given(st.lists(st.tuples(st.sampled_from("+-*/"), st.integers(1, 99)), min_size=1, max_size=5))
def test_equations_are_read_iff_they_hold(terms):
    side = "7 " + " ".join(f"{operator} {number}" for operator, number in terms)
    value = Fraction(eval(re.sub(r"[0-9]+", r"Fraction(\g<0>)", side)))  # noqa: S307
    with AnswerChecker() as checker:
        for total, holds in ((value, True), (value + 1, False)):
            number = f"{'-' * (total < 0)}{abs(total)}"
            assert checker.equal([(f"{side} = {number}", number)]) == [holds]


@given(
    st.integers(0, 99),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from(["{} {}/{}", r"{}\frac{{{}}}{{{}}}"]),
)
def test_mixed_numbers(whole, top, more, form):
    quantity = read_quantity(form.format(whole, top, top + more) + r"\%")
    assert quantity.number == whole + Fraction(top, top + more)


def test_inequalities_are_the_interval_of_their_solutions(math_checker):
    forms = {
        (-1, 2): ["-1<x<2", "(-1,2)", "2>x>-1"],
        (-1, 2.5): [r"-1\le x<2.5", "[-1,2.5)", r"2.5>x\ge -1"],
        (3, None): [r"x\ge 3", r"[3,\infty)", r"3\le x"],
    }
    texts = [(text, key) for key, same in forms.items() for text in same]
    pairs = [(a, b) for a in texts for b in texts]
    verdicts = math_checker.equal([(a, b) for (a, _), (b, _) in pairs])
    assert verdicts == [key == other for (_, key), (_, other) in pairs]
    assert math_checker.equal([(r"0\le y<1", r"0\le x<1"), ("x>3", "x<3")]) == [False, False]
    equal = [("2 1/2", r"\sqrt{25}/2"), (r"33\frac{1}{3}\%", r"\frac13"), (r"0.\overline{3}", r"\frac13")]
    assert math_checker.equal(equal) == [True, True, True]


def test_settings_are_checked():
    with pytest.raises(AnswerError, match="math, exact"):
        AnswerChecker("symbolic")


def test_math_equality(math_checker):
    equal = [
        ("0.5", "1/2"),
        (r"\dfrac{1}{2}", r"$\frac{1}{2}$"),
        ("x + 1", "1+x"),
        ("(x+1)^2", "x^2+2x+1"),
        ("50\\%", "0.5"),
        ("2**10", "1024"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("5", "x=5"),
        (r"\{2,1\}", r"\{1,2\}"),
        ("1,000", "1000"),
        ("90^\\circ", "90"),
        (r"\left(1,2\right)", "(1, 2)"),
        (r"\text{East}", "east"),
        ("0.333333", "1/3"),
    ]
    assert math_checker.equal(equal) == [True] * len(equal)
    unequal = [
        ("5", "6"),
        ("1000001", "1000000"),
        ("x+1", "x+2"),
        ("seat", "east"),
        ("22/7", "3.14"),
        ("", "5"),
    ]
    assert math_checker.equal(unequal) == [False] * len(unequal)
    assert not math_checker.failures


HOSTILE = [
    *("10**10**10", "9^{9^{9^9}}", "(10^9)!", "10^{10^{10}}", "2^{30000000000}", "((((9!)!)!)!)!"),
    "{" * 10_000 + "}" * 10_000,
    "{" * 900 + "x" + "}" * 900,
    "(" * 300 + "x" + ")" * 300,
    r"\sum_{k=1}^{10^{100}} k^{k+1}",
    r"\sum_{k=1}^{1000}" * 5 + "k",
    r"(x+y)^{499}" * 150,
    "3000!" + "*2999!" * 200,
    r"\sqrt{2}^{" * 20 + "2" + "}" * 20,
    r"\sin x" * 280,
    r"\tan 10^{29}",
    r"\pm x," * 280 + "1",
    "x" + "!" * 1500,
    r"\{" + "x+1," * 400 + r"x\}",
    "e^{e^{e^{e^{9}}}}",
]


def test_hostile_expressions_cost_bounded_work():
    # Harmless pairs between the hostile ones are still answered.
    pairs = [pair for text in HOSTILE for pair in ((text, "x+5"), ("x + y", "y+x"), ("x", f"y+{len(text)}"))]
    with AnswerChecker() as checker:
        assert False not in checker.equal([(f"{text}+1", f"1+{text}") for text in HOSTILE])
        checker.failures.clear()
        verdicts = checker.equal(pairs)
        for verdict, (answer, _) in zip(verdicts, pairs, strict=True):
            assert verdict in {"x + y": (True,), "x": (False,)}.get(answer, (None, False)), answer
        assert sum(checker.failures.values()) == verdicts.count(None)
        assert checker.failures.keys() == {"too_large", "too_long", "unreadable"}


@given(st.text(alphabet=r"\frac{}sqtum_^(),|!%xyi0123456789+-*/=<>piexcos", max_size=300))
def test_no_text_breaks_a_comparison(text):
    with AnswerChecker() as checker:
        assert checker.equal([(text, "x+1"), ("x+1", text)]) in ([None, None], [False, False], [True, True])
        checker.fingerprint(text)
        assert not checker.failures["error"]


def test_code_in_an_answer_is_not_run(math_checker, tmp_path):
    target = tmp_path / "touched"
    for code in (f"__import__('pathlib').Path('{target}').touch()", f"open('{target}', 'w')"):
        math_checker.equal([(code, "5"), (code, "x+1"), ("5", code), (f"1+({code})", "2")])
    assert not target.exists()


def test_threads_share_one_checker(math_checker):
    pairs = [(f"x+{n}", f"{n % 7}+x") for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda pair: math_checker.equal([pair])[0], pairs))
    assert verdicts == [n == n % 7 for n in range(40)]


def test_pickled_copy_keeps_the_settings():
    copy = pickle.loads(pickle.dumps(AnswerChecker("exact")))  # noqa: S301
    assert copy.method == "exact"
    assert copy.equal([("5.0", "5"), ("5 ", "5")]) == [False, True]


def test_import_is_light():
    script = (
        "import sys, surefoot.answers, surefoot.segment\n"
        "print([m for m in ('torch', 'transformers', 'sympy', 'mpmath') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\nThe answer is 5.\n</think>\n\nThe answer is 4.", "4"),
        ("The answer is 5.</think> It is 4", "4"),
        ("<think>The answer is 5", None),  # cut off while it thinks
        ("<think>The answer is 5.</think>", None),
        ("<think>no</think> then <think> is a tag; the answer is 4", "4"),
    ],
)
def test_reasoning_is_no_answer(text, answer):
    assert extract_answer(text) == answer


def test_nested_boxes_take_linear_time():
    def seconds(count):
        begin = time.process_time()
        assert extract_answer(r"\boxed{" * count + "7" + "}" * count, ["boxed"]) == "7"
        return time.process_time() - begin

    assert seconds(80_000) < 10 * max(seconds(20_000), 0.01)
