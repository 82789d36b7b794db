"""Steps of programs checked by parsing and running them: ``compile``, ``python-tests``, ``execution-trace``.

Programs run in a sandbox alone (:mod:`surefoot.sandbox`). The tests are those of ``Problem.meta["code"]``.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.errors import LabelError
from surefoot.labelling.verifiers import tracer
from surefoot.labelling.verifiers.divergence import Run, beside_reference, first_difference
from surefoot.labelling.verifiers.sandboxed import SandboxedVerifier, first_error, unknown
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import CodeTask, CodeTest, Problem, TestVisibility, Trace
from surefoot.sandbox import (
    Limits,
    NamedTest,
    Program,
    PythonTask,
    Sandbox,
    TaskVerdict,
    grade_python,
)
from surefoot.segment.code import ProseAndCode, code_spans, parse

LIMITS = SandboxedVerifier.usual
"""Of one run with its trace."""

_NO_TESTS = "the problem has no tests of a program in meta['code']"


@dataclass(frozen=True, kw_only=True)
class TraceProgram:
    """The program that a trace amounts to, and the step of each of its lines."""

    text: str
    steps: tuple[int | None, ...]
    """Step of each line; ``None`` = the line is the prompt's."""

    @classmethod
    def of(cls, trace: Trace, task: CodeTask) -> TraceProgram:
        """The prompt and what continues it, or the code in its fences if it has any.

        A program that defines the entry point itself follows the prompt all the same, whose imports and
        helpers it may need, and takes the place of its function.
        """
        text = trace.text or ""
        fenced = code_spans(text, ProseAndCode())
        spans = [_inside_fence(text, start, end) for start, end in fenced] or [(0, len(text))]
        pieces: list[str] = [_closed(task.prompt, text[spans[0][0] :])]
        steps: list[int | None] = [None] * pieces[0].count("\n")
        for start, end in spans:
            at = start
            for line in text[start:end].splitlines(keepends=True):
                pieces.append(line.rstrip("\r\n") + "\n")
                steps.append(_step_at(trace, at + len(line) - len(line.lstrip())))
                at += len(line)
        return cls(text="".join(pieces), steps=tuple(steps))

    def step(self, line: int | None) -> int | None:
        """The step that line ``line``, counted from 1, belongs to."""
        return self.steps[line - 1] if line is not None and 0 < line <= len(self.steps) else None


def _closed(prompt: str, continuation: str) -> str:
    """The prompt as it stands before ``continuation``, ending with its line."""
    if not prompt:
        return ""
    prompt = prompt if prompt.endswith("\n") else f"{prompt}\n"
    first = next((line for line in continuation.splitlines() if line.strip()), "")
    return prompt if first[:1] in (" ", "\t") else f"{prompt}    ...\n"


def _inside_fence(text: str, start: int, end: int) -> tuple[int, int]:
    first = text.find("\n", start, end) + 1 or end
    last = text.rfind("\n", first, end) + 1
    return first, last if last > first and not text[last:end].strip(" \t`~") else end


def _step_at(trace: Trace, at: int) -> int | None:
    number = bisect_right(trace.steps, at, key=lambda step: step.start) - 1
    return number if number >= 0 and at < trace.steps[number].end else None


