"""What programs do, as far as anyone may know: their results on inputs, and the visible tests they pass.

Programs of equal results are equal answers, so votes choose among programs as they do among numbers: majority
of behaviour, or agreement of samples and tests (CodeT, Chen et al. 2022, arXiv 2207.10397). No hidden test is
used, so whoever chooses may know all of it.
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
"""Whether a program that raised, or returned nothing, on some input has an answer."""

INPUTS = 12
"""Inputs on which behaviour is compared."""
LIMITS = Limits(wall_s=3.0, cpu_s=3)
"""Of one program on all inputs, and of one on all visible tests."""

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
    said = "{_NOTHING}" if v is None else "{_RETURNED}" + hashlib.sha256(repr(_plain(v)).encode()).hexdigest()
    raise AssertionError(said)
'''
"""The tests' process sees what a candidate returns. What it says of it, a digest, is the reason of a test
that fails. Numbers are equal to nine digits, as tests of floats are written."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What one program did."""

    results: tuple[str, ...]
    """Of each input that most programs of the problem took: a digest of what was returned, or why nothing
    was."""
    visible_passed: int
    """Visible tests that passed."""
    visible: int
    """Visible tests that the problem has."""

    @property
    def clean(self) -> bool:
        """Whether it returned something on every input."""
        return bool(self.results) and all(one.startswith(_RETURNED) for one in self.results)

    def answer(self, errors: Errors = "abstain") -> str | None:
        """Equal strings are equal results; ``None`` = no answer, which has no vote."""
        known = self.clean if errors == "abstain" else bool(self.results)
        return content_id("behaviour", self.results) if known else None


def observe_programs(
    sandbox: Sandbox,
    items: Sequence[ProblemTrace],
    *,
    inputs: int = INPUTS,
    seed: int = 0,
    limits: Limits = LIMITS,
    calls: Callable[[CodeTask], Sequence[Sequence[Any]]] | None = None,
) -> list[Behaviour | None]:
    """Run the programs of traces on inputs and on the visible tests; ``None``: no task, or no text.

    Inputs are the arguments of the visible tests and variations of them (:func:`task_inputs`). One on which
    most of a problem's programs return nothing is dropped, so give all programs of a problem together. Equal
    programs are run once. ``calls`` gives the arguments for a task in another way.

    Raises:
        LabelError: a problem's ``meta["code"]`` is no programming task.
        SandboxError: programs cannot be run.
    """
    tasks = {item.problem.id: code_task(item.problem) for item in items}
    programs: list[tuple[str, str] | None] = []
    jobs: list[tuple[tuple[str, str], str, PythonTask]] = []
    said: dict[tuple[str, str], dict[str, TaskVerdict]] = {}
    for item in items:
        task = tasks[item.problem.id]
        if task is None or item.trace.text is None:
            programs.append(None)
            continue
        program = item.problem.id, TraceProgram.of(item.trace, task).text
        if program not in said:
            said[program] = {}
            jobs += [
                (program, kind, one)
                for kind, one in _asked(
                    task, task_inputs(task, count=inputs, seed=seed) if calls is None else calls(task)
                )
            ]
        programs.append(program)
    verdicts = grade_python(sandbox, [(program[1], one) for program, _, one in jobs], limits=limits)
    for (program, kind, _), verdict in zip(jobs, verdicts, strict=True):
        said[program][kind] = verdict
    of_problem: dict[str, dict[str, list[str]]] = {}
    for (problem, text), verdict_of in said.items():
        of_problem.setdefault(problem, {})[text] = results_of(verdict_of.get("results"))
    kept = {problem: taken_inputs(list(rows.values()))[:inputs] for problem, rows in of_problem.items()}
    return [
        None
        if one is None
        else _behaviour([of_problem[one[0]][one[1]][at] for at in kept[one[0]]], said[one].get("visible"))
        for one in programs
    ]


def _asked(task: CodeTask, inputs: Sequence[Sequence[Any]]) -> Iterator[tuple[str, PythonTask]]:
    visible = visible_task(task)
    if visible is not None:
        yield "visible", visible
    results = results_task(task, inputs)
    if results is not None:
        yield "results", results


def _behaviour(results: Sequence[str], visible: TaskVerdict | None) -> Behaviour:
    tests = () if visible is None else visible.tests
    passed = sum(test.outcome is TestOutcome.PASSED for test in tests)
    return Behaviour(results=tuple(results), visible_passed=passed, visible=len(tests))


def results_of(verdict: TaskVerdict | None) -> list[str]:
    """What a program gave on each input, by the verdict on :func:`results_task`; empty if none was asked."""
    return [_result(test) for test in (() if verdict is None else verdict.tests)]


def _result(test: TestVerdict) -> str:
    """What was returned, else how the call ended."""
    match test.outcome:
        case TestOutcome.FAILED:  # by ``_show`` alone, since an exception of the program has another outcome
            return test.reason.removeprefix("AssertionError: ")
        case TestOutcome.RAISED:
            return f"raised {test.reason.partition(':')[0]}"
    return str(test.outcome)


def taken_inputs(results: Sequence[Sequence[str]]) -> list[int]:
    """Places of the inputs on which more than half of the programs returned something; all, if none is so."""
    count = len(results[0]) if results else 0
    taken = [
        at for at in range(count) if 2 * sum(row[at].startswith(_RETURNED) for row in results) > len(results)
    ]
    return taken or list(range(count))


