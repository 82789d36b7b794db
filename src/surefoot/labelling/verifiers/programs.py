"""Steps of programs, checked by parsing and running: ``compile`` and ``python-tests``.

Programs only run in a sandbox (:mod:`surefoot.sandbox`), on the tests of ``Problem.meta["code"]``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NewType, Self

from surefoot.answers import Grade, Solution
from surefoot.errors import LabelError
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.protocols import SOLUTION_CHANNELS, ProblemTrace, Verdict
from surefoot.records import CodeTask, CodeTest, Problem, TestVisibility, Trace
from surefoot.sandbox import Limits, NamedTest, PythonTask, Sandbox, TaskVerdict, grade_python, open_sandbox
from surefoot.segment.code import ProseAndCode, code_spans, parse

LIMITS = Limits(wall_s=5, cpu_s=5, output_bytes=8 << 20)
"""Default limits of one run."""

SourceLine = NewType("SourceLine", int)
"""A line of the program in a trace, from 1. What runs may have other lines."""

NO_TESTS = "the problem lacks a program's tests in meta['code']"


class SandboxedVerifier:
    """A verifier that runs programs. Use as a context manager, or call ``close``."""

    reads = SOLUTION_CHANNELS
    default_limits: Limits = LIMITS

    def __init__(self, sandbox: Sandbox | str = "bubblewrap", *, limits: Limits | None = None) -> None:
        """``sandbox``: an open one, or a name, which is opened when needed and closed with the verifier."""
        self._name = sandbox if isinstance(sandbox, str) else ""
        self._sandbox = None if isinstance(sandbox, str) else sandbox
        self.limits = limits or self.default_limits
        self._closing = ExitStack()

    @property
    def sandbox(self) -> Sandbox:
        """Raises ``SandboxError`` where programs cannot be isolated."""
        if self._sandbox is None:
            opened = open_sandbox(self._name)
            self._closing.callback(opened.close)
            self._sandbox = opened
        return self._sandbox

    def close(self) -> None:
        """Close the sandbox if the verifier opened it."""
        self._closing.close()
        if self._name:
            self._sandbox = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def unknown(count: int, reason: str) -> list[Verdict]:
    """No verdict on any of ``count`` steps."""
    return [Verdict(value=None, reason=reason)] * count


def first_error(count: int, wrong: int, reason: str, before: str) -> list[Verdict]:
    """Step ``wrong`` of ``count`` is -1, those before it +1, and those after it unknown."""
    return [
        *[Verdict(value=1, reason=before)] * wrong,
        Verdict(value=-1, reason=reason),
        *unknown(count - wrong - 1, AFTER_FIRST_ERROR),
    ]


@dataclass(frozen=True, kw_only=True)
class TraceProgram:
    """The program in a trace, and the step of each of its lines."""

    text: str
    steps: tuple[int | None, ...]
    """Step of each line; ``None`` for a line of the prompt."""

    @classmethod
    def of(cls, trace: Trace, task: CodeTask) -> TraceProgram:
        """The prompt and its continuation, which is the code in fences if there are any.

        A program that defines the entry point itself also follows the prompt, because it may need the
        prompt's imports and helpers; its definition replaces the prompt's function.
        """
        text = trace.text or ""
        fences = code_spans(text, ProseAndCode())
        spans = [_inside_fence(text, start, end) for start, end in fences] or [(0, len(text))]
        pieces: list[str] = [_complete_prompt(task.prompt, text[spans[0][0] :])]
        steps: list[int | None] = [None] * pieces[0].count("\n")
        for start, end in spans:
            at = start
            for line in text[start:end].splitlines(keepends=True):
                pieces.append(line.rstrip("\r\n") + "\n")
                steps.append(_step_at(trace, at + len(line) - len(line.lstrip())))
                at += len(line)
        return cls(text="".join(pieces), steps=tuple(steps))

    def step(self, line: SourceLine | None) -> int | None:
        """The step of a line."""
        return self.steps[line - 1] if line is not None and 0 < line <= len(self.steps) else None


def _complete_prompt(prompt: str, continuation: str) -> str:
    """The prompt with a body for its function, unless ``continuation`` is the body."""
    if not prompt:
        return ""
    prompt = prompt if prompt.endswith("\n") else f"{prompt}\n"
    first = next((line for line in continuation.splitlines() if line.strip()), "")
    return prompt if first[:1] in (" ", "\t") else f"{prompt}    ...\n"


def reference_program(task: CodeTask) -> str:
    """The reference solution after the prompt."""
    return _complete_prompt(task.prompt, task.reference or "") + (task.reference or "")


def _inside_fence(text: str, start: int, end: int) -> tuple[int, int]:
    first = text.find("\n", start, end) + 1 or end
    last = text.rfind("\n", first, end) + 1
    return first, last if last > first and not text[last:end].strip(" \t`~") else end


def _step_at(trace: Trace, at: int) -> int | None:
    number = bisect_right(trace.steps, at, key=lambda step: step.start) - 1
    return number if number >= 0 and at < trace.steps[number].end else None


class CompileVerifier:
    """A :class:`surefoot.protocols.StepVerifier`: does the program parse, and which step breaks it?

    Steps before the first syntax error are +1, the step with the error is -1, and those after it are unknown.
    Nothing runs, so this does not check what the program does.
    """

    reads = SOLUTION_CHANNELS
    name = "compile"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step."""
        return [self._verdicts(item) for item in items]

    def _verdicts(self, item: ProblemTrace) -> list[Verdict]:
        task, count = code_task(item.problem), len(item.trace.steps)
        if task is None or item.trace.text is None:
            return unknown(count, NO_TESTS)
        program = TraceProgram.of(item.trace, task)
        try:
            compile(parse(program.text), "solution.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            wrong = program.step(None if line is None else SourceLine(line))
            # an error after the last line, or in the prompt's last line, belongs to the last step
            wrong = count - 1 if wrong is None else wrong
            return first_error(count, wrong, f"{getattr(error, 'msg', error)}", "parses") if count else []
        return [Verdict(value=1, reason="parses")] * count


class PythonTestsVerifier(SandboxedVerifier):
    """A :class:`surefoot.protocols.StepVerifier`: the hidden tests decide on the whole program.

    If all pass, every step is +1. Otherwise the last step is -1, with the first test that failed, and the
    steps before it are unknown.
    """

    name = "python-tests"
    visibility: TestVisibility = "hidden"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``SandboxError``."""
        graded = grade_traces(self.sandbox, items, limits=self.limits, visibility=self.visibility)
        return [self._verdicts(item, verdict) for item, verdict in zip(items, graded, strict=True)]

    def _verdicts(self, item: ProblemTrace, verdict: TaskVerdict | None) -> list[Verdict]:
        count = len(item.trace.steps)
        if verdict is None or verdict.passed is None:
            return unknown(count, NO_TESTS if verdict is None else verdict.reason)
        if verdict.passed:
            return [Verdict(value=1, reason=f"all {len(verdict.tests)} tests pass")] * count
        earlier = unknown(max(count - 1, 0), "the program fails; which step is wrong is not known")
        return [*earlier, *[Verdict(value=-1, reason=self._reason(item, verdict))] * min(count, 1)]

    def _reason(self, item: ProblemTrace, verdict: TaskVerdict) -> str:  # noqa: ARG002 - for subclasses
        return verdict.reason


class VisibleTestsVerifier(PythonTestsVerifier):
    """The same with the visible tests, which policies may see: to select and revise, not to label.

    The reason quotes the test that failed.
    """

    name = "visible-tests"
    visibility: TestVisibility = "visible"

    def _reason(self, item: ProblemTrace, verdict: TaskVerdict) -> str:
        task, failed = code_task(item.problem), verdict.reason.partition(":")[0]
        tests = task.that_are("visible") if task else ()
        code = next((test.code for test in tests if test.name == failed), "")
        return f"This test fails:\n\n{code}\n\n{verdict.reason}" if code else verdict.reason


def grade_traces(
    sandbox: Sandbox,
    items: Sequence[ProblemTrace],
    *,
    limits: Limits | None = None,
    visibility: TestVisibility = "hidden",
) -> list[TaskVerdict | None]:
    """Grade each trace's program by the tests of one visibility; ``None`` without tests or without text."""
    jobs: dict[int, tuple[str, PythonTask]] = {}
    for number, item in enumerate(items):
        task = gradable_task(item, visibility)
        if task is not None:
            tests = python_task(task, task.that_are(visibility))
            jobs[number] = TraceProgram.of(item.trace, task).text, tests
    verdicts = dict(
        zip(jobs, grade_python(sandbox, list(jobs.values()), limits=limits or LIMITS), strict=True)
    )
    return [verdicts.get(number) for number in range(len(items))]


def has_hidden_tests(problem: Problem) -> bool:
    """Whether programs can be graded. Raises ``LabelError`` if ``meta["code"]`` is invalid."""
    task = code_task(problem)
    return task is not None and bool(task.that_are("hidden"))


def python_task(task: CodeTask, tests: Sequence[CodeTest]) -> PythonTask:
    """What the sandbox grades by."""
    return PythonTask(
        entry_points=(task.entry_point,),
        setup=task.setup,
        tests=tuple(NamedTest(name=test.name, code=test.code) for test in tests),
    )


def gradable_task(item: ProblemTrace, visibility: TestVisibility = "hidden") -> CodeTask | None:
    """The task of a trace, if it has a text and tests of that visibility."""
    task = code_task(item.problem)
    return task if task is not None and item.trace.text is not None and task.that_are(visibility) else None


def code_task(problem: Problem) -> CodeTask | None:
    """The problem's task, or ``None``. Raises ``LabelError`` if ``meta["code"]`` is invalid."""
    try:
        return CodeTask.of(problem)
    except ValueError as error:
        raise LabelError(
            f"problem {problem.id}: meta['code'] is not a valid programming task: {error}"
        ) from error


@dataclass(frozen=True)
class ProgramGrader:
    """A :class:`surefoot.answers.ProblemGrader`: a program is correct if every hidden test passes.

    The outcome is unknown if the tests or the sandbox failed. Grades do not include an answer.
    """

    sandbox: Sandbox

    def can_grade(self, problem: Problem) -> bool:
        """Whether the problem has hidden tests."""
        return has_hidden_tests(problem)

    async def grade_problem(self, problem: Problem, solutions: Sequence[Solution]) -> list[Grade]:
        """One grade per solution, without blocking other requests. Raises ``SandboxError``."""
        items = [
            ProblemTrace(
                problem=problem, trace=Trace(problem_id=problem.id, text=solution.prefix + solution.text)
            )
            for solution in solutions
        ]
        verdicts = await asyncio.to_thread(grade_traces, self.sandbox, items)
        return [Grade(answer=None, outcome=verdict.passed if verdict else None) for verdict in verdicts]
