"""``execution-trace``: the statement of a failing program whose repair makes the tests pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NewType, Self

from pydantic import BaseModel, BeforeValidator

from surefoot.labelling.verifiers import tracer
from surefoot.labelling.verifiers.programs import (
    NO_TESTS,
    SandboxedVerifier,
    SourceLine,
    TraceProgram,
    gradable_task,
    grade_traces,
    python_task,
    reference_program,
    unknown,
)
from surefoot.labelling.verifiers.repairs import Alignment, Repair, StatementLines, align, similarity
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import CodeTask, Execution, TestVisibility
from surefoot.sandbox import Ending, Program, ProgramResult, TaskVerdict, TestOutcome, grade_python

REFERENCES, REPAIRS = 4, 24
"""Most passing programs that one is compared with, and most repairs of it that are tested."""
_LINES, _CHARACTERS = 300, 20_000
"""Longer programs are not aligned."""
RunLine = NewType("RunLine", int)
"""A line of the text that runs, from 1: a program with one statement a line, if it can be aligned."""
_NO_SUCH_NAME = ("NameError", "ImportError", "ModuleNotFoundError")


class ExecutionTraceVerifier(SandboxedVerifier):
    """A :class:`surefoot.protocols.StepVerifier`: the statement whose repair makes the tests pass.

    The repair of a program that fails is one statement of a program that passes: the problem's reference
    solution, or another trace of the problem among those verified together, the most similar ones first.
    Statements are aligned whatever the names of variables. The step of the repaired statement is -1, or the
    step before which a statement is missing; steps that ran before it are +1, and those after it are unknown.
    Without such a repair a step is -1 if it does not parse, uses a name that does not exist, or is the only
    one that ran in a call that fails a test. Otherwise all steps are unknown. If the program passes the
    tests, the steps that ran are +1.

    The program could forge its trace, but not whether it passes the tests.
    """

    name = "execution-trace"
    visibility: TestVisibility = "hidden"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``SandboxError``."""
        rows = [unknown(len(item.trace.steps), NO_TESTS) for item in items]
        graded = grade_traces(self.sandbox, items, limits=self.limits)
        by_problem: dict[str, list[_Suspect]] = {}
        for number, (item, verdict) in enumerate(zip(items, graded, strict=True)):
            if verdict is not None and verdict.passed is not None and (task := gradable_task(item)):
                program = TraceProgram.of(item.trace, task)
                suspect = _Suspect(number=number, program=program, task=task, verdict=verdict)
                by_problem.setdefault(item.problem.id, []).append(suspect)
        for group in by_problem.values():
            _find_references(group)
        self._confirm([suspect for group in by_problem.values() for suspect in group])
        recordings = self._run([_recording_plan(group) for group in by_problem.values()])
        recorded = dict(zip(by_problem, recordings, strict=True))
        plans = {
            (problem, suspect.text): {
                "program": suspect.text,
                "entry_point": suspect.task.entry_point,
                "calls": [call.arguments for call in recorded[problem].calls],
            }
            for problem, group in by_problem.items()
            for suspect in group
        }
        runs = dict(zip(plans, self._run(list(plans.values())), strict=True))
        for problem, group in by_problem.items():
            for suspect in group:
                steps = len(items[suspect.number].trace.steps)
                run = runs[problem, suspect.text]
                rows[suspect.number] = suspect.verdicts(steps, recorded[problem], run)
        return rows

    def _confirm(self, suspects: Sequence[_Suspect]) -> None:
        jobs = [(suspect, repair) for suspect in suspects for repair in suspect.proposals()]
        programs = [
            (repair.text, python_task(suspect.task, suspect.task.that_are("hidden")))
            for suspect, repair in jobs
        ]
        verdicts = grade_python(self.sandbox, programs, limits=self.limits)
        for (suspect, repair), verdict in zip(jobs, verdicts, strict=True):
            if verdict.passed:
                suspect.repairs.append(repair)

    def _run(self, plans: Sequence[dict[str, Any]]) -> list[ProgramRun]:
        code = Path(tracer.__file__).read_bytes()
        programs = [
            Program(
                argv=("python", "main.py"),
                files={"main.py": code, "plan.json": json.dumps(plan).encode("utf-8", "surrogatepass")},
                limits=self.limits,
            )
            for plan in plans
        ]
        return [ProgramRun.of(result) for result in self.sandbox.run(programs)]


