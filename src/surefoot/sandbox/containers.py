"""Programs in containers of Docker or Podman, a fresh one for each; and every sandbox by its name."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from surefoot.errors import SandboxError
from surefoot.sandbox.bubblewrap import BubblewrapSandbox
from surefoot.sandbox.inside import box, single
from surefoot.sandbox.protocol import (
    Ending,
    Limits,
    LocalSandbox,
    Program,
    ProgramResult,
    SandboxedProcess,
    ending_of,
    joined_pipes,
)

_ENGINES = ("docker", "podman")
IMAGE = "python:3.12-slim"
"""Image of the containers, with a Python of 3.11 or newer."""
_INSIDE = Path(box.__file__).parent
_START_S = 60.0
"""Seconds that a container has to start."""
_CLI_S = 30.0
_NOBODY = "65534:65534"


class ContainerSandbox(LocalSandbox):
    """Runs each program in a new container of ``engine``: ``docker`` or ``podman``.

    A container takes some half a second to start, where bubblewrap's warm box takes milliseconds. Neither CPU
    time nor memory is measured: both are 0 in the results.

    Raises:
        SandboxError: the engine is not installed, or does not answer.
    """

    def __init__(self, engine: str = "docker", *, image: str = IMAGE, concurrency: int | None = None) -> None:
        super().__init__(concurrency)
        self.engine, self.image = engine, image
        if shutil.which(engine) is None:
            raise SandboxError(
                f"'{engine}' is missing, and nothing runs without it; install it (Debian, Ubuntu: "
                f"apt-get install {'docker.io' if engine == 'docker' else engine}), or use bubblewrap"
            )
        done = _cli(engine, "image", "inspect", "--format", "{{.Id}}", image)
        if done.returncode:
            raise SandboxError(
                f"{engine} cannot start the image {image!r}: {done.stderr.strip()[-300:]}. "
                f"Start its daemon, then: {engine} pull {image}"
            )

    def command(self, name: str, limits: Limits, program: Path) -> list[str]:
        """The command that starts a container for a packed program."""
        flags = {
            "--network": "none",
            "--user": _NOBODY,
            "--cap-drop": "ALL",
            "--security-opt": "no-new-privileges",
            "--ipc": "none",
            "--hostname": "box",
            "--log-driver": "none",
            "--pids-limit": str(limits.processes),
            "--memory": str(limits.memory_bytes),
            "--memory-swap": str(limits.memory_bytes),
            "--tmpfs": f"/tmp:rw,nosuid,nodev,exec,mode=1777,size={limits.disk_bytes}",  # noqa: S108 - in it
            "--workdir": box.WORK,
        }
        volumes = (f"{_INSIDE}:/box/inside:ro", f"{program}:/box/program:ro")
        variables = {
            "PYTHONPATH": "/box",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": box.WORK,
        }
        return [
            *(self.engine, "run", "--interactive", "--name", name, "--read-only", "--pull", "never"),
            *(word for flag in flags.items() for word in flag),
            *(word for volume in volumes for word in ("--volume", volume)),
            *(word for pair in variables.items() for word in ("--env", "=".join(pair))),
            *("--entrypoint", "python3", self.image, "-S", "-P", "-m", "inside.single"),
            *(limits.model_dump_json(), "/box/program"),
        ]

    @contextlib.contextmanager
    def _started(self, program: Program, selector: selectors.BaseSelector) -> Iterator[list[_Container]]:
        with contextlib.ExitStack() as stack:
            if program.peer is None:
                yield [_Container(self, program, selector, stack, subprocess.DEVNULL, subprocess.PIPE)]
                return
            with contextlib.ExitStack() as pipes:
                both = zip((program, program.peer), joined_pipes(pipes), strict=True)
                parts = [_Container(self, part, selector, stack, *streams) for part, streams in both]
            yield parts


class _Container(SandboxedProcess):
    """A container that runs; the engine's client has its streams, and ends with it."""

    def __init__(
        self,
        sandbox: ContainerSandbox,
        program: Program,
        selector: selectors.BaseSelector,
        stack: contextlib.ExitStack,
        stdin: int,
        stdout: int,
    ) -> None:
        super().__init__(program, selector, deadline=time.monotonic() + _START_S)
        self.engine, self.name = sandbox.engine, f"surefoot-{uuid.uuid4().hex}"
        self._room["stderr"] += len(single.BEGUN)
        self._began: float | None = None
        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="surefoot-")), "program")
        joined = stdin != subprocess.DEVNULL
        file.write_bytes(box.pack(program.argv, program.files, None if joined else program.stdin))
        file.chmod(0o644)  # the container's user is another one; the folder keeps others out
        stack.callback(_cli, self.engine, "rm", "--force", self.name)
        self.process = subprocess.Popen(  # noqa: S603
            sandbox.command(self.name, program.limits, file),
            stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)
        stack.callback(self.close)
        for name, stream in (("stdout", self.process.stdout), ("stderr", self.process.stderr)):
            if stream is not None:
                with stream:
                    self.read(name, os.dup(stream.fileno()))

    def overtime(self) -> None:
        self.lost = "the engine did not end the container" if self.stopped else ""
        self.deadline = time.monotonic() + _CLI_S
        self.stop("start" if self._began is None else "wall")

    def _kill(self) -> None:
        _cli(self.engine, "kill", self.name)
        self.process.kill()  # the client, should the engine not answer

    def _read(self, name: str) -> None:
        super()._read(name)
        if self._began is None and single.BEGUN in self.output["stderr"][:4096]:
            self._began = time.monotonic()
            self.deadline = self._began + self.program.limits.wall_s

    def _close(self, name: str) -> None:
        super()._close(name)
        self.ended = self.ended or name == "stderr"  # the client held it

    def result(self) -> ProgramResult:
        wall_s = 0.0 if self._began is None else time.monotonic() - self._began
        code = self.process.wait(_CLI_S)
        code = 128 - code if code > 128 else code
        preamble, begun, stderr = bytes(self.output["stderr"]).partition(single.BEGUN)
        ending, reason = self._ending(code, preamble, bool(begun), stderr)
        return self._result(ending, reason, code, stderr=stderr, wall_s=wall_s)

    def _ending(self, code: int, before: bytes, begun: bool, stderr: bytes) -> tuple[Ending, str]:
        if self.lost:
            return Ending.SANDBOX_FAILURE, self.lost
        for words in (before, stderr):
            if words.startswith(box.REFUSED):
                return Ending.REFUSED, words[len(box.REFUSED) :].decode(errors="replace")
        if not begun and self.stopped != "output":
            reason = before.decode(errors="replace")[-500:] or "the container did not start"
            return Ending.SANDBOX_FAILURE, reason
        killed = self.stopped
        if killed not in ("output", "wall"):
            state = _cli(self.engine, "inspect", "--format", "{{.State.OOMKilled}}", self.name)
            killed = "memory" if state.stdout.strip() == "true" else ""
        return ending_of(
            self.program.limits, code=code, stopped=self.stopped, killed=killed, cpu_s=0.0, stderr=stderr
        )


