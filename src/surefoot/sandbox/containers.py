"""Programs in containers of Docker or Podman, a fresh one for each; and every sandbox by its name."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from surefoot.errors import SandboxError
from surefoot.sandbox.bubblewrap import BubblewrapSandbox
from surefoot.sandbox.inside import box, single
from surefoot.sandbox.protocol import (
    Ending,
    Limits,
    LocalSandbox,
    Program,
    ProgramResult,
    ending_of,
    with_peer,
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

    def command(self, name: str, limits: Limits) -> list[str]:
        """The command that starts a container, which reads its program from standard input."""
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
            "--volume": f"{_INSIDE}:/box/inside:ro",
        }
        variables = {
            "PYTHONPATH": "/box",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": box.WORK,
        }
        return [
            *(self.engine, "run", "--interactive", "--name", name, "--read-only", "--pull", "never"),
            *(word for flag in flags.items() for word in flag),
            *(word for pair in variables.items() for word in ("--env", "=".join(pair))),
            *("--entrypoint", "python3", self.image, "-S", "-P", "-m", "inside.single"),
            limits.model_dump_json(),
        ]

    def _attempt(self, program: Program) -> ProgramResult:
        if program.peer is None:
            with self._container(program, joined=False) as only:
                only.feed(None)
                return only.result(only.collect("stdout"))
        with (
            self._container(program, joined=True) as first,
            self._container(program.peer, joined=True) as second,
        ):
            first.feed(second.process.stdout)
            second.feed(first.process.stdout)
            result = first.result(b"")
            second.stop("its peer ended")
            return with_peer(result, second.result(b""))

    @contextlib.contextmanager
    def _container(self, program: Program, *, joined: bool) -> Iterator[_Container]:
        name = f"surefoot-{uuid.uuid4().hex}"
        container = _Container(self, name, program, joined=joined)
        try:
            yield container
        finally:
            _cli(self.engine, "rm", "--force", name)
            container.close()


class _Container:
    """A container that runs, and the threads that feed and read it."""

    def __init__(self, sandbox: ContainerSandbox, name: str, program: Program, *, joined: bool) -> None:
        self.engine, self.name, self.program = sandbox.engine, name, program
        self._frame = box.pack(program.argv, program.files, None if joined else program.stdin)
        self._began = threading.Event()
        self._stopped = ""
        self._threads: list[threading.Thread] = []
        self.process = subprocess.Popen(  # noqa: S603
            sandbox.command(name, program.limits),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        self._stderr = self.collect("stderr")

    def feed(self, source: IO[bytes] | None) -> None:
        """Send the program, then what ``source`` brings."""
        self._in_thread(self._feed, source)

    def _feed(self, source: IO[bytes] | None) -> None:
        assert self.process.stdin is not None  # noqa: S101
        with contextlib.suppress(OSError, ValueError), self.process.stdin as target:
            target.write(struct.pack("<I", len(self._frame)) + self._frame)
            while source is not None and (data := os.read(source.fileno(), 1 << 16)):
                target.write(data)

    def collect(self, name: str) -> bytearray:
        """A buffer into which a stream is read, up to the limit of output."""
        buffer = bytearray()
        self._in_thread(self._collect, getattr(self.process, name), buffer, name == "stderr")
        return buffer

    def _collect(self, source: IO[bytes], buffer: bytearray, marked: bool) -> None:
        room = self.program.limits.output_bytes + (len(single.BEGUN) if marked else 0)
        while data := source.read(1 << 16):
            buffer += data[: room - len(buffer)]
            if marked and single.BEGUN in buffer[:4096]:
                self._began.set()
            if len(buffer) == room and len(data):
                self.stop("output")

    def _in_thread(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def stop(self, reason: str) -> None:
        """Kill it."""
        if not self._stopped and self.process.poll() is None:
            self._stopped = reason
            _cli(self.engine, "kill", self.name)
            self.process.kill()  # the client, should the engine not answer

    def close(self) -> None:
        """End the engine's client, and the threads with it."""
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(_CLI_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def result(self, stdout: bytes | bytearray) -> ProgramResult:
        """Wait for its end."""
        started = time.monotonic()
        while not self._began.wait(0.05) and self.process.poll() is None:
            if time.monotonic() - started > _START_S:
                self.stop("start")
                break
        began = time.monotonic()
        try:
            code = self.process.wait(self.program.limits.wall_s)
        except subprocess.TimeoutExpired:
            self.stop("wall")
            code = self.process.wait()
        wall_s = time.monotonic() - began
        for thread in self._threads:
            thread.join(_CLI_S)
        preamble, begun, stderr = bytes(self._stderr).partition(single.BEGUN)
        code = 128 - code if code > 128 else code
        ending, reason = self._ending(code, preamble, bool(begun), stderr)
        ran = ending not in (Ending.SANDBOX_FAILURE, Ending.REFUSED)
        return ProgramResult(
            ending=ending,
            exit_code=code if ran else None,
            reason=reason,
            stdout=bytes(stdout),
            stderr=stderr,
            wall_s=wall_s,
        )

    def _ending(self, code: int, before: bytes, begun: bool, stderr: bytes) -> tuple[Ending, str]:
        for words in (before, stderr):
            if words.startswith(box.REFUSED):
                return Ending.REFUSED, words[len(box.REFUSED) :].decode(errors="replace")
        if not begun and self._stopped != "output":
            reason = before.decode(errors="replace")[-500:] or "the container did not start"
            return Ending.SANDBOX_FAILURE, reason
        killed = self._stopped
        if killed not in ("output", "wall"):
            state = _cli(self.engine, "inspect", "--format", "{{.State.OOMKilled}}", self.name)
            killed = "memory" if state.stdout.strip() == "true" else ""
        return ending_of(
            self.program.limits, code=code, stopped=self._stopped, killed=killed, cpu_s=0.0, stderr=stderr
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
