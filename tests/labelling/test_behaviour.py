"""What programs do on inputs, so that votes can choose among them."""

from __future__ import annotations

import pytest

from surefoot import Problem, Trace
from surefoot.errors import LabelError, SandboxError
from surefoot.labelling import observe_programs, task_inputs
from surefoot.protocols import Candidate, ProblemTrace
from surefoot.records import CodeTask
from surefoot.sandbox import open_sandbox
from surefoot.search import SELECTORS

PROMPT = "def f(a: int, b: list[int]) -> int:\n"
CANARY = "assert candidate(77, [77]) == 154"


def problem(*visible: str, prompt: str = PROMPT) -> Problem:
    tests = [
        {"name": f"example {n}", "code": code, "visibility": "visible"} for n, code in enumerate(visible)
    ]
    tests.append({"name": "hidden", "code": CANARY, "visibility": "hidden"})
    code = {"entry_point": "f", "prompt": prompt, "tests": tests, "reference": "    return a + sum(b)\n"}
    return Problem(id="f", text=prompt, meta={"code": code})


EXAMPLES = ("assert f(1, [2]) == 3", "assert f(2, [1, 1]) == 4")


@pytest.fixture(scope="module")
def sandbox():
    try:
        box = open_sandbox("bubblewrap", concurrency=2)
    except SandboxError as missing:
        pytest.skip(str(missing))
    with box:
        yield box


def observe(sandbox, one: Problem, *texts: str):
    traces = [Trace(problem_id=one.id, text=text, sample=n) for n, text in enumerate(texts)]
    return observe_programs(sandbox, [ProblemTrace(problem=one, trace=trace) for trace in traces])


def test_equal_results_are_equal_answers(sandbox):
    right, same, wrong, raises, nothing, broken = observe(
        sandbox,
        problem(*EXAMPLES),
        "    return a + sum(b)\n",
        "    for x in b:\n        a += x\n    return float(a)\n",
        "    return a + len(b) + 1\n",
        "    return a + b[0]\n",
        "    print(a)\n",
        "    return (\n",
    )
    assert right.answer() == same.answer() is not None, "as an assertion would find them equal"
    assert wrong.answer() not in (None, right.answer())
    assert (right.visible_passed, wrong.visible_passed, right.visible) == (2, 1, 2)
    assert not nothing.clean
    assert nothing.answer() is broken.answer() is None
    assert nothing.answer("vote") != broken.answer("vote")
    assert raises.visible_passed == 1
    candidates = [Candidate(answer=one.answer(), score=None) for one in (wrong, right, same, broken)]
    assert SELECTORS["majority"].select(candidates) == 1


def test_inputs_that_most_programs_refuse_are_dropped(sandbox):
    task = problem("assert f(3) == 4", prompt="def f(a):\n")
    odd = "    return a + 1 if a % 2 else None\n"
    found = observe(sandbox, task, odd, odd.replace("a + 1", "1 + a"), "    return a + 1\n")
    assert found[0].clean, "the odd numbers are left"
    assert found[0].answer() == found[1].answer() == found[2].answer()
    assert 0 < len(found[0].results) < 12


def test_no_hidden_test_is_known():
    made = [repr(one) for one in task_inputs(CodeTask.of(problem(*EXAMPLES)))]
    assert made[:2] == ["[1, [2]]", "[2, [1, 1]]"]
    assert len(made) == len(set(made)) == 12
    assert "77" not in "".join(made)
    assert made == [repr(one) for one in task_inputs(CodeTask.of(problem(*EXAMPLES)))]
    assert made != [repr(one) for one in task_inputs(CodeTask.of(problem(*EXAMPLES)), seed=1)]


def test_programs_without_a_visible_test_abstain(sandbox):
    found = observe(sandbox, problem(prompt="def f(a):\n"), "    return a + 1\n")
    assert (found[0].results, found[0].answer(), found[0].visible) == ((), None, 0)


def test_what_is_no_program_has_no_behaviour(sandbox):
    assert observe(sandbox, Problem(id="p", text="2 + 3?"), "5") == [None]
    with pytest.raises(LabelError, match="p: meta"):
        observe(sandbox, Problem(id="p", text="f", meta={"code": {"entry": "f"}}), "5")
