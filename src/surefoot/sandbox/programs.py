"""Programs, their limits and results in every sandbox; Python graded by tests.

Tests run in one process and call the candidate in another, each in its own isolation.

All that comes from the candidate's process is plain values (``inside/wire.py``). It never holds the tests,
so it can neither find, nor change, nor answer for them; the verdict leaves on a channel that only the tests'
process has.
"""

from __future__ import annotations

import ast
import json
import os
import selectors
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from contextvars import copy_context
from enum import StrEnum
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from surefoot.records import FrozenModel

_MIB = 1 << 20


class Limits(FrozenModel):
    """Limits of one program; docs/how-to/code.md says how each is enforced."""

    wall_s: float = Field(default=10.0, gt=0, le=3600, description="Seconds from start to end.")
    cpu_s: int = Field(default=10, ge=1, le=3600, description="Seconds of CPU time of one process.")
    memory_bytes: int = Field(
        default=1 << 30,
        ge=64 * _MIB,
        le=1 << 40,
        description="Memory of all processes together, in bytes; also the address space of each.",
    )
    processes: int = Field(default=16, ge=1, le=1024, description="Processes and threads at once.")
    open_files: int = Field(default=64, ge=16, le=4096, description="Open files of one process.")
    file_bytes: int = Field(default=16 * _MIB, ge=0, le=1 << 40, description="Bytes of the largest file.")
    disk_bytes: int = Field(
        default=64 * _MIB, ge=_MIB, le=1 << 40, description="Bytes of all files together."
    )
    output_bytes: int = Field(
        default=_MIB, ge=0, le=64 * _MIB, description="Bytes of standard output and error, each."
    )


class Program(FrozenModel):
    """Files, and the command that runs them in an empty directory.

    ``("python", "main.py", …)`` runs a file of ``files`` in a warm interpreter; anything else is executed,
    with the names of ``/usr/bin``. With ``peer``, another isolated program, standard input
    and output of the two are joined crosswise, so that both speak to the outside by standard error alone.
    """

    argv: tuple[str, ...] = Field(min_length=1)
    files: dict[str, bytes] = Field(default_factory=dict, description="Relative name → content.")
    stdin: bytes = b""
    limits: Limits = Limits()
    peer: Program | None = None

    @model_validator(mode="after")
    def _names_stay_inside(self) -> Self:
        for name in self.files:
            parts = PurePosixPath(name).parts
            if not parts or name.startswith("/") or ".." in parts or "\0" in name:
                raise ValueError(
                    f"'files' has the name {name!r}; give names relative to the working directory"
                )
        if any("\0" in word for word in self.argv):
            raise ValueError("'argv' holds a NUL character, which no command line can have")
        if self.peer is not None and (self.peer.peer is not None or self.stdin or self.peer.stdin):
            raise ValueError(
                "'peer' joins two programs by their standard input, so neither has 'stdin' or a third"
            )
        return self


class Ending(StrEnum):
    """Why a program ended."""

    EXITED = "exited"
    """Normally, with ``exit_code``."""
    CRASHED = "crashed"
    """By a signal, such as a segmentation fault; ``exit_code`` is minus its number."""
    TIMEOUT = "timeout"
    """The limit of wall or CPU time."""
    MEMORY = "memory"
    """The limit of memory."""
    OUTPUT = "output"
    """The limit of output."""
    REFUSED = "refused"
    """The program did not start: unknown command, or its files do not fit on the disk."""
    SANDBOX_FAILURE = "sandbox_failure"
    """The sandbox failed; the result says nothing about the program."""


class ProgramResult(FrozenModel):
    """How one program ended, and its output. ``stdout`` is empty if the program had a peer."""

    ending: Ending
    exit_code: int | None = None
    reason: str = ""
    """Explanation for people."""
    stdout: bytes = b""
    stderr: bytes = b""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """User and system time of the first process and of those it waited for."""
    peak_bytes: int = 0
    """Largest resident memory of one process."""
    peer: ProgramResult | None = None


@runtime_checkable
class Sandbox(Protocol):
    """Runs untrusted programs, each isolated, and returns one result per program in order."""

    def run(self, programs: Sequence[Program]) -> list[ProgramResult]: ...


