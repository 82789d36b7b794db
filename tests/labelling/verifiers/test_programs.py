"""Programs checked by parsing and running: against faults whose lines are known."""

from __future__ import annotations

import asyncio
from ast import literal_eval
from collections.abc import Iterator

import pytest

from surefoot import CodeTask, Problem, StepLabel, Trace
from surefoot.errors import SandboxError
from surefoot.labelling import VerifierLabeller
from surefoot.labelling.verifiers import tracer
from surefoot.labelling.verifiers.execution_trace import ExecutionTraceVerifier
from surefoot.labelling.verifiers.programs import LIMITS, CompileVerifier, PythonTestsVerifier, TraceProgram
from surefoot.protocols import ProblemTrace, StepVerifier
from surefoot.sandbox import BubblewrapSandbox, Limits, open_sandbox
from surefoot.segment import segment_trace, segmenter

PROMPT = 'def total(numbers, least):\n    """Sum of the numbers above least."""\n'
REFERENCE = """\
    result = 0
    for number in numbers:
        if number > least:
            result += number
    return result
"""


RENAMED = REFERENCE.replace("result", "acc").replace("number ", "one ").replace("+= number", "+= one")


def check(code: str) -> dict[str, str]:
    return {"name": code, "code": f"assert {code}", "visibility": "hidden"}


PROBLEM = Problem(
    id="total",
    text=PROMPT,
    meta={
        "code": {
            "entry_point": "total",
            "prompt": PROMPT,
            "reference": REFERENCE,
            "tests": [
                check("candidate([1, 2, 3], 1) == 5"),
                check("total([], 0) == 0"),
                check("total([4], 9) == 0"),
            ],
        }
    },
)


def item(text: str, cut: str = "python") -> ProblemTrace:
    return ProblemTrace(
        problem=PROBLEM, trace=segment_trace(Trace(problem_id="total", text=text), segmenter(cut))
    )


def values(verifier: StepVerifier, text: str, cut: str = "python") -> list[int | None]:
    [verdicts] = verifier.verify([item(text, cut)])
    return [verdict.value for verdict in verdicts]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[BubblewrapSandbox]:
    try:
        box = open_sandbox("bubblewrap", concurrency=2)
    except SandboxError as missing:
        pytest.skip(str(missing))
    with box:
        yield box


def test_compile_names_the_step_that_breaks_the_program():
    assert values(CompileVerifier(), REFERENCE) == [1, 1, 1, 1, 1]
    assert values(CompileVerifier(), REFERENCE.replace("+= number", "+= (number")) == [1, 1, 1, -1, None]
    # cut off in the middle
    assert values(CompileVerifier(), "    result = 0\n    for number in numbers:\n") == [1, -1]
    assert values(CompileVerifier(), "    result = 0\n    break\n    return 1\n") == [1, -1, None]
    assert values(CompileVerifier(), "    " + "(" * 10_000) == [-1]


def test_a_program_with_prose_has_lines_of_its_steps():
    text = "We add.\n\n```python\ndef total(numbers, least):\n    return sum(numbers)\n```\nDone.\n"
    program = TraceProgram.of(item(text, "prose-and-code").trace, CodeTask.of(PROBLEM))
    assert program.text == PROMPT + "    ...\ndef total(numbers, least):\n    return sum(numbers)\n"
    assert program.steps == (None, None, None, 1, 2)
    assert values(CompileVerifier(), text, "prose-and-code") == [1, 1, 1, 1]


