"""Statements of a passing program that repair a failing one, whatever the names in both."""

from __future__ import annotations

import pytest

from surefoot.labelling.verifiers.repairs import StatementLines, align

PASSING = '''\
def f(xs, k):
    """Sum."""
    result = 0  # so far
    for number in xs:
        if number > k: result += number
    return result
'''
RENAMED = """\
def f(xs, k):
    acc = 0
    for v in xs:
        if v > k:
            acc += v
    return acc
"""


def repairs(failing: str, passing: str = PASSING) -> list[tuple[int | None, str, bool]]:
    alignment = align(StatementLines(failing), StatementLines(passing))
    return [(repair.line, repair.new, repair.adds) for repair in alignment.repairs()]


def test_lines_are_statements_and_know_their_source():
    statements = StatementLines(PASSING)
    assert statements.lines[3:5] == ["        if number > k:", "            result += number"]
    assert [statements.source_line(line) for line in range(6)] == [1, 3, 4, 5, 5, 6]
    with pytest.raises(SyntaxError):
        StatementLines("def f(:\n")
    with pytest.raises(SyntaxError):
        StatementLines("x = " + "-" * 5_000 + "1\n")


def test_names_do_not_matter():
    alignment = align(StatementLines(RENAMED), StatementLines(PASSING))
    assert "\n".join(alignment.reference) + "\n" == RENAMED
    assert (alignment.distance, list(alignment.repairs())) == (0, [])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("v > k", "v >= k", (3, "if v > k:", False)),
        ("acc = 0", "acc = 1", (1, "acc = 0", False)),
        ("return acc", "return v", (5, "return acc", False)),
        ("return acc", "acc", (5, "return acc", False)),
        ("acc += v", "pass", (4, "acc += v", False)),
        ("acc = 0", "pass", (1, "acc = 0", False)),
        ("    acc = 0\n", "", (1, "acc = 0", True)),
        ("    return acc", "    acc += 1\n    return acc", (5, "pass", False)),
    ],
)
def test_one_statement_is_repaired(before, after, expected):
    assert repairs(RENAMED.replace(before, after)) == [expected]


def test_a_repaired_program_is_the_failing_one_but_for_its_line():
    failing = RENAMED.replace("v > k", "v >= k")
    [repair] = align(StatementLines(failing), StatementLines(PASSING)).repairs()
    assert repair.text == RENAMED


@pytest.mark.parametrize(
    ("failing", "passing"),
    [
        # the whole solution in place of one statement
        ("def f(s):\n    s.sort()\n    return s[0]\n", "def f(s):\n    return max(s)\n"),
        ("def f(s):\n    low = s.lower()\n    return low\n", "def f(s):\n    return s.swapcase()\n"),
        (
            "def f(s):\n    def g(x):\n        return -x\n    return sorted(s, key=g)\n",
            "def f(s):\n    return sorted(s, key=abs)\n",
        ),
        (
            "def f(s):\n    n = []\n    for x in s:\n        n.append(x)\n    return n\n",
            "def f(s):\n    return [-x for x in s]\n",
        ),
        ("def f(s):\n    n = len(s)\n    return n\n", "def f(s):\n    if s: return 1\n    return 2\n"),
    ],
)
def test_a_statement_that_makes_the_rest_needless_is_no_repair(failing, passing):
    assert not any(new != "pass" for _, new, _ in repairs(failing, passing))