def _find_references(group: Sequence[_Suspect]) -> None:
    """Align each failing program of a problem with the most similar passing ones."""
    task = group[0].task
    passing = [suspect.statements for suspect in group if suspect.verdict.passed]
    passing.insert(0, _statements(reference_program(task)) if task.reference else None)
    references = list({program.text: program for program in passing if program is not None}.values())
    for suspect in group:
        if suspect.statements is not None and not suspect.verdict.passed:
            similar = sorted(references, key=partial(similarity, suspect.statements), reverse=True)
            alignments = [align(suspect.statements, reference) for reference in similar[: 2 * REFERENCES]]
            suspect.alignments = sorted(alignments, key=attrgetter("distance"))[:REFERENCES]


def _recording_plan(group: Sequence[_Suspect]) -> dict[str, Any]:
    """Plan for the tracer without ``calls``: run the tests on the reference and record their calls.

    Without a reference solution another program is run: which calls tests make hardly depends on it.
    """
    task, program = group[0].task, next((suspect for suspect in group if suspect.verdict.passed), group[0])
    return {
        "program": reference_program(task) if task.reference else program.text,
        "entry_point": task.entry_point,
        "setup": task.setup,
        "tests": [test.code for test in task.that_are("hidden")],
        "calls": None,
    }


def _statements(program: str) -> StatementLines | None:
    """``None`` if it does not parse, or is too long to be aligned."""
    try:
        statements = StatementLines(program)
    except SyntaxError:
        return None
    return statements if len(statements.lines) <= _LINES and len(program) <= _CHARACTERS else None


@dataclass(kw_only=True)
class _Suspect:
    """A program with its verdict, and the programs that it is compared with."""

    number: int
    program: TraceProgram
    task: CodeTask
    verdict: TaskVerdict
    alignments: list[Alignment] = field(default_factory=list)
    """With the most similar passing programs."""
    repairs: list[Repair] = field(default_factory=list)
    """With which all tests pass, the most similar programs first."""

    @cached_property
    def statements(self) -> StatementLines | None:
        """``None`` if the program cannot be aligned."""
        return _statements(self.program.text)

    @property
    def text(self) -> str:
        """What is run."""
        return self.program.text if self.statements is None else self.statements.text

    def proposals(self) -> list[Repair]:
        """Different repairs, the most similar programs first."""
        repairs = (repair for alignment in self.alignments for repair in alignment.repairs())
        return list(islice({repair.text: repair for repair in repairs}.values(), REPAIRS))

    def source_line(self, line: RunLine) -> SourceLine:
        """Line of the trace's program for a line that was run."""
        return SourceLine(line if self.statements is None else self.statements.source_line(line - 1))

    def verdicts(self, count: int, recording: ProgramRun, run: ProgramRun) -> list[Verdict]:
        """One verdict for each of ``count`` steps, from runs of the reference solution and of the program."""
        executed = {self.program.step(self.source_line(line)) for line in run.lines()}
        if self.verdict.passed:
            ran = Verdict(value=1, reason="it ran, and all tests pass")
            return [ran if step in executed else unknown(1, "no test ran it")[0] for step in range(count)]
        repair = self.repairs[0] if self.repairs else None
        if repair is None:
            wrong, reason = self._without_repair(recording, run)
        else:
            line = self.source_line(RunLine(repair.line + 1))
            wrong, reason = self.program.step(line), f"line {line}: {repair.reason}"
        execution = self._execution(recording, run)
        if wrong is None:
            reason = f"the program fails ({self.verdict.reason}), and no line of it could be blamed"
            last = Verdict(value=None, reason=reason, execution=execution)
            return [*unknown(count - 1, reason), last] if count else []
        verdicts = unknown(count, "not run, or not known")
        if repair is not None:
            right = Verdict(value=1, reason="all tests pass once a later step is repaired")
            verdicts[:wrong] = [right if step in executed else verdicts[step] for step in range(wrong)]
        verdicts[wrong] = Verdict(value=-1, reason=reason, execution=execution)
        verdicts[wrong + 1 :] = unknown(count - wrong - 1, AFTER_FIRST_ERROR)
        return verdicts

    def _without_repair(self, recording: ProgramRun, run: ProgramRun) -> tuple[int | None, str]:
        """The step that must be wrong whatever is right, and why."""
        if run.load:
            where = None if run.load.line is None else self.source_line(run.load.line)
            return self.program.step(where), f"line {where}: {run.load}"
        outcomes = dict(enumerate(test.outcome for test in self.verdict.tests))
        for expected, call in zip(recording.calls, run.calls, strict=False):
            if outcomes.get(expected.test) is TestOutcome.PASSED or not call.differs(expected):
                continue
            if call.raised and call.raised.line and call.raised.kind in _NO_SUCH_NAME:
                line = self.source_line(call.raised.line)
                return self.program.step(line), f"line {line}: {call.raised}"
            steps = {self.program.step(self.source_line(line)) for line in call.lines}
            if len(steps) == 1 and (call.raised or self._returns(call)):
                return steps.pop(), "no other step ran in a call that fails a test"
        return None, ""

    def _returns(self, call: Call) -> bool:
        """Whether a call ended with a statement that returns, and not after the last one."""
        last = (call.last or 0) - 1
        kinds = self.statements.kinds if self.statements else []
        return 0 <= last < len(kinds) and kinds[last] == "Return"

    def _execution(self, recording: ProgramRun, run: ProgramRun) -> Execution | None:
        """The repair, and the first call whose result differs."""
        repair = None
        if self.repairs:
            lines = unified_diff(self.text.splitlines(), self.repairs[0].text.splitlines(), n=3, lineterm="")
            repair = _short("\n".join(list(lines)[3:]), _DIFF)
        if run.load:
            line = None if run.load.line is None else self.source_line(run.load.line)
            return Execution(repair=repair, raised=_short(run.load), line=line)
        tests = self.task.that_are("hidden")
        for expected, call in zip(recording.calls, run.calls, strict=False):
            if call.differs(expected) and 0 <= expected.test < len(tests):
                return Execution(
                    repair=repair,
                    test=_short(tests[expected.test].name),
                    call=_short(_as_python(self.task.entry_point, expected.arguments)),
                    result=call.display,
                    raised=None if call.raised is None else _short(call.raised),
                    expected=expected.display,
                )
        return None if repair is None else Execution(repair=repair)


