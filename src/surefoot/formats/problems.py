"""Problems with reference answers, GSM8K and MATH-500, and with tests, HumanEval and MBPP.

A hidden test is one that the problem's text does not show. Hidden tests are separate fields of the record
(:class:`surefoot.records.CodeTask`), so no prompt contains them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, TraceBuilder, joined_trace, reader_of
from surefoot.protocols import ProblemTrace
from surefoot.records import CodeTask, CodeTest, Problem

_MARK = "####"
_CALCULATOR = re.compile(r"<<[^<>]*>>")


class _GSM8KRow(FileRow):
    """GSM8K (Cobbe et al., arXiv 2110.14168): ``answer`` is the worked solution, ``####`` and the number."""

    question: str
    answer: str


@reader_of(_GSM8KRow)
def read_gsm8k(row: _GSM8KRow, _: TraceBuilder) -> Problem:
    """Problems with their final answer (without commas); ``meta["solution"]`` is the worked solution."""
    return _gsm8k_problem(row)


@reader_of(_GSM8KRow)
def read_gsm8k_solutions(row: _GSM8KRow, _: TraceBuilder) -> ProblemTrace:
    """The worked solutions as traces, one step per line, without the ``<<…>>`` calculator marks.

    The last step is the line with the answer.
    """
    problem = _gsm8k_problem(row)
    lines = _CALCULATOR.sub("", row.answer).split("\n")
    trace = joined_trace(problem, lines, "\n", answer=problem.answer, outcome=True, policy="human")
    return ProblemTrace(problem=problem, trace=trace)


def _gsm8k_problem(row: _GSM8KRow) -> Problem:
    worked, mark, answer = row.answer.rpartition(_MARK)
    answer = answer.strip().replace(",", "")
    if not mark or not answer:
        raise RecordError(f"field 'answer': no final answer after '{_MARK}'")
    return Problem(text=row.question, answer=answer, source="gsm8k", meta={"solution": worked.rstrip("\n")})


class _MATH500Row(FileRow):
    """MATH-500: the 500 test problems of Lightman et al. (arXiv 2305.20050) from MATH (arXiv 2103.03874)."""

    problem: str
    answer: str
    solution: str | None = None
    level: str | int | None = None
    subject: str | None = None
    unique_id: str | None = None


@reader_of(_MATH500Row)
def read_math500(row: _MATH500Row, _: TraceBuilder) -> Problem:
    """Problems with answers; ``meta`` holds level, subject, unique_id and solution where the row has them."""
    meta = row.model_dump(include={"level", "subject", "unique_id", "solution"}, exclude_none=True)
    return Problem(text=row.problem, answer=row.answer, source="math500", meta=meta)


class _CheckRow(FileRow):
    """HumanEval (Chen et al., arXiv 2107.03374); MXEval has MBPP in this form (arXiv 2210.14868)."""

    task_id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str | None = None
    language: str = "python"
    description: str | None = None


@reader_of(_CheckRow)
def read_humaneval(row: _CheckRow, _: TraceBuilder) -> Problem:
    """Problems in HumanEval's form, with the data set's ids; the text is the beginning of a program.

    The docstring's examples are the visible tests. If ``check`` consists of assertions, each is a hidden
    test, else the whole function is one. Some hidden tests repeat an example, as in the data set.
    """
    visible = _tests("example", "visible", _examples(row.prompt, row.entry_point))
    return _problem(row, row.prompt, "humaneval", visible, excluded=[])


@reader_of(_CheckRow)
def read_mbpp_check(row: _CheckRow, _: TraceBuilder) -> Problem:
    """MBPP in HumanEval's form (MXEval). Its docstrings show all tests; here they show only the first.

    The first example is the visible test; the other assertions are hidden.
    """
    asserts = _asserts(row.test)
    if not asserts:
        raise RecordError("field 'test': 'check' is not a list of assertions")
    visible = _tests("example", "visible", asserts[:1])
    return _problem(row, _first_example(row.prompt), "mbpp", visible, excluded=asserts[:1])


class _MBPPRow(FileRow):
    """MBPP (Austin et al., arXiv 2108.07732)."""

    task_id: int
    text: str
    code: str
    test_list: list[str]
    test_setup_code: str = ""
    challenge_test_list: tuple[str, ...] | list[str] = ()


@reader_of(_MBPPRow)
def read_mbpp(row: _MBPPRow, _: TraceBuilder) -> Problem:
    """Problems of MBPP. The text shows the first of ``test_list``, which is visible; the others are
    hidden."""
    if not row.test_list:
        raise RecordError("field 'test_list': is empty")
    defined = [node.name for node in _module(row.code).body if isinstance(node, ast.FunctionDef)]
    called = [name for name in defined if re.search(rf"\b{name}\s*\(", row.test_list[0])]
    if not called:
        raise RecordError("field 'test_list': the first test calls no function of 'code'")
    first, hidden = row.test_list[0], [*row.test_list[1:], *row.challenge_test_list]
    tests = _tests("example", "visible", [first])
    tests += [test for test in _tests("assert", "hidden", dict.fromkeys(hidden)) if test.code != first]
    task = CodeTask(entry_point=called[0], setup=row.test_setup_code, tests=tuple(tests), reference=row.code)
    text = f"{row.text}\nYour code should pass this test:\n{first}"
    meta = {"code": task.model_dump(mode="json")}
    return Problem(id=f"MBPP/{row.task_id}", text=text, source="mbpp", meta=meta)


