"""Where formulas are in a text, and numbers with their units."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.maths import (
    displayed_formulas,
    dollars_delimit,
    inline_formulas,
    read_quantity,
    read_unit,
    split_unit,
)


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("so $x$ and $y + 1$.", ["$x$", "$y + 1$"]),
        (r"\(a\) is $b$", [r"\(a\)", "$b$"]),
        ("It costs $5 and then $6.", []),
        ("a $ b $ c", []),
        (r"\$x\$ is money", []),
        ("$a$1", []),
        ("$a\n\nb$", []),
        ("$a\nb$", ["$a\nb$"]),
        ("$$x$$", []),
        (r"$a\\$", [r"$a\\$"]),
        (r"$a\$ b$", [r"$a\$ b$"]),
        (r"\( open", []),
    ],
)
def test_inline_formulas(text: str, formulas: list[str]) -> None:
    assert [text[formula.start : formula.end] for formula in inline_formulas(text)] == formulas


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("so $$x$$ and \\[y\\].", ["$$x$$", "\\[y\\]"]),
        (r"\begin{align}a\\[2pt]b\end{align}", [r"\begin{align}a\\[2pt]b\end{align}"]),
        (r"\begin{a}\begin{b}\end{a}", [r"\begin{a}\begin{b}\end{a}"]),
        (r"\[ open", []),
        ("$$ open", []),
        (r"\end{align}", []),
    ],
)
def test_displayed_formulas(text: str, formulas: list[str]) -> None:
    assert [text[formula.start : formula.end] for formula in displayed_formulas(text)] == formulas


@pytest.mark.parametrize(
    ("text", "delimit"),
    [
        ("$x$ and $$y$$", True),
        (r"$x$ costs \$5", True),
        ("$x$ costs $5", False),
        ("$5 and $6", False),
        ("no dollars", False),
        ("$x", False),
    ],
)
def test_dollars_are_marks_of_formulas_or_money(text: str, delimit: bool) -> None:
    assert dollars_delimit(text) is delimit


@given(st.text(alphabet="\\[]()${}ab1 \n", max_size=60))
def test_formulas_begin_and_end_with_their_marks(text: str) -> None:
    closing = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}
    for formula in [*inline_formulas(text), *displayed_formulas(text)]:
        source = text[formula.start : formula.end]
        assert source.startswith(formula.mark)
        assert source.endswith(closing[formula.mark])


def test_formulas_take_linear_time() -> None:
    began = time.process_time()
    for text in ("$" * 200_000, r"\(" * 200_000, r"\[" * 200_000, r"\begin{a}" * 50_000, "$a" * 100_000):
        list(inline_formulas(text))
        list(displayed_formulas(text))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("1,234.5 cm", Fraction("1234.5"), {"centimetre"}),
        (r"\frac{3}{4}", Fraction(3, 4), set()),
        (r"0.\overline{3}", Fraction(1, 3), set()),
        ("5 million dollars", Fraction(5_000_000), {"dollar"}),
        ("-$5", Fraction(-5), {"dollar"}),
        ("60 miles per hour", Fraction(60), {"mile/hour"}),
        ("12 cm^2", Fraction(12), {"centimetre^2"}),
        ("72 clips altogether", Fraction(72), {"clip"}),
    ],
)
def test_quantities(text: str, number: Fraction, unit: set[str]) -> None:
    quantity = read_quantity(text)
    assert quantity is not None
    assert (quantity.number, quantity.unit) == (number, unit)


@pytest.mark.parametrize("text", ["5x", "5 and a half", "x + 1", "", "5 M", "1/0"])
def test_no_quantity(text: str) -> None:
    assert read_quantity(text) is None


def test_units_of_expressions() -> None:
    assert split_unit(r"2\sqrt{3} cm") == (r"2\sqrt{3}", {"centimetre"})
    assert split_unit("50%") == ("50%", frozenset())
    assert read_unit(" km per hour") == {"kilometre/hour"}
    assert read_unit("x") is None
