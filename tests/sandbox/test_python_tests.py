"""Python graded by tests in a process of their own."""

from __future__ import annotations

import math

import pytest

from surefoot.sandbox import Limits, NamedTest, PythonTask, TestOutcome, grade_python
from surefoot.sandbox.inside.wire import WireError, decode, encode

ADD = PythonTask.from_asserts(["add"], ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"])


def outcomes(verdict):
    return [test.outcome.value for test in verdict.tests]


CANDIDATES = {
    "def add(a, b): return a + b": ["passed", "passed"],
    "def add(a, b): return 3": ["passed", "failed"],
    "def add(a, b): return int(a) + int(b)": ["passed", "raised"],
    "def add(a, b)": ["load_error", "load_error"],
    "raise SystemExit(0)": ["load_error", "load_error"],
    "x = 1": ["raised", "raised"],
    "import os\ndef add(a, b): os._exit(0)": ["crashed", "not_run"],
    "def add(a, b):\n while True: pass": ["timeout", "not_run"],
    "print('passed')\ndef add(a, b): print('[\"passed\"]'); return a + b": ["passed", "passed"],
    "def add(a, b): return object()": ["raised", "raised"],
    "def add(a, b): raise ValueError('\\ud800\\x1b[2J')": ["raised", "raised"],
    "def add(a, b): raise type('\\ud800', (Exception,), {})": ["raised", "raised"],
    "raise ValueError('\\ud800')": ["load_error", "load_error"],
    "def add(a, b): return '\\ud800'": ["failed", "failed"],
}


def test_each_test_has_an_outcome(sandbox):
    verdicts = grade_python(sandbox, [(text, ADD) for text in CANDIDATES], limits=Limits(wall_s=1))
    assert {text: outcomes(v) for text, v in zip(CANDIDATES, verdicts, strict=True)} == CANDIDATES
    assert [v.passed for v in verdicts] == [o == ["passed"] * 2 for o in CANDIDATES.values()]
    assert verdicts[1].reason == "assert 2: failed: AssertionError"


def test_helpers_come_from_the_prompt_and_not_from_the_candidate(sandbox):
    prompt = 'def double(x):\n    return 2 * x\n\ndef halve(x: int) -> int:\n    """Undo double."""\n'
    check = "def check(candidate):\n    for i in range(9): assert candidate(double(i)) == i\n"
    task = PythonTask.from_check("halve", check, prompt=prompt)
    honest = prompt + "    return x // 2\n"
    cheat = "def double(x): return x\ndef halve(x): return x"
    assert [v.passed for v in grade_python(sandbox, [(honest, task), (cheat, task)])] == [True, False]


def test_an_entry_point_may_be_called_check(sandbox):
    task = PythonTask.from_check(
        "check", "def check(candidate):\n    assert candidate(2)\n", prompt="def check(n):\n"
    )
    assert [v.passed for v in grade_python(sandbox, [("def check(n): return n == 2", task)])] == [True]


def test_a_broken_test_says_nothing_of_the_candidate(sandbox):
    broken = ADD.model_copy(update={"setup": "1 / 0"})
    (verdict,) = grade_python(sandbox, [("def add(a, b): return a + b", broken)])
    assert verdict.passed is None
    assert "ZeroDivisionError" in verdict.reason


def test_exceptions_of_the_candidate_reach_the_tests_by_their_type(sandbox):
    code = "try:\n  f(0)\nexcept ValueError as e:\n  assert str(e) == 'zero'\nelse:\n  assert False"
    task = PythonTask(entry_points=("f",), tests=(NamedTest(name="raises", code=code),))
    verdicts = grade_python(
        sandbox, [("def f(x): raise ValueError('zero')", task), ("def f(x): raise KeyError('zero')", task)]
    )
    assert [outcomes(v) for v in verdicts] == [["passed"], ["raised"]]


@pytest.mark.parametrize(
    "kind", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt"]
)
def test_exceptions_that_control_loops_are_errors_of_the_candidate(sandbox, kind):
    loops = [
        "assert all(map(f, [1, 2]))",
        "for x, y in zip(map(f, [1]), [0]): assert x == y",
        "assert list(iter(lambda: f(1), 0)) == []",
        "import asyncio\nclass A:\n async def __anext__(self): return f(1)\n"
        " def __aiter__(self): return self\n"
        "async def g():\n async for x in A(): assert x == 0\nasyncio.run(g())",
    ]
    tests = tuple(NamedTest(name=f"loop {at}", code=code) for at, code in enumerate(loops))
    (verdict,) = grade_python(
        sandbox, [(f"def f(x): raise {kind}", PythonTask(entry_points=("f",), tests=tests))]
    )
    assert set(outcomes(verdict)) == {"raised"}, verdict


def test_a_candidate_that_breaks_its_tests_has_failed(sandbox):
    task = PythonTask.from_asserts(["f"], ["import os\nif f(1) == 1: os.abort()", "assert f(1) == 2"])
    programs = [(f"def f(x): return {value}", task) for value in (1, 2, 3)]
    broke, passed, failed = grade_python(sandbox, programs)
    assert (broke.passed, set(outcomes(broke))) == (False, {"crashed"})
    assert "broke its tests" in broke.reason
    assert (passed.passed, failed.passed) == (True, False)
    deep = PythonTask.from_asserts(["f"], ["f([f(1)])"])
    (verdict,) = grade_python(sandbox, [("def f(x):\n y = 0\n for _ in range(99): y = [y]\n return y", deep)])
    assert verdict.passed is False


def test_what_breaks_without_the_candidate_stays_unknown(sandbox):
    ends = ADD.model_copy(update={"setup": "import os; os.abort()"})
    sends = PythonTask.from_asserts(["add"], ["assert add(1, 2) == 3", "add(print, 1)"])
    right, wrong = "def add(a, b): return a + b", "def add(a, b): return 0"
    ended, unsent, failed = grade_python(sandbox, [(right, ends), (right, sends), (wrong, sends)])
    assert (ended.passed, outcomes(ended)) == (None, ["error", "error"])
    assert (unsent.passed, outcomes(unsent)) == (None, ["passed", "error"])
    assert (failed.passed, outcomes(failed)) == (
        False,
        ["failed", "error"],
    )  # unknown is no better than failed
    assert failed.reason.startswith("assert 1: failed")


VALUES = [
    *(None, True, 0, -5, 2**63, -(10**5000), 0.1, -0.0, math.inf, 1e308, 2 + 3j, "a\0é\ud800", b"\xff"),
    *([1, [2]], (1, (2,)), {1, 2}, frozenset({(1,)}), {(1, 2): [3], "k": {None: set()}}, [], (), {}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: str(type(v).__name__))
def test_plain_values_come_back_as_they_were(value):
    back = decode(encode(value))
    assert type(back) is type(value)
    assert back == value
    if isinstance(value, float):
        assert math.copysign(1, back) == math.copysign(1, value)


def test_what_is_not_plain_does_not_cross():
    class Equal(list):
        def __eq__(self, other):
            return True

        __hash__ = None

    assert type(decode(encode(Equal([1])))) is list
    assert math.isnan(decode(encode(math.nan)))
    deep: list = []
    for _ in range(200):
        deep = [deep]
    for value in (object(), lambda: 0, deep, range(3)):
        with pytest.raises(WireError):
            encode(value)
    for data in ({"eval": "1"}, {"int": "x"}, {"set": [[]]}, {"a": 1, "b": 2}, {"tuple": 3}, {"dict": [1]}):
        with pytest.raises(WireError):
            decode(data)


def test_outcomes_that_say_nothing_are_named():
    assert [o for o in TestOutcome if not o.known] == [TestOutcome.ERROR, TestOutcome.SANDBOX_FAILURE]