def _tests(name: str, visibility: Literal["visible", "hidden"], codes: Iterable[str]) -> list[CodeTest]:
    return [
        CodeTest(name=f"{name} {number}", code=code, visibility=visibility)
        for number, code in enumerate(codes, start=1)
    ]


def _problem(
    row: _CheckRow, prompt: str, source: str, visible: list[CodeTest], excluded: Sequence[str]
) -> Problem:
    if row.language != "python":
        raise RecordError(f"field 'language': {row.language!r}, but only Python is run")
    asserts = [code for code in _asserts(row.test) if code not in excluded]
    preamble, setup = _helpers(prompt, row.entry_point), row.test
    hidden = _tests("assert", "hidden", asserts)
    if asserts or excluded:
        setup = _helpers(row.test, "check")
    else:
        setup += "\n_check = check\n"  # the program's function may also be named check
        hidden = [CodeTest(name="check", code="_check(candidate)", visibility="hidden")]
    task = CodeTask(
        entry_point=row.entry_point,
        prompt=prompt,
        setup=f"{preamble}\n{setup}",
        tests=(*visible, *hidden),
        reference=row.canonical_solution,
    )
    return Problem(id=row.task_id, text=prompt, source=source, meta={"code": task.model_dump(mode="json")})


def _module(text: str) -> ast.Module:
    """Parse a program, or the beginning of one, whose last function may lack a body."""
    try:
        return ast.parse(text)
    except SyntaxError:
        try:
            return ast.parse(f"{text.rstrip()}\n    ...\n")
        except SyntaxError as error:
            raise RecordError(f"not a Python program: {error}") from error


def _helpers(text: str, without: str) -> str:
    """The program without the function ``without``: helpers that the tests need."""
    nodes = [node for node in _module(text).body if getattr(node, "name", None) != without]
    return "\n".join(map(ast.unparse, nodes))


def _asserts(test: str) -> list[str]:
    """The assertions of ``def check(candidate)``; none if it contains any other statement."""
    tree = _module(test)
    check = next(
        (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"), None
    )
    if check is None:
        raise RecordError("field 'test': it does not define 'check'")
    body = [node for node in check.body if not isinstance(node, ast.Pass)]
    docs = [node for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    body = [node for node in body if node not in docs]
    asserts = [node for node in body if isinstance(node, ast.Assert)]
    stated = (ast.unparse(node) for node in asserts if not isinstance(node.test, ast.Constant))
    return list(dict.fromkeys(stated)) if len(asserts) == len(body) else []


_DOCTEST = re.compile(r"^[ \t]*>>>.*$")
_RESULT = re.compile(r"\s*(?:==|=>|=|➞|->|→|➔|returns?:?|should return:?|#\s*(?:returns)?)\s*(\S.*)")

_CONTINUES = re.compile(r"[\w\"']|\s*[-+*/%=<>(\[]")


def _examples(prompt: str, entry_point: str) -> list[str]:
    """Assertions for the docstring's examples, in the forms that occur in HumanEval."""
    functions = [node for node in _module(prompt).body if isinstance(node, ast.FunctionDef)]
    doc = next((ast.get_docstring(node) or "" for node in functions if node.name == entry_point), "")
    lines, asserts = doc.splitlines(), []
    for number, line in enumerate(lines):
        at = line.find(f"{entry_point}(")
        call = _longest(line[at:], ast.Call) if at >= 0 else None
        if call is None:
            continue
        tail = line[at + len(call) :]
        stated = _RESULT.match(tail)
        following = (
            lines[number + 1] if ">>>" in line and not tail.strip() and number + 1 < len(lines) else None
        )
        result = (stated[1] if stated else following or "").strip()
        value = _longest(result, None)
        # "== 1 + 9 = 10" and similar lines state more than a value
        if value is not None and not _CONTINUES.match(result[len(value) :]):
            asserts.append(f"assert {call} == {value}")
    return list(dict.fromkeys(asserts))


def _longest(text: str, kind: type[ast.expr] | None) -> str | None:
    """The longest prefix of ``text`` that is a plain value, or a ``kind`` with plain arguments."""
    for end in range(len(text), 0, -1):
        if text[end - 1].isspace() or text[end - 1] == ",":
            continue
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            tree = ast.parse(text[:end], mode="eval").body
            for value in [tree] if kind is None else getattr(tree, "args", []):
                ast.literal_eval(value)  # raises for anything but a literal
            if kind is None or isinstance(tree, kind):
                return text[:end]
    return None


def _first_example(prompt: str) -> str:
    """The prompt without its ``>>>`` examples after the first."""
    lines, examples, inside = [], 0, False
    for line in prompt.splitlines(keepends=True):
        if _DOCTEST.match(line.rstrip("\n")):
            examples += 1
            inside = examples > 1
        elif '"""' in line or "'''" in line:
            inside = False
        if not inside:
            lines.append(line)
    return "".join(lines)
