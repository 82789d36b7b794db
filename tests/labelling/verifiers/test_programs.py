"""Programs checked by parsing and running: against faults whose lines are known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from surefoot import CodeTask, Problem, StepLabel, Trace
from surefoot.errors import SandboxError
from surefoot.labelling import VerifierLabeller
from surefoot.labelling.verifiers.programs import LIMITS, CompileVerifier, PythonTestsVerifier, TraceProgram
from surefoot.labelling.verifiers.repairs import RepairVerifier
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
        ("    return 1 + sum(n for n in numbers if n > least)\n", [None]),
        # what runs like no program that passes
        ("    it = 7\n    return it.real.nothing\n", [None, None]),
        ("    pass\n", [None]),
        ("    x = (\n", [-1]),
    ],
)
def test_the_line_whose_repair_makes_the_tests_pass(sandbox, wrong, expected):
    assert values(RepairVerifier(sandbox), wrong) == expected


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
    """The text that is aligned has no empty lines, so its lines have other numbers than the trace's."""
    text = before + (blank if before else "") + line + blank + after
    checked = item(text)
    [verdicts] = RepairVerifier(sandbox).verify([checked])
    [wrong] = [number for number, verdict in enumerate(verdicts) if verdict.value == -1]
    assert checked.trace.step_text(wrong).strip() == line.strip()
    source = TraceProgram.of(checked.trace, CodeTask.of(PROBLEM)).text.split("\n")
    number = int(verdicts[wrong].reason.removeprefix("line ").partition(":")[0])
    assert source[number - 1] == line.strip()
    assert verdicts[wrong].execution.result.startswith("load_error: ")


def test_the_blamed_step_has_the_repair_and_a_test_that_fails(sandbox):
    [verdicts] = RepairVerifier(sandbox).verify([item(REFERENCE.replace("+=", "-="))])
    assert [step for step, verdict in enumerate(verdicts) if verdict.execution] == [3]
    why = verdicts[3].execution
    assert (why.test, why.result) == ("assert candidate([1, 2, 3], 1) == 5", "failed: AssertionError")
    changed = [line.replace(" ", "") for line in why.repair.split("\n") if line[0] in "+-"]
    assert changed == ["-result-=number", "+result+=number"]
    assert len(why.repair.split("\n")) > 2, "with the lines around it"


def test_errors_are_shown_in_words(sandbox):
    [other] = RepairVerifier(sandbox).verify([item("    it = 7\n    return it.real.nothing\n")])
    assert other[1].execution.result == "raised: AttributeError: 'int' object has no attribute 'nothing'"
    assert other[1].execution.repair is None
    added = REFERENCE.replace("    for", "    more = 1\n    more = numbers[99]\n    for")
    [verdicts] = RepairVerifier(sandbox).verify([item(added)])
    assert verdicts[2].execution.result == "raised: IndexError: list index out of range"
    [broken] = RepairVerifier(sandbox).verify([item("    x = (\n")])
    assert broken[0].execution.result.startswith("load_error: SyntaxError: '(' was never closed")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("    import os.nothing\n    return 0\n", [-1, None]),
        ("    it = 7\n    from os import nothing\n    return it\n", [None, -1, None]),
        # where the name is defined, that it lacks a value is no fault of the first line that reads it
        ("    return later\n\nif not total:\n    later = 1\n", [None, None, None]),
        # a test raised what the program says, and the program reads no such name
        ("    it = 7\n    raise NameError(\"name 'other' is not defined\")\n", [None, None]),
    ],
)
def test_a_name_or_module_that_does_not_exist(sandbox, wrong, expected):
    assert values(RepairVerifier(sandbox), wrong) == expected


def test_what_people_see_of_a_run_is_bounded_and_is_read_back(sandbox):
    long = "    many = ['\\ud800' * 300] * 5\n    for n in range(900):\n        m = n\n    return m.real.no\n"
    verifier = RepairVerifier(sandbox, limits=Limits(wall_s=120, cpu_s=60))
    found = asyncio.run(VerifierLabeller(verifiers=(verifier,)).label([item(long)]))
    [label] = [label for label in found[0] if label.evidence.execution]
    assert len(label.model_dump_json()) < 6_000
    assert StepLabel.model_validate_json(label.model_dump_json()) == label


def test_a_call_in_between_is_not_blamed(sandbox):
    helper = "    return helper(numbers[0]) + 1\n\ndef helper(x):\n    y = x + 1\n    return y\n"
    meta = {"code": PROBLEM.meta["code"] | {"reference": helper, "tests": [check("candidate([1], 0) == 3")]}}
    problem = Problem(id="helped", text=PROMPT, meta=meta)
    trace = Trace(problem_id="helped", text=helper.replace("+ 1\n\n", "+ 2\n\n"))
    [verdicts] = RepairVerifier(sandbox).verify(
        [ProblemTrace(problem=problem, trace=segment_trace(trace, segmenter("python")))]
    )
    assert [verdict.value for verdict in verdicts] == [-1, None, None, None]


def test_what_has_no_tests_or_an_error_in_them(sandbox):
    other = ProblemTrace(problem=Problem(id="p", text="1 + 1?"), trace=item(REFERENCE).trace)
    for verifier in (CompileVerifier(), PythonTestsVerifier(sandbox), RepairVerifier(sandbox)):
        [verdicts] = verifier.verify([other])
        assert {verdict.value for verdict in verdicts} == {None}
        assert verdicts[0].reason == "the problem lacks a program's tests in meta['code']"


def test_the_lowest_verdict_counts(sandbox):
    verifiers = (CompileVerifier(), RepairVerifier(sandbox))
    labeller = VerifierLabeller(verifiers=verifiers)
    [labels] = asyncio.run(labeller.label([item(REFERENCE.replace(">", ">="))]))
    assert [label.value for label in labels] == [1, 1, -1, 1, 1]
    assert labels[2].evidence.rater == "repair"
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
    rows = RepairVerifier(sandbox, limits=LIMITS.model_copy(update={"wall_s": 0.5})).verify(
        [ProblemTrace(problem=problem, trace=one) for one in traces]
    )
    assert [verdict.value for verdict in rows[0]] == [1, 1, 1, -1, None]
    assert [verdict.value for verdict in rows[1]] == [None] * 4