def visible_task(task: CodeTask) -> PythonTask | None:
    """The visible tests; ``None``: there are none."""
    tests = task.that_are("visible")
    return python_task(task, tests) if tests else None


def results_task(task: CodeTask, inputs: Sequence[Sequence[Any]]) -> PythonTask | None:
    """Says, by the reasons of tests that always fail, what a program returns on each of the inputs."""
    tests = tuple(
        NamedTest(name=f"input {at}", code=f"_show(candidate(*{list(one)!r}))")
        for at, one in enumerate(inputs)
    )
    if not tests:
        return None
    return PythonTask(entry_points=(task.entry_point,), setup=_SHOW, tests=tests, visibility="visible")


def task_inputs(task: CodeTask, *, count: int = INPUTS, seed: int = 0) -> list[list[Any]]:
    """Arguments for the function of a task, the same for the same seed: those of the visible tests first.

    The others are variations of them. A task without visible tests gets values of the types with which the
    prompt annotates its arguments, and of all simple types where there is no annotation: four times as many,
    since programs refuse some.
    """
    rng = random.Random(f"{seed} {task.entry_point} {task.prompt}")
    shown = literal_calls([test.code for test in task.that_are("visible")], task.entry_point)
    types = [] if shown else _annotations(task)
    made, wanted = [*shown[:count]], count if shown else 4 * count
    for _ in range(20 * wanted):
        if len(made) >= wanted or not (shown or types):
            break
        one = [_varied(value, rng) for value in rng.choice(shown)] if shown else _drawn(types, rng)
        if not any(repr(one) == repr(other) for other in made):
            made.append(one)
    return made


def literal_calls(texts: Sequence[str], name: str) -> list[list[Any]]:
    """Plain positional arguments of the calls of ``name``, or of ``candidate``, in pieces of Python."""
    found: list[list[Any]] = []
    for text in texts:
        try:
            nodes = list(ast.walk(parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in nodes:
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id in (name, "candidate") and node.args and not node.keywords:
                try:
                    found.append([ast.literal_eval(argument) for argument in node.args])
                except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    continue
    return [one for at, one in enumerate(found) if one not in found[:at]]


def _varied(value: Any, rng: random.Random) -> Any:
    """Another value of the same type."""
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
        items = [_varied(one, rng) if rng.random() < 0.5 else one for one in value]
        rng.shuffle(items)
        return type(value)(items + items[:1] if rng.random() < 0.3 else items)
    return value


_SIMPLE = ("int", "str", "float", "list[int]", "list[str]")
_WORDS = ("", "a", "abc", "Hello World", "racecar", "one two three", "12", "a,b c", "(()())", "AbCd eF")
_INTEGERS = (0, 1, 2, 3, 4, 5, 7, 10, 12, 25, 100, -1, -4)
_FLOATS = (0.0, 0.5, 1.0, 2.5, 3.99, -1.25, 10.0)


def _annotations(task: CodeTask) -> list[ast.expr | None]:
    """Of the arguments of the function that is asked for; ``None`` where one has none."""
    for text in (task.prompt, f"{task.prompt.rstrip()}\n    ..."):
        try:
            nodes = list(ast.walk(parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and node.name == task.entry_point:
                return [argument.annotation for argument in node.args.args]
    return []


def _drawn(types: Sequence[ast.expr | None], rng: random.Random) -> list[Any]:
    """A value of each type; arguments without annotation have one type, of the simple ones."""
    unknown = ast.parse(rng.choice(_SIMPLE), mode="eval").body
    return [_of_type(unknown if one is None else one, rng) for one in types]


def _of_type(annotation: ast.expr, rng: random.Random) -> Any:
    """A value of the annotated type; of one of the simple types where it is none of the common ones."""
    match annotation:
        case ast.Constant(value=str() as quoted):
            return _of_type(ast.parse(quoted, mode="eval").body, rng)
        case ast.BinOp(left=left, op=ast.BitOr()):
            return _of_type(left, rng)
        case ast.Subscript(value=outer, slice=inner):
            name = ast.unparse(outer).rsplit(".", 1)[-1].lower()
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if name in ("optional", "union", "final", "annotated"):
                return _of_type(parts[0], rng)
            if name in ("dict", "mapping"):
                pairs = [
                    (_of_type(parts[0], rng), _of_type(parts[-1], rng)) for _ in range(rng.randint(0, 3))
                ]
                return {key: value for key, value in pairs if not isinstance(key, list | dict)}
            if name == "tuple" and not (len(parts) == 2 and ast.unparse(parts[1]) == "..."):
                return tuple(_of_type(part, rng) for part in parts)
            return [_of_type(parts[0], rng) for _ in range(rng.randint(0, 5))]
    name = ast.unparse(annotation).rsplit(".", 1)[-1].lower()
    if name in ("list", "sequence", "tuple", "iterable"):
        return [rng.choice(_INTEGERS) for _ in range(rng.randint(0, 5))]
    if name == "dict":
        return {rng.choice(_WORDS): rng.choice(_INTEGERS) for _ in range(rng.randint(0, 3))}
    plain: dict[str, Sequence[Any]] = {
        "int": _INTEGERS,
        "str": _WORDS,
        "float": _FLOATS,
        "bool": (True, False),
        "none": (None,),
    }
    return rng.choice(plain.get(name, (*_INTEGERS, *_WORDS)))
