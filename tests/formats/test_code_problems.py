"""Programming problems keep visible and hidden tests apart, and prompts have no hidden one."""

from __future__ import annotations

import json

import pytest

from surefoot import CodeTask, Problem
from surefoot.errors import RecordError
from surefoot.formats import read_humaneval, read_mbpp, read_mbpp_check
from surefoot.policies.prompts import PromptFormat

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "from typing import List\n\ndef helper(x):\n    return x + 1\n\n\n"
    "def add(a: int, b: int) -> int:\n"
    '    """Add.\n    >>> add(1, 2)\n    3\n'
    '    add(2, 2) == 4, of course\n    add(x, 2) is not one\n    """\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "META = {}\n\ndef check(candidate):\n    # simple\n    assert candidate(7, 8) == 15\n"
    "    assert True, 'good'\n    assert candidate(helper(4), -5) == 0, 'wrong'\n",
}
MBPP = {
    "task_id": 7,
    "text": "Write a function to double.",
    "code": "import math\ndef double(x):\n    return 2 * x",
    "test_list": ["assert double(1) == 2", "assert double(21) == 42"],
    "test_setup_code": "",
    "challenge_test_list": ["assert double(-3) == -6"],
}


def written(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def codes(problem, visibility):
    return [test.code for test in CodeTask.of(problem).that_are(visibility)]


def test_humaneval(tmp_path):
    [problem] = read_humaneval(written(tmp_path, HUMANEVAL))
    assert (problem.id, problem.text, problem.source) == ("HumanEval/0", HUMANEVAL["prompt"], "humaneval")
    assert codes(problem, "visible") == ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]
    assert codes(problem, "hidden") == [
        "assert candidate(7, 8) == 15",
        "assert candidate(helper(4), -5) == 0, 'wrong'",
    ]
    task = CodeTask.of(problem)
    assert (task.prompt, task.reference) == (HUMANEVAL["prompt"], "    return a + b\n")
    names: dict[str, object] = {}
    exec(task.setup, names)  # the tests' own text  # noqa: S102
    assert names["helper"](4) == 5
    assert "add" not in names


def test_a_check_with_more_than_assertions_is_one_test(tmp_path):
    row = HUMANEVAL | {
        "test": "def check(candidate):\n    for a in (1, 2):\n        assert candidate(a, 1) == a + 1\n"
    }
    [problem] = read_humaneval(written(tmp_path, row))
    assert codes(problem, "hidden") == ["_check(candidate)"]
    assert "def check" in CodeTask.of(problem).setup


def test_mbpp(tmp_path):
    [problem] = read_mbpp(written(tmp_path, MBPP))
    assert problem.id == "MBPP/7"
    assert codes(problem, "visible") == ["assert double(1) == 2"]
    assert codes(problem, "hidden") == ["assert double(21) == 42", "assert double(-3) == -6"]
    assert CodeTask.of(problem).entry_point == "double"


MBPP_CHECK = {
    "task_id": "MBPP/7",
    "prompt": '\n\ndef double(x):\n\t"""\n\tDouble.\n\t>>> double(1)\n\t2\n\t>>> double(21)\n\t42\n\t"""\n',
    "entry_point": "double",
    "canonical_solution": "\treturn 2 * x",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(21) == 42\n",
}


def test_mbpp_in_humaneval_form_shows_one_example(tmp_path):
    [problem] = read_mbpp_check(written(tmp_path, MBPP_CHECK))
    assert problem.text == '\n\ndef double(x):\n\t"""\n\tDouble.\n\t>>> double(1)\n\t2\n\t"""\n'
    assert codes(problem, "visible") == ["assert candidate(1) == 2"]
    assert codes(problem, "hidden") == ["assert candidate(21) == 42"]


@pytest.mark.parametrize(
    ("read", "row"), [(read_humaneval, HUMANEVAL), (read_mbpp, MBPP), (read_mbpp_check, MBPP_CHECK)]
)
def test_no_prompt_has_a_hidden_test_or_the_reference(tmp_path, read, row):
    [problem] = read(written(tmp_path, row))
    task = CodeTask.of(problem)
    for chat in (False, True):
        prompt = str(PromptFormat(chat=chat).render(problem))
        for test in task.that_are("hidden"):
            call = test.code.removeprefix("assert ").split(" == ")[0].replace("candidate", task.entry_point)
            assert call not in prompt
        assert task.reference.strip().splitlines()[-1] not in prompt


@pytest.mark.parametrize(
    ("read", "row", "message"),
    [
        (read_humaneval, HUMANEVAL | {"test": "x = 1"}, "does not define 'check'"),
        (read_humaneval, HUMANEVAL | {"language": "java"}, "only Python"),
        (read_humaneval, HUMANEVAL | {"prompt": "def f(:"}, "not a Python program"),
        (read_mbpp, MBPP | {"test_list": []}, "is empty"),
        (read_mbpp, MBPP | {"code": "x = 1"}, "calls no function"),
    ],
)
def test_bad_rows_are_named(tmp_path, read, row, message):
    with pytest.raises(RecordError, match=message):
        list(read(written(tmp_path, row)))


def test_a_problem_without_tests_has_no_code():
    assert CodeTask.of(Problem(text="1 + 1?", answer="2")) is None
