"""Claims in puzzles against their premises, by Z3."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import LabelError
from surefoot.labelling.verifiers.logic import LogicTask, Z3Verifier, claims_of, read_formula
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace, segmenter

pytest.importorskip("z3", reason="Z3 is not installed: pip install 'surefoot[logic]'")

# Ann says: Bob is a knave. Bob says: we are both knaves.
KNIGHTS = {
    "names": {"Ann": "bool", "Bob": "bool"},
    "premises": ["iff(Ann, not Bob)", "iff(Bob, not Ann and not Bob)"],
    "kinds": {"knight": True, "knave": False},
}
AGES = {"names": {"x": "int", "y": "int"}, "premises": ["x == y + 2", "x + y == 10"]}


@pytest.fixture(scope="module")
def verifier():
    with Z3Verifier() as made:
        yield made


def verdicts(verifier, text: str, logic: dict = KNIGHTS):
    problem = Problem(id="p", text="Who is who?", meta={"logic": logic})
    trace = segment_trace(Trace(problem_id="p", text=text), segmenter("line"))
    [row] = verifier.verify([ProblemTrace(problem=problem, trace=trace)])
    return row


def test_claims_follow_contradict_or_are_not_read(verifier):
    text = (
        "Ann says that Bob is a knave.\n"
        "So Ann is a knight.\n"
        "Bob is a knight.\n"
        "Therefore, Bob is not a knight.\n"
        "We have `implies(Bob, Ann)` and `Ann`.\n"
    )
    row = verdicts(verifier, text)
    assert [verdict.value for verdict in row] == [None, 1, -1, 1, 1]
    assert row[2].reason == "contradicts the premises: Bob is a knight"


def test_what_is_supposed_is_no_claim(verifier):
    text = "Suppose Bob is a knight.\nBob is a knight.\nAnn is a knave, a contradiction.\nBob is a knave.\n"
    assert [verdict.value for verdict in verdicts(verifier, text)] == [None, None, None, 1]


def test_numbers(verifier):
    text = "x > y\n`x == 6`\ny == 5\nx + y\n`y * y == 16 and not x == y`\n"
    assert [verdict.value for verdict in verdicts(verifier, text, AGES)] == [1, 1, -1, None, 1]
    open_ = {"names": {"x": "int"}, "premises": ["x > 0"]}
    [row] = [verdicts(verifier, "x > 5\n", open_)]
    assert row[0].value is None
    assert "neither" in row[0].reason


@pytest.mark.parametrize(
    ("logic", "message"),
    [
        ({"names": {}, "premises": ["a"]}, "is no puzzle"),
        ({"names": {"a": "bool"}, "premises": ["b"]}, "premise 'b'"),
        ({"names": {"a": "bool"}, "premises": ["__import__('os')"]}, "premise"),
        ({"names": {"a": "bool"}, "premises": ["a and not a"]}, "contradict each other"),
    ],
)
def test_broken_puzzles_are_the_problems_fault(verifier, logic, message):
    with pytest.raises(LabelError, match=message):
        verdicts(verifier, "`a`\n", logic)


def test_a_problem_without_a_puzzle_is_unknown(verifier):
    trace = segment_trace(Trace(problem_id="p", text="a"), segmenter("line"))
    [row] = verifier.verify([ProblemTrace(problem=Problem(id="p", text="p"), trace=trace)])
    assert row[0].value is None


@pytest.mark.parametrize(
    "text",
    ["Ann + 1", "Ann < Bob", "open('x')", "Ann.x", "Ann == 3", "[Ann]", "lambda: Ann", "x" * 600, "Cid"],
)
def test_other_texts_are_no_formulas(text):
    assert read_formula(text, LogicTask.model_validate(KNIGHTS)) is None


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_verdicts_are_those_of_a_truth_table(verifier, data):
    names = ["A", "B", "C"]

    def formula(depth):
        if not depth:
            return data.draw(st.sampled_from(names))
        one, two = formula(depth - 1), formula(depth - 1)
        return data.draw(
            st.sampled_from([f"({one} and {two})", f"({one} or {two})", f"(not {one})", f"({one} == {two})"])
        )

    premise, claim = formula(2), formula(2)
    worlds = [dict(zip(names, row, strict=True)) for row in itertools.product([True, False], repeat=3)]

    def holds(text, world):
        return eval(text, {}, world)  # noqa: S307 - made above

    left = [world for world in worlds if holds(premise, world)]
    if not left:
        return
    expected = {True: 1, False: -1}.get(
        next(iter(found)) if len(found := {holds(claim, w) for w in left}) == 1 else None
    )
    logic = {"names": dict.fromkeys(names, "bool"), "premises": [premise]}
    assert verdicts(verifier, f"`{claim}`\n", logic)[0].value == expected


def test_claims_are_told_as_they_are_written():
    task = LogicTask.model_validate(KNIGHTS)
    assert [text for text, _ in claims_of("Thus Ann is a knight; `not Bob`.", task)] == [
        "not Bob",
        "Thus Ann is a knight",
    ]