def _cli(engine: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A short call of the engine, which may fail."""
    try:
        return subprocess.run(  # noqa: S603
            [engine, *words], capture_output=True, text=True, check=False, timeout=_CLI_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return subprocess.CompletedProcess([engine, *words], 1, "", str(problem))


def open_sandbox(
    name: str = "bubblewrap", *, concurrency: int | None = None
) -> BubblewrapSandbox | ContainerSandbox:
    """Open the sandbox ``name``: ``bubblewrap``, ``docker`` or ``podman`` (``docker:IMAGE`` sets the image).

    ``concurrency`` is the number of programs that run at once (default: one per core).

    Raises:
        SandboxError: unknown name, or programs cannot be isolated here; the message says what to install.
    """
    check_sandbox_name(name)
    if name == "bubblewrap":
        return BubblewrapSandbox(concurrency=concurrency)
    engine, _, image = name.partition(":")
    return ContainerSandbox(engine, image=image or IMAGE, concurrency=concurrency)


def check_sandbox_name(name: str) -> None:
    """Raise ``SandboxError`` if ``open_sandbox`` does not support ``name``. Opens nothing."""
    if name != "bubblewrap" and name.partition(":")[0] not in _ENGINES:
        raise SandboxError(f"unknown sandbox {name!r}; use 'bubblewrap', 'docker' or 'podman'")
