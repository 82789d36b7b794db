"""Programs in traces, parsed and run: ``compile``, ``python-tests``, and what they return.

Programs only run in a sandbox (:mod:`surefoot.sandbox`), on the tests of ``Problem.meta["code"]``.

Programs with equal results on the same inputs count as equal answers, so that votes work for programs as for
numbers: majority of behaviour, or agreement of samples and tests (CodeT, Chen et al. 2022, arXiv 2207.10397).
Hidden tests are not used for this, so a selector may see all of it.
"""

from __future__ import annotations

import ast
import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, NewType, Self

from surefoot.answers import Grade, Solution
from surefoot.errors import LabelError
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.protocols import SOLUTION_CHANNELS, ProblemTrace, Verdict
from surefoot.records import CodeTask, CodeTest, Problem, TestVisibility, Trace, content_id
from surefoot.sandbox import (
    Limits,
    NamedTest,
    PythonTask,
    Sandbox,
    TaskVerdict,
    TestOutcome,
    TestVerdict,
    grade_python,
    open_sandbox,
)
from surefoot.segment.segmenters import ProseAndCode, code_spans, parse

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


Errors = Literal["abstain", "vote"]
"""Whether a program that raised or returned nothing on some input has an answer."""

INPUTS = 12
"""Inputs on which behaviour is compared."""
_OBSERVED = Limits(wall_s=3.0, cpu_s=3)
"""Limits of one program on all inputs, and of one program on all visible tests."""

_NOTHING = "None"
_RETURNED = "returned "
_SHOW = f'''
import hashlib
def _plain(v):
    if isinstance(v, bool) or v is None:
        return repr(v)
    if isinstance(v, int) and abs(v) < 2**53:
        return format(float(v), ".9g")
    if isinstance(v, float):
        return format(v, ".9g")
    if isinstance(v, (set, frozenset)):
        return ["set", *sorted(map(_plain, v), key=repr)]
    if isinstance(v, dict):
        return ["dict", *sorted(([_plain(k), _plain(w)] for k, w in v.items()), key=repr)]
    if isinstance(v, (list, tuple)):
        return [type(v).__name__, *map(_plain, v)]
    return repr(v)
def _show(v):
    digest = hashlib.sha256(repr(_plain(v)).encode()).hexdigest()
    raise AssertionError("{_NOTHING}" if v is None else "{_RETURNED}" + digest)
'''
"""Setup of tests that always fail, and whose reason is a digest of the returned value. Floats are compared to
nine digits, as in typical tests."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What one program did."""

    results: tuple[str, ...]
    """For each input that most programs of the problem accept: a digest of the returned value, or why the
    call returned nothing."""
    visible_passed: int
    """Visible tests that passed."""
    visible: int
    """Visible tests of the problem."""

    @property
    def clean(self) -> bool:
        """Whether it returned something on every input."""
        return bool(self.results) and all(result.startswith(_RETURNED) for result in self.results)

    def answer(self, errors: Errors = "abstain") -> str | None:
        """Equal strings mean equal results; ``None`` = the program abstains."""
        votes = self.clean if errors == "abstain" else bool(self.results)
        return content_id("behaviour", self.results) if votes else None


def observe_programs(
    sandbox: Sandbox,
    items: Sequence[ProblemTrace],
    *,
    inputs: int = INPUTS,
    seed: int = 0,
    calls: Callable[[CodeTask], Sequence[Sequence[Any]]] | None = None,
) -> list[Behaviour | None]:
    """Run the programs of traces on inputs and on the visible tests; ``None`` without a task or text.

    Inputs are the arguments of the visible tests and variations of them (:func:`task_inputs`), or what
    ``calls`` returns for a task. An input on which most of a problem's programs return nothing is dropped, so
    pass all programs of a problem together. Equal programs run once.

    Raises:
        LabelError: a problem's ``meta["code"]`` is not a valid programming task.
        SandboxError: programs cannot be run.
    """
    tasks = {item.problem.id: code_task(item.problem) for item in items}
    programs: list[tuple[str, str] | None] = []
    jobs: list[tuple[tuple[str, str], str, PythonTask]] = []
    verdicts: dict[tuple[str, str], dict[str, TaskVerdict]] = {}
    for item in items:
        task = tasks[item.problem.id]
        if task is None or item.trace.text is None:
            programs.append(None)
            continue
        program = item.problem.id, TraceProgram.of(item.trace, task).text
        programs.append(program)
        if program not in verdicts:
            verdicts[program] = {}
            arguments = task_inputs(task, count=inputs, seed=seed) if calls is None else calls(task)
            jobs += [(program, kind, tests) for kind, tests in _tasks(task, arguments)]
    graded = grade_python(sandbox, [(program[1], tests) for program, _, tests in jobs], limits=_OBSERVED)
    for (program, kind, _), verdict in zip(jobs, graded, strict=True):
        verdicts[program][kind] = verdict
    results: dict[str, dict[str, list[str]]] = {}
    for (problem, text), by_kind in verdicts.items():
        tests = by_kind["results"].tests if "results" in by_kind else ()
        results.setdefault(problem, {})[text] = list(map(_result, tests))
    accepted = {problem: _accepted_inputs(list(rows.values()))[:inputs] for problem, rows in results.items()}
    behaviours: list[Behaviour | None] = []
    for entry in programs:
        if entry is None:
            behaviours.append(None)
            continue
        row = results[entry[0]][entry[1]]
        visible = verdicts[entry]["visible"].tests if "visible" in verdicts[entry] else ()
        behaviours.append(
            Behaviour(
                results=tuple(row[number] for number in accepted[entry[0]]),
                visible_passed=sum(test.outcome is TestOutcome.PASSED for test in visible),
                visible=len(visible),
            )
        )
    return behaviours