class CompileVerifier:
    """A :class:`surefoot.protocols.StepVerifier`: does the program parse, and which step breaks it?

    Steps before the first syntax error are +1, that with the error is -1, and those after it are unknown. It
    says nothing of what the program does. Nothing is run.
    """

    name = "compile"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step."""
        return [self._verdicts(item) for item in items]

    def _verdicts(self, item: ProblemTrace) -> list[Verdict]:
        task, count = code_task(item.problem), len(item.trace.steps)
        if task is None or item.trace.text is None:
            return unknown(count, _NO_TESTS)
        program = TraceProgram.of(item.trace, task)
        try:
            compile(parse(program.text), "solution.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            wrong = program.step(line)
            # an error after the last line, or in the prompt's last one, is that of the step that ends it
            wrong = count - 1 if wrong is None else wrong
            return first_error(count, wrong, f"{getattr(error, 'msg', error)}", "parses")
        return [Verdict(value=1, reason="parses")] * count


class PythonTestsVerifier(SandboxedVerifier):
    """A :class:`surefoot.protocols.StepVerifier`: the hidden tests decide on the whole program.

    If all pass, every step is +1. If not, the last step is -1, with the first test that failed, and nothing
    is known of the steps before it.
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
            return unknown(count, _NO_TESTS if verdict is None else verdict.reason)
        if verdict.passed:
            return [Verdict(value=1, reason=f"all {len(verdict.tests)} tests pass")] * count
        before = unknown(max(count - 1, 0), "the program fails; which step is wrong is not known")
        return [*before, *[Verdict(value=-1, reason=self._reason(item, verdict))] * min(count, 1)]

    def _reason(self, item: ProblemTrace, verdict: TaskVerdict) -> str:  # noqa: ARG002 - for subclasses
        return verdict.reason


class VisibleTestsVerifier(PythonTestsVerifier):
    """The same by the visible tests, which policies may see: for choosing and revising, not for labels.

    The reason has the text of the test that failed.
    """

    name = "visible-tests"
    visibility: TestVisibility = "visible"

    def _reason(self, item: ProblemTrace, verdict: TaskVerdict) -> str:
        task, bad = code_task(item.problem), verdict.reason.partition(":")[0]
        code = next((test.code for test in task.that_are("visible") if test.name == bad), "") if task else ""
        return f"This test fails:\n\n{code}\n\n{verdict.reason}" if code else verdict.reason


def grade_traces(
    sandbox: Sandbox,
    items: Sequence[ProblemTrace],
    *,
    limits: Limits | None = None,
    visibility: TestVisibility = "hidden",
) -> list[TaskVerdict | None]:
    """What the tests of a visibility say of each trace's program; ``None``: there are none, or no text."""
    tasks = [code_task(item.problem) for item in items]
    known = [
        (TraceProgram.of(item.trace, task).text, python_task(task, task.that_are(visibility)))
        for item, task in zip(items, tasks, strict=True)
        if _gradable(item, task, visibility) and task is not None
    ]
    verdicts: Iterator[TaskVerdict] = iter(grade_python(sandbox, known, limits=limits or LIMITS))
    return [
        next(verdicts) if _gradable(item, task, visibility) else None
        for item, task in zip(items, tasks, strict=True)
    ]


def has_hidden_tests(problem: Problem) -> bool:
    """Whether programs can be graded. Raises ``LabelError`` for ``meta["code"]`` that is something else."""
    task = code_task(problem)
    return task is not None and bool(task.that_are("hidden"))


def python_task(task: CodeTask, tests: Sequence[CodeTest] | None = None) -> PythonTask:
    """What the sandbox grades by: the hidden tests, or those given, which must be of one visibility."""
    tests = task.that_are("hidden") if tests is None else tests
    return PythonTask(
        entry_points=(task.entry_point,),
        setup=task.setup,
        tests=tuple(NamedTest(name=test.name, code=test.code) for test in tests),
        visibility=tests[0].visibility if tests else "hidden",
    )


def _gradable(item: ProblemTrace, task: CodeTask | None, visibility: TestVisibility = "hidden") -> bool:
    return task is not None and item.trace.text is not None and bool(task.that_are(visibility))


def code_task(problem: Problem) -> CodeTask | None:
    """That of a problem, or ``None``. Raises ``LabelError`` for ``meta["code"]`` that is something else."""
    try:
        return CodeTask.of(problem)
    except ValueError as error:
        raise LabelError(f"problem {problem.id}: meta['code'] is no programming task: {error}") from error


