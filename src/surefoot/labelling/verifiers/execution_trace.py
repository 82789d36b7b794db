"""``execution-trace``: the statement of a failing program whose repair makes the tests pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, Self

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
from surefoot.records import CodeTask, ComparedCall, ExecutedLine, Execution, TestVisibility
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
            (problem, text): {
                "program": text,
                "entry_point": suspect.task.entry_point,
                "calls": [call.arguments for call in recorded[problem].calls],
            }
            for problem, group in by_problem.items()
            for suspect in group
            for text in suspect.texts()
        }
        runs = dict(zip(plans, self._run(list(plans.values())), strict=True))
        for problem, group in by_problem.items():
            for suspect in group:
                own_runs = [runs[problem, text] for text in suspect.texts()]
                steps = len(items[suspect.number].trace.steps)
                rows[suspect.number] = suspect.verdicts(steps, recorded[problem], *own_runs)
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

    def texts(self) -> list[str]:
        """The program, and the passing program to compare it with, if there is one."""
        passing: list[Repair | Alignment] = [*self.repairs, *self.alignments]
        return [self.text, *(program.text for program in passing[:1])]

    def source_line(self, line: RunLine) -> SourceLine:
        """Line of the trace's program for a line that was run."""
        return SourceLine(line if self.statements is None else self.statements.source_line(line - 1))

    def verdicts(
        self, count: int, recording: ProgramRun, run: ProgramRun, passing: ProgramRun | None = None
    ) -> list[Verdict]:
        """One verdict for each of ``count`` steps, from runs of the reference solution and :meth:`texts`."""
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
        execution = self._execution(recording, run, passing)
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
            steps = {self.program.step(self.source_line(event.line)) for event in call.events}
            if len(steps) == 1 and (call.raised or self._returns(call)):
                return steps.pop(), "no other step ran in a call that fails a test"
        return None, ""

    def _returns(self, call: Call) -> bool:
        """Whether a call ended with a statement that returns, and not after the last one."""
        last = call.events[-1].line - 1
        kinds = self.statements.kinds if self.statements else []
        return 0 <= last < len(kinds) and kinds[last] == "Return"

    def _execution(
        self, recording: ProgramRun, run: ProgramRun, passing: ProgramRun | None
    ) -> Execution | None:
        """The run next to the repaired program's, or else the most similar passing program's."""
        companion = Companion(text=None, run=recording, partners=None)
        if self.repairs and passing:
            repair = self.repairs[0]
            companion = Companion(
                text=repair.text, run=passing, partners=repair.partners, wrong=repair.line + 1
            )
        elif self.alignments and passing:
            nearest = self.alignments[0]
            companion = Companion(text=nearest.text, run=passing, partners=nearest.partners)
        return compare_executions(
            self.task, companion, run, [call.test for call in recording.calls], self.source_line
        )


_CALLS, _CONTEXT, _ROWS, _NAMES, _TEXT, _TEXTS = 4, 30, 60, 20, 400, 32_000
"""Limits for display: calls, events before the first difference, events in all, variables of a line,
characters of one text, and characters of all values of a call."""


def _short(text: Any) -> str:
    """Short text that a record accepts: without halves of surrogate pairs."""
    return str(text)[:_TEXT].encode("utf-8", "replace").decode()


Text = Annotated[str, BeforeValidator(_short)]
Changes = Annotated[tuple[tuple[Text, Text], ...], BeforeValidator(lambda pairs: pairs[:_NAMES])]


class LineEvent(NamedTuple):
    """A line that is about to run, as recorded by :mod:`surefoot.labelling.verifiers.tracer`."""

    kind: Literal["line"]
    line: RunLine
    depth: int
    state: str
    """Digest of the local variables before the line."""
    changed: Changes


class EndEvent(NamedTuple):
    """A return or an exception."""

    kind: Literal["return", "exception"]
    line: RunLine
    depth: int
    state: str
    """Digest of the returned value, or of the exception's type."""
    text: Text


Event = LineEvent | EndEvent


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
    events: tuple[Event, ...]
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
        return {event.line for call in self.calls for event in call.events}


def _first_difference(companion: Companion, expected: Call, call: Call) -> int | None:
    """Number of the event to mark: of the wrong line before the runs first differ, or of the line before."""
    if companion.partners is None:
        return None
    for at, event in enumerate(call.events):
        partner = expected.events[at] if at < len(expected.events) else None
        if partner is None or (event.kind, event.line, event.depth, event.state) != (
            partner.kind, companion.partners.get(partner.line), partner.depth, partner.state,
        ):  # fmt: skip
            events_back = range(at, -1, -1)
            wrong = (number for number in events_back if call.events[number].line == companion.wrong)
            return next(wrong, max(at - 1, 0))
    return None