def test_the_tests_decide_on_the_whole(sandbox):
    verifier = PythonTestsVerifier(sandbox)
    assert values(verifier, REFERENCE) == [1, 1, 1, 1, 1]
    [verdicts] = verifier.verify([item(REFERENCE.replace(">", ">="))])
    assert [verdict.value for verdict in verdicts] == [None, None, None, None, -1]
    assert "candidate([1, 2, 3], 1) == 5" in verdicts[-1].reason
    assert values(verifier, "    import os\n    os._exit(0)\n") == [None, -1]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (REFERENCE, [1, 1, 1, 1, 1]),
        (REFERENCE.replace("result = 0", "result = 1"), [-1, None, None, None, None]),
        (REFERENCE.replace("in numbers:", "in numbers[:1]:"), [1, -1, None, None, None]),
        (REFERENCE.replace(">", ">="), [1, 1, -1, None, None]),
        (REFERENCE.replace("+=", "-="), [1, 1, 1, -1, None]),
        (REFERENCE.replace("+= number", "+= numbr"), [1, 1, 1, -1, None]),
        (REFERENCE.replace("return result", "return least"), [1, 1, 1, 1, -1]),
        (REFERENCE.replace("result += number", "pass"), [1, 1, 1, -1, None]),
        # other names, and another form
        (RENAMED.replace(">", ">="), [1, 1, -1, None, None]),
        (RENAMED.replace("acc = 0", "acc = 1"), [-1, None, None, None, None]),
        (RENAMED.replace("+= one", "+= least"), [1, 1, 1, -1, None]),
        (RENAMED.replace("return acc", "return one"), [1, 1, 1, 1, -1]),
        (RENAMED, [1, 1, 1, 1, 1]),
        # a missing statement is missing before the step that cannot do without it
        (REFERENCE.replace("    result = 0\n", ""), [-1, None, None, None]),
        ("    it = 7\n    return nothing(it)\n", [None, -1]),
        ("    return 1 + sum(n for n in numbers if n > least)\n", [-1]),
        # what runs like no program that passes
        ("    it = 7\n    return it.real.nothing\n", [None, None]),
        ("    pass\n", [None]),
        ("    x = (\n", [-1]),
    ],
)
def test_the_first_line_that_parts_from_the_reference(sandbox, wrong, expected):
    assert values(ExecutionTraceVerifier(sandbox), wrong) == expected


@pytest.mark.parametrize("blank", ["", "\n", "\n\n\n"])
@pytest.mark.parametrize(
    ("before", "line", "after"),
    [
        (REFERENCE, "import nosuchmodule\n", ""),
        (REFERENCE + "\nz = 1\n", "print(z + missing)\n", ""),
        ("", "import nowhere\n", "\ndef total(numbers, least):\n    x = 0\n\n    return x\n"),
    ],
)
def test_the_line_that_keeps_the_program_from_loading_is_blamed(sandbox, before, blank, line, after):
    """The text that runs has no empty lines, so its lines have other numbers than the trace's."""
    text = before + (blank if before else "") + line + blank + after
    checked = item(text)
    [verdicts] = ExecutionTraceVerifier(sandbox).verify([checked])
    [wrong] = [number for number, verdict in enumerate(verdicts) if verdict.value == -1]
    assert checked.trace.step_text(wrong).strip() == line.strip()
    source = TraceProgram.of(checked.trace, CodeTask.of(PROBLEM)).text.split("\n")
    assert source[verdicts[wrong].execution.line - 1] == line.strip()


def test_the_blamed_step_has_the_repair_and_a_call_that_fails(sandbox):
    [verdicts] = ExecutionTraceVerifier(sandbox).verify([item(REFERENCE.replace("+=", "-="))])
    assert [step for step, verdict in enumerate(verdicts) if verdict.execution] == [3]
    why = verdicts[3].execution
    assert (why.test, why.call) == ("candidate([1, 2, 3], 1) == 5", "total([1, 2, 3], 1)")
    assert (why.result, why.expected, why.raised) == ("-5", "5", None)
    changed = [line.replace(" ", "") for line in why.repair.split("\n") if line[0] in "+-"]
    assert changed == ["-result-=number", "+result+=number"]
    assert len(why.repair.split("\n")) > 2, "with the lines around it"


def test_errors_are_shown_in_words(sandbox):
    [other] = ExecutionTraceVerifier(sandbox).verify([item("    it = 7\n    return it.real.nothing\n")])
    assert other[1].execution.raised == "AttributeError: 'int' object has no attribute 'nothing'"
    assert other[1].execution.repair is None
    added = REFERENCE.replace("    for", "    more = 1\n    more = numbers[99]\n    for")
    [verdicts] = ExecutionTraceVerifier(sandbox).verify([item(added)])
    assert verdicts[2].execution.raised == "IndexError: list index out of range"
    [broken] = ExecutionTraceVerifier(sandbox).verify([item("    x = (\n")])
    assert (broken[0].execution.raised, broken[0].execution.line) == (
        "SyntaxError: '(' was never closed (solution.py, line 3)",
        3,
    )


def test_what_people_see_of_a_run_is_bounded_and_is_read_back(sandbox):
    long = "    many = ['\\ud800' * 300] * 5\n    for n in range(900):\n        m = n\n    return m.real.no\n"
    verifier = ExecutionTraceVerifier(sandbox, limits=Limits(wall_s=120, cpu_s=60))
    found = asyncio.run(VerifierLabeller(verifiers=(verifier,)).label([item(long)]))
    [label] = [label for label in found[0] if label.evidence.execution]
    assert len(label.model_dump_json()) < 6_000
    assert StepLabel.model_validate_json(label.model_dump_json()) == label