class ExecutionTraceVerifier(SandboxedVerifier):
    """A :class:`surefoot.protocols.StepVerifier`: the line at which a run parts from the reference's.

    Both run on the calls that the hidden tests make. Line by line, the plain values of all local variables
    are compared, in a call whose result differs. The step that ran right before the first difference is -1:
    it computed another value, took another way, or raised. Steps run before it are +1; those after it are
    unknown. Of a program that passes the tests, the steps that ran are +1.

    Lines are compared with the reference's lines of equal text, and one line that takes the place of another.
    Where less than half of the lines have such a partner, and from a line on that has none, only a line that
    raised is -1, and the others are unknown: two right programs need not pass through the same states. What a
    program says of its own run is believed for that purpose, but never whether it passed.
    """

    name = "execution-trace"
    visibility: TestVisibility = "hidden"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``SandboxError``."""
        rows = [unknown(len(item.trace.steps), _NO_TESTS) for item in items]
        usable = [
            (at, item, task) for at, item in enumerate(items) if (task := code_task(item.problem)) is not None
        ]
        usable = [(at, item, task) for at, item, task in usable if _gradable(item, task) and task.reference]
        tasks = {item.problem.id: task for _, item, task in usable}
        plans = [_plan(task, None, None) for task in tasks.values()]
        references = dict(zip(tasks, self._run(plans), strict=True))
        graded = grade_traces(self.sandbox, [item for _, item, _ in usable], limits=self.limits)
        programs = [TraceProgram.of(item.trace, task) for _, item, task in usable]
        runs = self._run(
            [
                _plan(task, program.text, [call.given for call in references[item.problem.id].calls])
                for (_, item, task), program in zip(usable, programs, strict=True)
            ]
        )
        for (at, item, task), verdict, program, run in zip(usable, graded, programs, runs, strict=True):
            if verdict is None or verdict.passed is None:
                continue
            rows[at] = _compared(
                task, references[item.problem.id], run, program, verdict, len(item.trace.steps)
            )
        return rows

    def _run(self, plans: Sequence[Mapping[str, Any]]) -> list[Run]:
        code = Path(tracer.__file__).read_bytes()
        programs = [
            Program(
                argv=("python", "main.py"),
                files={"main.py": code, "plan.json": json.dumps(plan).encode("utf-8", "surrogatepass")},
                limits=self.limits,
            )
            for plan in plans
        ]
        return [
            Run.of(plan["program"], result)
            for plan, result in zip(plans, self.sandbox.run(programs), strict=True)
        ]


def _plan(task: CodeTask, program: str | None, calls: Sequence[str] | None) -> dict[str, Any]:
    """What the tracer has to do: without ``calls``, run the tests on the reference and note their calls."""
    tests = [] if program is not None else [test.code for test in task.that_are("hidden")]
    return {
        "program": reference_program(task) if program is None else program,
        "entry_point": task.entry_point,
        "setup": "" if program is not None else task.setup,
        "tests": tests,
        "calls": calls,
    }


def reference_program(task: CodeTask) -> str:
    """The reference solution after the prompt."""
    return _closed(task.prompt, task.reference or "") + (task.reference or "")


def _compared(
    task: CodeTask, reference: Run, own: Run, program: TraceProgram, verdict: TaskVerdict, count: int
) -> list[Verdict]:
    ran = {program.step(event.line) for call in own.calls for event in call.events}
    if verdict.passed:
        return [
            Verdict(value=1, reason="it ran, and all tests pass")
            if step in ran
            else Verdict(value=None, reason="no test ran it")
            for step in range(count)
        ]
    parting = first_difference(reference, own)
    step = program.step(parting.line)
    execution = beside_reference(task, reference, own)
    if step is None:
        reason = f"the program fails ({verdict.reason}), and no line of it could be blamed"
        last = Verdict(value=None, reason=reason, execution=execution)
        return [*unknown(count - 1, reason), last] if count else []
    before = "the same values as in the reference's run" if parting.compared else None
    return [
        Verdict(value=1, reason=before)
        if one < step and before and one in ran
        else Verdict(value=-1, reason=f"line {parting.line}: {parting.reason}", execution=execution)
        if one == step
        else Verdict(value=None, reason=AFTER_FIRST_ERROR if one > step else "not run, or not comparable")
        for one in range(count)
    ]
