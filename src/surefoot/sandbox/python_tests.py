"""Python graded by tests: the tests run in one process and call the candidate in another, each in its own
isolation.

All that comes from the candidate's process is plain values (``inside/wire.py``). It never holds the tests,
so it can neither find, nor change, nor answer for them; the verdict leaves on a channel that only the tests'
process has.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from surefoot.records import FrozenModel
from surefoot.sandbox.protocol import Ending, Limits, Program, ProgramResult, Sandbox

_MARGIN_S = 1.0
"""Seconds that the tests' process has beyond the candidate's, to say that the candidate took too long."""


class TestOutcome(StrEnum):
    """Outcome of one test."""

    PASSED = "passed"
    FAILED = "failed"
    """The test's assertion does not hold, or the test raised on what the candidate returned."""
    RAISED = "raised"
    """The candidate raised an exception, or returned a value that is not plain."""
    LOAD_ERROR = "load_error"
    """The candidate does not compile, or raised while it was loaded."""
    CRASHED = "crashed"
    """The candidate's process exited or was killed by a signal, or broke the channel."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    NOT_RUN = "not_run"
    """A test before it ended the candidate's process."""
    ERROR = "error"
    """The test itself is broken; the outcome says nothing about the candidate."""
    SANDBOX_FAILURE = "sandbox_failure"
    """The sandbox failed; the outcome says nothing about the candidate."""

    @property
    def known(self) -> bool:
        """Whether it says something about the candidate."""
        return self not in (TestOutcome.ERROR, TestOutcome.SANDBOX_FAILURE)


TestOutcome.__test__ = False  # type: ignore[attr-defined]  # pytest must not collect it


class NamedTest(FrozenModel):
    """Statements that raise where the candidate is wrong."""

    name: str = Field(min_length=1)
    code: str


class PythonTask(FrozenModel):
    """What a Python program has to do: the functions that the tests call, and the tests.

    ``setup`` is trusted text, run before the tests and apart from the candidate: imports, helpers, ``def
    check``. In the tests, each of ``entry_points`` is the candidate's function, and ``candidate`` is the
    first of them.
    """

    entry_points: tuple[str, ...] = Field(min_length=1)
    tests: tuple[NamedTest, ...] = Field(min_length=1)
    setup: str = ""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = Counter(test.name for test in self.tests)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"'tests' has the name {twice[0]!r} more than once")
        return self

    @classmethod
    def from_check(cls, entry_point: str, check: str, *, prompt: str = "") -> Self:
        """A task in HumanEval's form: ``check`` defines ``check(candidate)``; helpers are in ``prompt``."""
        return cls(
            entry_points=(entry_point,),
            setup=f"{_complete(prompt)}\n{check}\n_check = check",  # an entry point may be called check, too
            tests=(NamedTest(name="check", code="_check(candidate)"),),
        )

    @classmethod
    def from_asserts(cls, entry_points: Sequence[str], asserts: Sequence[str], *, setup: str = "") -> Self:
        """A task in MBPP's form: each of ``asserts`` is a test, named by its place."""
        tests = tuple(NamedTest(name=f"assert {at + 1}", code=code) for at, code in enumerate(asserts))
        return cls(entry_points=tuple(entry_points), setup=setup, tests=tests)


def _complete(prompt: str) -> str:
    """A prompt as a module: its last function may lack a body."""
    try:
        ast.parse(prompt)
    except SyntaxError:
        return f"{prompt.rstrip()}\n    ...\n"
    return prompt


class TestVerdict(FrozenModel):
    """Outcome of one test, and why."""

    __test__: ClassVar[bool] = False

    name: str
    outcome: TestOutcome
    reason: str = ""


class TaskVerdict(FrozenModel):
    """Outcomes of all tests of one candidate."""

    tests: tuple[TestVerdict, ...]

    @property
    def passed(self) -> bool | None:
        """Whether all tests passed, so not if one failed; ``None`` if that is unknown."""
        test = self._worst
        return True if test is None else False if test.outcome.known else None

    @property
    def reason(self) -> str:
        """The test that decides against the candidate, or why the result is unknown."""
        test = self._worst
        return "" if test is None else ": ".join(filter(None, (test.name, test.outcome, test.reason)))

    @property
    def _worst(self) -> TestVerdict | None:
        """The first test that failed, else the first whose outcome is unknown."""
        bad = [test for test in self.tests if test.outcome is not TestOutcome.PASSED]
        return next((test for test in bad if test.outcome.known), bad[0] if bad else None)