def _tasks(task: CodeTask, inputs: Sequence[Sequence[Any]]) -> Iterator[tuple[str, PythonTask]]:
    """The visible tests, and tests that always fail and report what the program returns on each input."""
    if visible := task.that_are("visible"):
        yield "visible", python_task(task, visible)
    tests = tuple(
        NamedTest(name=f"input {number}", code=f"_show(candidate(*{list(arguments)!r}))")
        for number, arguments in enumerate(inputs)
    )
    if tests:
        yield (
            "results",
            PythonTask(entry_points=(task.entry_point,), setup=_SHOW, tests=tests),
        )


def _result(test: TestVerdict) -> str:
    """A digest of the returned value, or how the call ended."""
    match test.outcome:
        case TestOutcome.FAILED:  # only ``_show`` fails a test: an exception of the program raises it
            return test.reason.removeprefix("AssertionError: ")
        case TestOutcome.RAISED:
            return f"raised {test.reason.partition(':')[0]}"
    return str(test.outcome)


def _accepted_inputs(results: Sequence[Sequence[str]]) -> list[int]:
    """Numbers of the inputs on which more than half of the programs returned something; all if there is
    none."""
    numbers = range(len(results[0]) if results else 0)
    accepted = [
        number
        for number in numbers
        if 2 * sum(row[number].startswith(_RETURNED) for row in results) > len(results)
    ]
    return accepted or list(numbers)


def task_inputs(task: CodeTask, *, count: int = INPUTS, seed: int = 0) -> list[list[Any]]:
    """Arguments for the function of a task, the same for the same seed: those of its visible tests, then
    variations of them; none without visible tests."""
    rng = random.Random(f"{seed} {task.entry_point} {task.prompt}")
    examples = literal_calls([test.code for test in task.that_are("visible")], task.entry_point)
    inputs = examples[:count]
    for _ in range(20 * count if examples else 0):
        if len(inputs) >= count:
            break
        arguments = [_vary(value, rng) for value in rng.choice(examples)]
        if all(repr(arguments) != repr(other) for other in inputs):
            inputs.append(arguments)
    return inputs


def _nodes(text: str) -> list[ast.AST]:
    """Every node of ``text``; none if it does not parse."""
    try:
        return list(ast.walk(parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def literal_calls(texts: Sequence[str], name: str) -> list[list[Any]]:
    """Literal positional arguments of the calls of ``name``, or of ``candidate``, in pieces of Python."""
    calls: list[list[Any]] = []
    for node in (node for text in texts for node in _nodes(text)):
        match node:
            case ast.Call(func=ast.Name(id=function), args=[_, *_] as arguments, keywords=[]):
                if function not in (name, "candidate"):
                    continue
                try:
                    values = [ast.literal_eval(argument) for argument in arguments]
                except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    continue
                if values not in calls:
                    calls.append(values)
    return calls


def _vary(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([value + 1, abs(value - 1), value * 2, value + 7])
    if isinstance(value, float):
        return rng.choice([value + 0.5, value * 2, -value])
    if isinstance(value, str):
        half, swapped = value[: len(value) // 2], value.swapcase()
        return rng.choice([value[::-1], value + value, half, swapped, "".join(sorted(value))])
    if isinstance(value, list | tuple):
        items = [_vary(item, rng) if rng.random() < 0.5 else item for item in value]
        rng.shuffle(items)
        return type(value)(items + items[:1] if rng.random() < 0.3 else items)
    return value