class SandboxedProcess:
    """One of the processes of a run: its output while it comes, and then how it ended."""

    def __init__(self, program: Program, selector: selectors.BaseSelector, *, deadline: float) -> None:
        self.program, self.selector, self.deadline = program, selector, deadline
        self.stopped = ""
        """Why this side ended it."""
        self.lost = ""
        """How the sandbox failed at it."""
        self.ended = False
        self.output = {"stdout": bytearray(), "stderr": bytearray()}
        self._room = dict.fromkeys(self.output, program.limits.output_bytes)
        self._open: dict[str, int] = {}

    @property
    def done(self) -> bool:
        """Whether all is known of it."""
        return bool(self.lost) or (self.ended and not self._open)

    def stop(self, reason: str) -> None:
        """Have it killed; its end is still reported."""
        if not (self.stopped or self.ended):
            self.stopped = reason
            self._kill()

    def overtime(self) -> None:
        """It has not ended by its ``deadline``."""
        raise NotImplementedError

    def result(self) -> ProgramResult:
        """How it ended."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all descriptors."""
        for name in list(self._open):
            self._close(name)

    def read(self, name: str, fd: int) -> None:
        """Read a descriptor, which is closed at its end, into an output."""
        self._open[name] = fd
        self.selector.register(fd, selectors.EVENT_READ, lambda: self._read(name))

    def _kill(self) -> None:
        raise NotImplementedError

    def _read(self, name: str) -> None:
        data = os.read(self._open[name], 1 << 16)
        if not data:
            self._close(name)
            return
        buffer = self.output[name]
        room = self._room[name] - len(buffer)
        buffer += data[:room]
        if len(data) > room:
            self.stop("output")

    def _close(self, name: str) -> None:
        fd = self._open.pop(name)
        self.selector.unregister(fd)
        os.close(fd)

    def _result(self, ending: Ending, reason: str, exit_code: int | None, **measured: Any) -> ProgramResult:
        ran = ending not in (Ending.SANDBOX_FAILURE, Ending.REFUSED)
        output = {name: bytes(data) for name, data in self.output.items()}
        return ProgramResult(
            ending=ending, reason=reason, exit_code=exit_code if ran else None, **{**output, **measured}
        )


class LocalSandbox:
    """Base of the sandboxes: ``concurrency`` programs at once (default: one for each core)."""

    def __init__(self, concurrency: int | None) -> None:
        self.concurrency = concurrency or len(os.sched_getaffinity(0))

    def run(self, programs: Sequence[Program]) -> list[ProgramResult]:
        """One result for each program, in order. What the sandbox failed at is tried once more."""
        contexts = [copy_context() for _ in programs]
        with ThreadPoolExecutor(self.concurrency) as threads:
            return list(
                threads.map(lambda context, program: context.run(self._run, program), contexts, programs)
            )

    def _run(self, program: Program) -> ProgramResult:
        result = self._attempt(program)
        return self._attempt(program) if result.ending is Ending.SANDBOX_FAILURE else result

    def _attempt(self, program: Program) -> ProgramResult:
        with selectors.DefaultSelector() as selector, self._started(program, selector) as parts:
            first, *peers = parts
            while not (all(part.done for part in parts) or any(part.lost for part in parts)):
                first_deadline = min(part.deadline for part in parts if not part.done)
                for key, _ in selector.select(max(0.0, first_deadline - time.monotonic())):
                    if key.fd in selector.get_map():  # what came before may have closed it
                        key.data()
                for part in parts:
                    if not part.done and time.monotonic() > part.deadline:
                        part.overtime()
                for peer in peers if first.ended else ():
                    peer.stop("its peer ended")  # without the first program, it has nothing to do
            result = first.result()
            return _with_peer(result, peers[0].result()) if peers else result

    def _started(
        self, program: Program, selector: selectors.BaseSelector
    ) -> AbstractContextManager[Sequence[SandboxedProcess]]:
        """The program and its peer, which run, with streams joined."""
        raise NotImplementedError

    def close(self) -> None:
        """End what runs. The next ``run`` starts it again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def joined_pipes(stack: ExitStack) -> tuple[tuple[int, int], tuple[int, int]]:
    """Standard input and output of a program and of its peer, joined crosswise."""
    ends = (os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC))
    for end in chain.from_iterable(ends):
        stack.callback(os.close, end)
    (read_1, write_1), (read_2, write_2) = ends
    return (read_1, write_2), (read_2, write_1)


def _with_peer(result: ProgramResult, peer: ProgramResult) -> ProgramResult:
    """The result of a program and its peer; if the sandbox failed at the peer, it failed at both."""
    if peer.ending is Ending.SANDBOX_FAILURE and result.ending is not Ending.SANDBOX_FAILURE:
        failure = {"ending": peer.ending, "reason": peer.reason, "exit_code": None}
        result = result.model_copy(update=failure)
    return result.model_copy(update={"peer": peer})


def ending_of(
    limits: Limits, *, code: int, stopped: str, killed: str, cpu_s: float, stderr: bytes
) -> tuple[Ending, str]:
    """How a program that began has ended, and the reason.

    ``code`` is minus the number of a signal; ``stopped`` says why this side ended it, ``killed`` which limit
    (``wall``, ``memory``) the sandbox found exceeded.
    """
    if stopped == "output":
        return Ending.OUTPUT, f"it wrote more than {limits.output_bytes} bytes"
    if killed == "wall":
        return Ending.TIMEOUT, f"it took more than {limits.wall_s} s"
    if code == -9 and cpu_s >= limits.cpu_s - 0.5:
        return Ending.TIMEOUT, f"it took more than {limits.cpu_s} s of CPU time"
    last = stderr[-1000:].strip().rpartition(b"\n")[2]
    if killed == "memory" or (code and last.startswith(b"MemoryError")):
        return Ending.MEMORY, f"it took more than {limits.memory_bytes} bytes of memory"
    if code < 0:
        return Ending.CRASHED, stopped or f"signal {-code}"
    return Ending.EXITED, ""


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