def grade_python(
    sandbox: Sandbox, candidates: Sequence[tuple[str, PythonTask]], *, limits: Limits | None = None
) -> list[TaskVerdict]:
    """Verdicts on programs' texts by their tasks' tests, in order.

    ``limits`` hold for the candidate's process; the tests' own has a second more.

    Raises:
        SandboxError: the sandbox does not answer.
    """
    limits = limits or Limits()
    results = sandbox.run([_program(text, task, limits) for text, task in candidates])
    return [
        TaskVerdict(tests=tuple(_settled(sandbox, result, text, task, limits)))
        for result, (text, task) in zip(results, candidates, strict=True)
    ]


def _settled(
    sandbox: Sandbox, result: ProgramResult, text: str, task: PythonTask, limits: Limits
) -> list[TestVerdict]:
    """The verdict of one run. If its tests report nothing, also when the candidate runs alone, but do report
    on an empty program, then the candidate broke them or the sandbox: it has failed."""
    report = _report(result, task)
    if report is None:
        (result,) = sandbox.run([_program(text, task, limits)])
        report = _report(result, task)
    if report is not None:
        return report
    detail = result.reason or result.stderr[-200:].decode(errors="backslashreplace")
    reason = f"the tests' process gave no verdict ({result.ending}): {detail}"
    (empty,) = sandbox.run([_program("", task, limits)])
    if _report(empty, task) is not None:
        return _all_are(task, TestOutcome.CRASHED, f"the program broke its tests: {reason}")
    failed = result.ending is Ending.SANDBOX_FAILURE
    return _all_are(task, TestOutcome.SANDBOX_FAILURE if failed else TestOutcome.ERROR, reason)


def _program(text: str, task: PythonTask, limits: Limits) -> Program:
    """The tests' process, with the candidate's as its peer."""
    plan = {
        "entry_points": task.entry_points,
        "setup": task.setup,
        "tests": [(test.name, test.code) for test in task.tests],
    }
    candidate = Program(
        argv=("python", "-m", "inside.callee", "solution.py"),
        files={"solution.py": text.encode("utf-8", "surrogatepass")},
        limits=limits.model_copy(update={"wall_s": limits.wall_s + _MARGIN_S / 2}),
    )
    return Program(
        argv=("python", "-m", "inside.judge", "task.json", str(limits.wall_s)),
        files={"task.json": json.dumps(plan).encode()},
        limits=limits.model_copy(
            update={"wall_s": limits.wall_s + _MARGIN_S, "output_bytes": Limits().output_bytes * 16}
        ),
        peer=candidate,
    )


_LINES: TypeAdapter[list[tuple[str, TestOutcome, str]]] = TypeAdapter(list[tuple[str, TestOutcome, str]])


def _report(result: ProgramResult, task: PythonTask) -> list[TestVerdict] | None:
    """What the tests' process reports of one run; ``None`` if it did not end normally with a report."""
    if result.ending is Ending.TIMEOUT:
        return _all_are(task, TestOutcome.TIMEOUT, result.reason)
    if result.ending is not Ending.EXITED or result.exit_code != 0:
        return None
    try:
        lines = _LINES.validate_json(result.stderr)
    except ValidationError:
        return None
    if [name for name, _, _ in lines] != [test.name for test in task.tests]:
        return None
    return [
        TestVerdict(name=name, **_explained(outcome, reason, result.peer)) for name, outcome, reason in lines
    ]


def _all_are(task: PythonTask, outcome: TestOutcome, reason: str) -> list[TestVerdict]:
    return [TestVerdict(name=test.name, outcome=outcome, reason=reason) for test in task.tests]


def _explained(outcome: TestOutcome, reason: str, candidate: ProgramResult | None) -> dict[str, Any]:
    """Why the candidate's process ended, which its sandbox knows and the tests do not."""
    if outcome is TestOutcome.CRASHED and candidate is not None:
        match candidate.ending:
            case Ending.MEMORY:
                outcome, reason = TestOutcome.MEMORY, candidate.reason
            case Ending.TIMEOUT:
                outcome, reason = TestOutcome.TIMEOUT, candidate.reason
            case Ending.CRASHED | Ending.OUTPUT | Ending.REFUSED:
                reason = f"{reason} ({candidate.reason})"
    return {"outcome": outcome, "reason": reason}
