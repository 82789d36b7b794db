"""What programs do: their results on inputs, and the visible tests that they pass.

Programs with equal results count as equal answers, so that votes work for programs as for numbers: majority
of behaviour, or agreement of samples and tests (CodeT, Chen et al. 2022, arXiv 2207.10397). Hidden tests are
not used, so a selector may see all of it.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from surefoot.labelling.verifiers.programs import TraceProgram, code_task, python_task
from surefoot.protocols import ProblemTrace
from surefoot.records import CodeTask, content_id
from surefoot.sandbox import (
    Limits,
    NamedTest,
    PythonTask,
    Sandbox,
    TaskVerdict,
    TestOutcome,
    TestVerdict,
    grade_python,
)
from surefoot.segment.code import parse

Errors = Literal["abstain", "vote"]
"""Whether a program that raised or returned nothing on some input has an answer."""

INPUTS = 12
"""Inputs on which behaviour is compared."""
LIMITS = Limits(wall_s=3.0, cpu_s=3)
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
    limits: Limits = LIMITS,
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
    graded = grade_python(sandbox, [(program[1], tests) for program, _, tests in jobs], limits=limits)
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
