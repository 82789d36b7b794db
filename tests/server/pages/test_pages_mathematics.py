"""LaTeX as MathML: known formulas, hostile ones, and text around them."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.server.pages.mathematics import MAX_FORMULA, _formulas, formula, mathematics, page_budget

CHILDREN = {"msup": 2, "msub": 2, "msubsup": 3}


class Tags(HTMLParser):
    """Names and attributes of all tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.parametrize(
    ("latex", "part"),
    [
        (r"\frac{a}{b}", "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi></mrow></mfrac>"),
        ("x^2", "<msup><mi>x</mi><mn>2</mn></msup>"),
        (r"a < b", "<mo>&lt;</mo>"),
        (r"\sqrt{2}", "<msqrt>"),
        (r"\boxed{3}", "<menclose"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "<mtable"),
        (r"\sum_{i=1}^n i", "<mo>∑</mo>"),
    ],
)
def test_formulas(latex: str, part: str) -> None:
    assert part in str(formula(latex))


@pytest.mark.parametrize("power", [r"^2", r"_1", r"_1^2", r"^{-1}"])
@pytest.mark.parametrize("matrix", ["p", "b", "v"])
def test_a_matrix_with_a_power_is_one_base(matrix: str, power: str) -> None:
    written = formula(rf"\begin{{{matrix}matrix}}1&2\\3&4\end{{{matrix}matrix}}{power}")
    assert written is not None
    tree = ElementTree.fromstring(written)  # noqa: S314 - written here
    (script,) = (one for one in tree.iter() if one.tag in CHILDREN)
    assert len(script) == CHILDREN[script.tag]


@pytest.mark.parametrize(
    "text",
    [
        r"$\text{<script>alert(1)</script>}$",
        r"$\text{&lt;script&gt;alert(1)&lt;/script&gt;}$",
        r"$\href{javascript:alert(1)}{x}$",
        r"$\style{background:url(http://x.example)}{a}$",
        r"$\class{x}{y}$ $\id{a}{b}$",
        r"$\mathrm{<img src=x onerror=alert(1)>}$",
        r"$\color{red\" onload=\"x}{y}$",
        r"$\operatorname{<b>}$ <svg onload=alert(1)>",
        '$"><script>alert(1)</script>$',
    ],
)
def test_hostile_formulas_are_harmless(text: str) -> None:
    found = Tags(str(mathematics(text)))
    assert not found.names & {"script", "img", "svg", "b", "a", "style"}
    assert not {name for name in found.attributes if name.startswith("on")} | (
        found.attributes & {"href", "src", "id"}
    )


def without_mathematics(text: str) -> str:
    """The page of ``text`` with the source in place of each formula."""
    page = re.sub(
        r'<span class="formula" title="([^"]*)"><math.*?</math></span>',
        r"\1",
        str(mathematics(text)),
        flags=re.DOTALL,
    )
    return Tags(page).words


@given(st.text(st.sampled_from("ab1<>&\"'$\\{}()[]^_ \ntexfracmhrl"), max_size=60))
def test_any_text_gives_only_known_tags_and_keeps_its_source(text: str) -> None:
    found = Tags(str(mathematics(text)))
    allowed = {"span", "code"}
    assert all(name in allowed or name.startswith("m") for name in found.names)
    assert without_mathematics(text) == text


@pytest.mark.parametrize(
    "text", ["It costs $5 and then $6.", "a $ b $ c", r"\$x\$ is money", "no formula", "$", "$$", r"\( open"]
)
def test_dollars_that_are_money(text: str) -> None:
    assert "<math" not in str(mathematics(text))


def test_what_is_not_understood_is_shown_as_its_source() -> None:
    assert formula("x" * (MAX_FORMULA + 1)) is None
    assert formula("{" * 500 + "x" + "}" * 500) is None
    assert formula(r"\left(") is None
    assert '<code class="tex">$\\left($</code>' in str(mathematics(r"So $\left($ it is"))


def test_an_environment_of_mathematics_is_a_formula_and_no_other() -> None:
    assert "<mtable" in mathematics(r"So \begin{align*} x &= 1 \\ y &= 2 \end{align*} holds")
    assert "<math" not in mathematics(r"\begin{itemize} \item 1 \end{itemize}")


def test_long_texts_take_little_time() -> None:
    began = time.process_time()
    for text in (
        "$" * 20_000,
        r"\(" * 20_000,
        r"\[" * 640_000,
        r"\[\(" * 20_000,
        "$a" * 20_000,
        "$a\\" * 10_000,
        "$x$ " * 5_000,
        "$$a" * 10_000,
    ):
        mathematics(text)
    assert time.process_time() - began < 5


def test_a_page_has_a_budget_and_shows_the_rest_as_source() -> None:
    one = r"$x_{1}$ "
    with page_budget():
        first = mathematics(one * 15_000)
        after = mathematics(one)
    assert 0 < first.count("<math") < 15_000
    assert "<math" not in after
    assert '<code class="tex">$x_{1}$</code>' in after
    assert "<math" in mathematics(one)
    assert first.count("$x_{1}$") == 15_000


@given(st.text(alphabet="\\[]()$ab1 \n", max_size=40))
def test_formulas_are_disjoint_and_without_their_marks(text: str) -> None:
    marks = {True: [("$$", "$$"), ("\\[", "\\]")], False: [("$", "$"), ("\\(", "\\)")]}
    before = 0
    for start, end, latex, display in _formulas(text):
        assert start >= before
        assert text[start:end] in [opening + latex + closing for opening, closing in marks[display]]
        before = end