@dataclass(frozen=True, kw_only=True)
class Companion:
    """A passing program next to a failing one, with its run."""

    text: str | None
    """``None``: the task's reference solution."""
    run: ProgramRun
    partners: Mapping[int, int] | None
    """Line of the failing program for each line of this one, from 1; ``None``: too few are alike."""
    wrong: int | None = None
    """The line in which the failing program differs, if that is known."""


def compare_executions(
    task: CodeTask,
    companion: Companion,
    run: ProgramRun,
    made_by: Sequence[int],
    source_line: Callable[[RunLine], SourceLine],
) -> Execution | None:
    """The first calls whose results differ, else the first calls, for display; ``None`` without any.

    ``made_by``: number of the test that makes each call. ``source_line``: line of the trace's program for a
    line that ran.
    """
    if run.load:
        line = None if run.load.line is None else source_line(run.load.line)
        return Execution(raised=_short(run.load), line=line)
    triples = list(zip(made_by, companion.run.calls, run.calls, strict=False))
    chosen = [triple for triple in triples if triple[2].differs(triple[1])] or triples
    tests = task.that_are("hidden")
    calls = tuple(
        _compare_calls(task.entry_point, tests[number].name, expected, call, companion, source_line)
        for number, expected, call in chosen[:_CALLS]
        if 0 <= number < len(tests)
    )
    return Execution(calls=calls, reference=companion.text) if calls else None


def _compare_calls(
    function: str,
    test: str,
    expected: Call,
    call: Call,
    companion: Companion,
    source_line: Callable[[RunLine], SourceLine],
) -> ComparedCall:
    events, lines = call.events, companion.partners
    first = _first_difference(companion, expected, call)
    if first is None and call.raised:
        numbers = (number for number, event in enumerate(events) if event.line == call.raised.line)
        first = max((number for number in numbers if events[number].kind == "line"), default=None)
    start = max(0, (first or 0) - _CONTEXT)
    window = events[start : start + _ROWS]
    reference = expected.events[start : start + _ROWS] if lines is not None else ()
    rows = _align(window, reference, lines or {})
    row_of_first = (
        number for number, (event, _) in enumerate(rows) if first is not None and event is events[first]
    )
    budget = [_TEXTS]
    return ComparedCall(
        test=_short(test),
        visibility="hidden",
        call=_short(_as_python(function, expected.arguments)),
        result=call.display,
        raised=None if call.raised is None else _short(call.raised),
        reference_result=expected.display,
        reference_raised=None if expected.raised is None else _short(expected.raised),
        rows=tuple(
            (_display(event, budget, source_line), _display(other, budget, SourceLine))
            for event, other in rows
        ),
        first=next(row_of_first, None),
        before=start,
        after=max(0, len(events) - start - _ROWS),
    )


def _as_python(function: str, arguments: str) -> str:
    """The call in Python's syntax, from ``repr((args, kwargs))``."""
    if not arguments.endswith(", {})"):
        return f"{function}: arguments and keywords {arguments}"
    arguments = arguments.removesuffix(", {})")[1:]
    return f"{function}{arguments.removesuffix(',)')}{')' * arguments.endswith(',)')}"


def _align(
    events: Sequence[Event], reference: Sequence[Event], lines: Mapping[int, int]
) -> list[tuple[Event | None, Event | None]]:
    """Pair events of equal kind, depth and line; the others stay single."""
    keys = [(event.kind, event.line, event.depth) for event in events]
    reference_keys = [(event.kind, lines.get(event.line, -event.line), event.depth) for event in reference]
    rows: list[tuple[Event | None, Event | None]] = []
    for tag, a, b, c, d in SequenceMatcher(None, keys, reference_keys, autojunk=False).get_opcodes():
        if tag == "equal":
            rows += zip(events[a:b], reference[c:d], strict=True)
        else:
            rows += [(event, None) for event in events[a:b]]
            rows += [(None, event) for event in reference[c:d]]
    return rows


def _display(
    event: Event | None, budget: list[int], source_line: Callable[[RunLine], SourceLine]
) -> ExecutedLine | None:
    if event is None:
        return None
    line = max(source_line(event.line), 0)
    if isinstance(event, EndEvent):
        return ExecutedLine(event=event.kind, line=line, said=event.text)
    budget[0] -= sum(len(name) + len(value) for name, value in event.changed)
    return ExecutedLine(event=event.kind, line=line, changed=event.changed if budget[0] >= 0 else ())
