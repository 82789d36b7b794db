"""Steps of programs tile them, have whole statements, and exist for what does not parse too."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.records import Trace
from surefoot.segment import ProseAndCode, PythonCode, segment_trace, segmenter

PROGRAM = '''\
import sys
# about f
@cache
def f(a,
      b):
    """Doc

    # part of it
    """
    s = """
# part of s
"""
    # loop
    for i in a:
        # inner
        b += i; c = 2
        if b: continue
        if c:
            d = 1
        elif e:
            d = 2
            k = 3
        else:
            # why
            d = 3
    return s

class C:
    """D"""
    x = 1

    def g(self):
        return 2
print(f)
'''


def cut(name: str, text: str) -> list[str]:
    return [text[start:end] for start, end in segmenter(name).segment(text)]


def test_statements():
    steps = cut("python", PROGRAM)
    assert [step.strip().splitlines()[0] for step in steps] == [
        "import sys",
        "# about f",
        's = """',
        "# loop",
        "# inner",
        "if b: continue",
        "if c:",
        "d = 1",
        "elif e:",
        "d = 2",
        "k = 3",
        "else:",
        "return s",
        "class C:",
        "x = 1",
        "def g(self):",
        "return 2",
        "print(f)",
    ]
    assert steps[3:5] == ["    # loop\n    for i in a:\n", "        # inner\n        b += i; c = 2\n"]


def test_try_else_finally_and_match():
    text = (
        "try:\n    a\nexcept E:\n    b\nelse:\n    if c:\n        d\nfinally:\n    e\n"
        "match x:\n    case 1:\n        f\n    case _:\n        g\n"
    )
    assert cut("python", text) == [
        "try:\n    a\n",
        "except E:\n    b\n",
        "else:\n    if c:\n",
        "        d\n",
        "finally:\n    e\n",
        "match x:\n",
        "    case 1:\n        f\n",
        "    case _:\n        g\n",
    ]


def test_the_rest_of_a_body():
    rest = "    for i in x:\n        y\n    return 1\n\ndef check(c):\n    assert c\n"
    assert cut("python", rest) == [
        "    for i in x:\n",
        "        y\n",
        "    return 1\n\n",
        "def check(c):\n",
        "    assert c\n",
    ]


def test_what_does_not_parse_is_cut_as_far_as_it_does_and_then_at_lines():
    text = "def f(a):\n    b = [\n        a,\n    ]\n    return (\n\nthe rest\nis prose\n"
    assert cut("python", text) == [
        "def f(a):\n",
        "    b = [\n        a,\n    ]\n",
        "    return (\n\n",
        "the rest\n",
        "is prose\n",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "(" * 50_000,
        "-" * 100_000 + "1",
        "a" + ".b" * 100_000,
        "if x:\n y\n" + "elif x:\n y\n" * 950,
        "".join(" " * depth + "if x:\n" for depth in range(150)),
        "a\0b",
        "a = '\ud800'",
        "a = 1\n" * 500 + "b b\n" * 5000,
        "```\n(\n```\n" * 2000,
        r"re.match('\d')",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_programs_have_steps(text):
    for cutter in (PythonCode(), ProseAndCode()):
        spans = cutter.segment(text)
        assert spans[0][0] == 0
        assert "".join(text[start:end] for start, end in spans) == text


LINES = st.sampled_from(
    [
        "a = 1",
        "if a:",
        "else:",
        "elif b:",
        "def f():",
        "# c",
        "",
        '"""',
        "x = (",
        ")",
        "return a",
        "class C:",
        "@d",
        "for i in a:",
        "try:",
        "except E:",
        "finally:",
        "```",
        "```python",
        "~~~",
        "some prose",
        "a; b",
        "\\",
        "'''",
    ]
)
TEXTS = st.lists(
    st.tuples(
        st.sampled_from(["", "    ", "        ", "\t"]), LINES, st.sampled_from(["\n", "\r\n", "\r", "\n\n"])
    ),
    max_size=14,
).map(lambda rows: "".join(map("".join, rows)))


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_any_lines_tile(text):
    for name in ("python", "prose-and-code"):
        steps = cut(name, text)
        assert "".join(steps) == (text if text.strip() else "")
        assert all(step.strip() for step in steps)


def _suite(depth: int) -> st.SearchStrategy[list[str]]:
    simple = st.sampled_from(["a = 1", "b(c)", "pass", "d = '''\n  e'''", "x = [\n1]"]).map(
        lambda text: [text]
    )
    if not depth:
        return st.lists(simple, min_size=1, max_size=2).map(
            lambda some: [line for one in some for line in one]
        )
    inner = _suite(depth - 1).map(lambda lines: ["    " + line for line in lines])
    compound = st.one_of(
        st.tuples(st.sampled_from(["if a:", "def f():", "while a:", "class C:"]), inner).map(
            lambda p: [p[0], *p[1]]
        ),
        st.tuples(inner, inner).map(lambda p: ["if a:", *p[0], "else:", *p[1]]),
    )
    some = st.lists(st.one_of(simple, compound), min_size=1, max_size=3)
    return some.map(lambda parts: [line for one in parts for line in one])


@settings(max_examples=60, deadline=None)
@given(_suite(2))
def test_each_statement_begins_one_step(lines):
    text = "\n".join(lines) + "\n"
    spans = PythonCode().segment(text)
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    starts = {text[:start].count("\n") + 1 for start, _ in spans}
    # a step begins at its statement, or at the "else:" above it
    assert len(spans) == len(statements)
    assert all({one.lineno, one.lineno - 1} & starts for one in statements)


def test_prose_and_code_steps_have_their_kinds():
    text = "We loop.\n\nSo:\n\n```python\na = 1\nfor i in b:\n    c\n```\nThe answer is: done.\n"
    trace = segment_trace(Trace(problem_id="p", text=text), segmenter("prose-and-code"))
    assert [(step.kind, trace.step_text(number)) for number, step in enumerate(trace.steps)] == [
        ("thought", "We loop.\n\n"),
        ("thought", "So:\n\n"),
        ("code", "```python\na = 1\n"),
        ("code", "for i in b:\n"),
        ("code", "    c\n```\n"),
        ("final_answer", "The answer is: done.\n"),
    ]
    assert trace.granularity == "prose-and-code"
    whole = segment_trace(Trace(problem_id="p", text="a = 1\nb = 2"), segmenter("python"))
    assert [step.kind for step in whole.steps] == ["code", "code"]


def test_a_fence_that_is_not_python_is_one_step():
    assert cut("prose-and-code", "```\nno python !!\nat all\n```\n```rust\na = 1\nb = 2\n```\n") == [
        "```\nno python !!\nat all\n```\n",
        "```rust\na = 1\nb = 2\n```\n",
    ]
    assert cut("prose-and-code", "```\na = 1\nb = 2\n```\n") == ["```\na = 1\n", "b = 2\n```\n"]