def test_a_call_in_between_is_not_blamed(sandbox):
    helper = "    return helper(numbers[0]) + 1\n\ndef helper(x):\n    y = x + 1\n    return y\n"
    meta = {"code": PROBLEM.meta["code"] | {"reference": helper, "tests": [check("candidate([1], 0) == 3")]}}
    problem = Problem(id="helped", text=PROMPT, meta=meta)
    trace = Trace(problem_id="helped", text=helper.replace("+ 1\n\n", "+ 2\n\n"))
    [verdicts] = ExecutionTraceVerifier(sandbox).verify(
        [ProblemTrace(problem=problem, trace=segment_trace(trace, segmenter("python")))]
    )
    assert [verdict.value for verdict in verdicts] == [-1, None, None, None]


@pytest.mark.parametrize(
    "forged",
    [
        '    import os\n    os.write(1, b\'{"calls": [], "load": null}\')\n    os._exit(0)\n',
        "    import sys\n    sys.settrace(None)\n    return 5\n",
        "    import sys\n    sys._getframe(1).f_globals.clear()\n    return 5\n",
    ],
)
def test_a_program_that_forges_its_trace_does_not_pass(sandbox, forged):
    assert 1 not in values(ExecutionTraceVerifier(sandbox), forged)[-1:]


def test_what_has_no_tests_or_an_error_in_them(sandbox):
    other = ProblemTrace(problem=Problem(id="p", text="1 + 1?"), trace=item(REFERENCE).trace)
    for verifier in (CompileVerifier(), PythonTestsVerifier(sandbox), ExecutionTraceVerifier(sandbox)):
        [verdicts] = verifier.verify([other])
        assert {verdict.value for verdict in verdicts} == {None}
        assert verdicts[0].reason == "the problem lacks a program's tests in meta['code']"


def test_the_lowest_verdict_counts(sandbox):
    verifiers = (CompileVerifier(), ExecutionTraceVerifier(sandbox))
    labeller = VerifierLabeller(verifiers=verifiers)
    [labels] = asyncio.run(labeller.label([item(REFERENCE.replace(">", ">="))]))
    assert [label.value for label in labels] == [1, 1, -1, 1, 1]
    assert labels[2].evidence.rater == "execution-trace"
    assert "line 5: " in labels[2].evidence.message


def test_recursion_and_loops_without_end(sandbox):
    fib = "    if n < 2:\n        return n\n"
    fib += "    a = total(n - 1, 0)\n    b = total(n - 2, 0)\n    return a + b\n"
    prompt = "def total(n, least):\n"
    code = PROBLEM.meta["code"] | {
        "prompt": prompt,
        "reference": fib,
        "tests": [check("candidate(6, 0) == 8")],
    }
    problem = Problem(id="fib", text=prompt, meta={"code": code})
    wrong = [
        fib.replace("n - 2", "n - 3"),
        "    if n < 2:\n        return n\n    while True:\n        n += 1\n",
    ]
    traces = [segment_trace(Trace(problem_id="fib", text=text), segmenter("python")) for text in wrong]
    rows = ExecutionTraceVerifier(sandbox, limits=LIMITS.model_copy(update={"wall_s": 0.5})).verify(
        [ProblemTrace(problem=problem, trace=one) for one in traces]
    )
    assert [verdict.value for verdict in rows[0]] == [1, 1, 1, -1, None]
    assert [verdict.value for verdict in rows[1]] == [None] * 4


@pytest.mark.parametrize(
    "value", [1, [], [1, "a"], (), (1,), (1, 2), {}, {"a": [1], 2: None}, {3}, [{(1, 2)}, {2: (3,)}]]
)
def test_plain_values_are_written_as_in_python(value):
    assert literal_eval(tracer.shown(value)) == value
    assert type(literal_eval(tracer.shown(value))) is type(value)


def test_empty_and_frozen_sets_can_be_told_apart():
    texts = [
        tracer.shown(value) for value in (set(), frozenset(), frozenset({1}), frozenset({(1, 2)}), {1}, {})
    ]
    assert texts == ["set()", "frozenset()", "frozenset({1})", "frozenset({(1, 2)})", "{1}", "{}"]
