"""Mutants have one fault, on the line that they name, and labels that say so."""

from __future__ import annotations

import pytest

from benchmarks.worlds.mutants import MutantReport, labelled_mutants, mutants
from surefoot import Problem
from surefoot.errors import LabelError, SandboxError
from surefoot.labelling.verifiers.repairs import RepairVerifier
from surefoot.protocols import ProblemTrace
from surefoot.sandbox import open_sandbox

PROMPT = "def f(a, b):\n"
REFERENCE = """\
    # é
    if a < b and not a == 2:
        print(a, b)
        a = a + 1
    return a % b
"""
TESTS = ["candidate(1, 5) == 2", "candidate(2, 5) == 2", "candidate(7, 7) == 0", "candidate(9, 4) == 1"]
PROBLEM = Problem(
    id="f",
    text=PROMPT,
    meta={
        "code": {
            "entry_point": "f",
            "prompt": PROMPT,
            "reference": REFERENCE,
            "tests": [{"name": one, "code": f"assert {one}", "visibility": "hidden"} for one in TESTS],
        }
    },
)


def test_every_operator_changes_the_line_that_it_names():
    made = list(mutants(PROMPT, REFERENCE))
    assert {(one.line, one.operator, one.change) for one in made} >= {
        (2, "comparison", "a < b → a <= b"),
        (2, "comparison", "a == 2 → a != 2"),
        (2, "boolean", "not a == 2 → a == 2"),
        (2, "boolean", "a < b and not a == 2 → a < b or not a == 2"),
        (2, "constant", "2 → 3"),
        (3, "swapped arguments", "print(a, b) → print(b, a)"),
        (3, "deleted statement", "print(a, b) → pass"),
        (4, "arithmetic", "a + 1 → a - 1"),
        (4, "deleted statement", "a = a + 1 → pass"),
        (5, "wrong variable", "b → a"),
        (5, "arithmetic", "a % b → a // b"),
    }
    for one in made:
        changed = zip(one.text.splitlines(), REFERENCE.splitlines(), strict=True)
        assert [number for number, (new, old) in enumerate(changed, start=1) if new != old] == [one.line]
    assert len({one.text for one in made}) == len(made)


def test_a_reference_that_does_not_parse_is_refused():
    with pytest.raises(LabelError, match="does not parse"):
        list(mutants("def f(:\n", "    pass\n"))


@pytest.fixture(scope="module")
def sandbox():
    try:
        box = open_sandbox("bubblewrap", concurrency=2)
    except SandboxError as missing:
        pytest.skip(str(missing))
    with box:
        yield box


def test_labels_and_traces_agree_and_equivalent_mutants_are_dropped(sandbox):
    report = MutantReport()
    items = list(labelled_mutants([PROBLEM, Problem(text="1 + 1?")], sandbox, per_problem=99, report=report))
    # what is printed is not tested
    assert {item.trace.meta["mutant"]["operator"] for item in items}.isdisjoint({"swapped arguments"})
    assert report.dropped["equivalent as far as the tests tell"] >= 2
    assert report.dropped["problems without reference solution or hidden tests"] == 1
    assert report.usable.total() == len(items)
    assert len(items) + report.dropped["equivalent as far as the tests tell"] == len(
        list(mutants(PROMPT, REFERENCE))
    )
    verdicts = RepairVerifier(sandbox).verify(
        [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    )
    for item, row in zip(items, verdicts, strict=True):
        [wrong] = [label.step for label in item.labels if label.value == -1]
        changed = item.trace.text.splitlines()[item.trace.meta["mutant"]["line"] - 1]
        assert changed.strip() in item.trace.step_text(wrong)
        assert item.trace.outcome is False
        assert row[wrong].value == -1
