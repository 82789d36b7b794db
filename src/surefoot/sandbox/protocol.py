"""Programs, their limits and results, for every sandbox."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Protocol, Self, runtime_checkable

from pydantic import Field, model_validator

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
        raise NotImplementedError

    def close(self) -> None:
        """End what runs. The next ``run`` starts it again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def with_peer(result: ProgramResult, peer: ProgramResult) -> ProgramResult:
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