_TEXT, _DIFF = 400, 4_000
"""Characters of one text, and of a repair."""


def _short(text: Any, most: int = _TEXT) -> str:
    """Short text that a record accepts: without halves of surrogate pairs."""
    return str(text)[:most].encode("utf-8", "replace").decode()


Text = Annotated[str, BeforeValidator(_short)]


class Raised(NamedTuple):
    """An exception, and the last line of the program that it passed."""

    kind: Text
    text: Text
    line: RunLine | None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


class Call(BaseModel):
    """One call of the function."""

    test: int
    arguments: str
    """``repr((args, kwargs))``."""
    lines: tuple[RunLine, ...]
    """Those that ran."""
    last: RunLine | None
    """The one that ran last."""
    result: str | None
    """Digest of the returned value."""
    display: Text | None
    raised: Raised | None

    def differs(self, other: Call) -> bool:
        """Whether the results differ."""
        return self.result != other.result or bool(self.raised) != bool(other.raised)


class ProgramRun(BaseModel):
    """What the tracer reported about a run. The program could have forged it."""

    calls: tuple[Call, ...] = ()
    load: Raised | None = None
    """The exception that prevented the program from loading."""

    @classmethod
    def of(cls, result: ProgramResult) -> Self:
        """Parse the tracer's output; without calls if the run was ended or the output is invalid."""
        if result.ending is Ending.EXITED:
            try:
                report = json.loads(result.stdout)
                return cls(calls=report["calls"], load=report["load"])
            except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
                pass
        return cls()

    def lines(self) -> set[RunLine]:
        """The lines that ran."""
        return {line for call in self.calls for line in call.lines}


def _as_python(function: str, arguments: str) -> str:
    """The call in Python's syntax, from ``repr((args, kwargs))``."""
    if not arguments.endswith(", {})"):
        return f"{function}: arguments and keywords {arguments}"
    arguments = arguments.removesuffix(", {})")[1:]
    return f"{function}{arguments.removesuffix(',)')}{')' * arguments.endswith(',)')}"
