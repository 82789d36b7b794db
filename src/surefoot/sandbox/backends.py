"""Sandboxes by name: a box that bubblewrap makes, and containers of Docker or Podman.

One bubblewrap (Linux namespaces, started once and kept warm) holds a *zygote* (``inside/zygote.py``), which
starts a fresh process for every program, in new user, PID and mount namespaces. Nothing here parses a
program's output: results come from the zygote over sockets that programs do not have. A container is fresh
for each program.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import selectors
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from surefoot.concurrency import FairQueue
from surefoot.errors import SandboxError
from surefoot.sandbox.inside import box, single
from surefoot.sandbox.programs import (
    Ending,
    Limits,
    LocalSandbox,
    Program,
    ProgramResult,
    SandboxedProcess,
    ending_of,
    joined_pipes,
)

_INSIDE = Path(box.__file__).parent
_MOUNT = "/box"
_START_S = 30.0
"""Seconds that bubblewrap has to start."""
_GRACE_S = 5.0
"""Seconds beyond a program's own wall time after which the box itself counts as dead."""
_QUICK_S = 1.0
"""Programs of a client that take longer on average leave half of the turns to others."""
_PROGRAM_ID = 0x7FFE0000
"""User and group of programs where root starts them: limits by user do not hold for root's own."""
_INSTALL = (
    "install it (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap), or use Docker: "
    "--sandbox docker"
)


class BubblewrapSandbox(LocalSandbox):
    """Runs programs in Linux namespaces. Clients of a server take fair turns.

    Raises:
        SandboxError: programs cannot be isolated here; the message says what to install or allow.
    """

    def __init__(self, *, concurrency: int | None = None) -> None:
        super().__init__(concurrency)
        self._box: _Box | None = _Box()
        self._lock = threading.Lock()
        self._turns = FairQueue(self.concurrency, quick=self.concurrency // 2, quick_cost=_QUICK_S)

    def _run(self, program: Program) -> ProgramResult:
        with self._turns.turn():
            return super()._run(program)

    @contextlib.contextmanager
    def _started(self, program: Program, selector: selectors.BaseSelector) -> Iterator[list[_Process]]:
        with self._lock:
            box = self._box = self._box or _Box()
        parts = [_Process(part, selector) for part in (program, program.peer) if part is not None]
        try:
            with contextlib.ExitStack() as stack:
                if len(parts) == 1:
                    stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
                    stack.callback(os.close, stdin)
                    parts[0].start(box, stdin, parts[0].pipe("stdout", stack), program.stdin)
                else:
                    for part, (stdin, stdout) in zip(parts, joined_pipes(stack), strict=True):
                        part.start(box, stdin, stdout, None)
            yield parts
        finally:
            for part in parts:
                part.close()
            if any(part.lost for part in parts):
                with self._lock:
                    box.kill()
                    self._box = None if self._box is box else self._box

    def close(self) -> None:
        """End the box. The next ``run`` starts a new one."""
        with self._lock:
            if self._box is not None:
                self._box.kill()
                self._box = None

    def __del__(self) -> None:
        if (box := getattr(self, "_box", None)) is not None:
            box.kill()


class _Box:
    """A bubblewrap with a zygote that is ready. Raises ``SandboxError``."""

    def __init__(self) -> None:
        bwrap = shutil.which("bwrap")
        if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
            raise SandboxError(
                f"the bubblewrap sandbox needs Linux on x86_64, not {sys.platform} on {platform.machine()}; "
                "use Docker (--sandbox docker)"
            )
        if bwrap is None:
            raise SandboxError(f"bubblewrap ('bwrap') is missing, and nothing runs without it; {_INSTALL}")
        self.control, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        outer_uid = _second_id()
        with contextlib.ExitStack() as stack:
            try:
                with inner:  # closed here, so that its end is seen
                    self.process = _start_bubblewrap(bwrap, inner.fileno(), self._errors, outer_uid, stack)
                self.control.settimeout(_START_S)
                ready = self.control.recv(64)
            except OSError as problem:
                ready = str(problem).encode()
        if ready != b"ready":
            self._errors.seek(0)
            reason = self._errors.read(2000).decode(errors="replace").strip() or ready.decode()
            self.kill()
            raise SandboxError(
                f"bubblewrap cannot isolate programs here: {reason}. It needs user namespaces "
                "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; "
                "in a container: a seccomp profile that allows them and an unmasked /proc), or use Docker: "
                "--sandbox docker"
            )
        self.control.settimeout(_GRACE_S)

    def kill(self) -> None:
        """End bubblewrap and all in it."""
        self.control.close()
        if (process := getattr(self, "process", None)) is not None:
            process.kill()
            process.wait()
        self._errors.close()


def _start_bubblewrap(
    bwrap: str, control: int, errors: IO[bytes], outer_uid: int | None, stack: contextlib.ExitStack
) -> subprocess.Popen[bytes]:
    """Root maps a second user into the box, for the programs: limits by user do not hold for root's own."""
    python = Path(sys.executable).resolve()
    command = [
        *(bwrap, "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session"),
        *("--cap-add", "ALL", "--hostname", "box"),
        *("--ro-bind", "/usr", "/usr"),
        *_links_of_usr(),
        *(word for path in _interpreter(python) for word in _bound(path, path)),
        *_bound(str(_INSIDE), f"{_MOUNT}/inside"),
        *("--proc", "/proc", "--dir", "/tmp", "--perms", "0755", "--dir", "/dev"),  # noqa: S108 - inside the box
        *(word for name in ("null", "full", "random", "urandom") for word in _device(name)),
        # mapped as shared, /dev/zero is memory without a file; /dev/full reads the same
        *("--symlink", "full", "/dev/zero"),
        *("--symlink", "/tmp", "/dev/shm"),  # noqa: S108 - inside the box
        *("--remount-ro", "/", "--chdir", "/", "--clearenv"),
        *("--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8"),  # noqa: S108
        *("--setenv", "PYTHONHASHSEED", "0", "--setenv", "PYTHONPATH", _MOUNT),
        *("--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
    ]
    zygote = [str(python), "-S", "-P", "-m", "inside.zygote"]
    if outer_uid is None:
        words = [*command, "--uid", "0", "--gid", "0", *zygote, "0"]
        return subprocess.Popen(words, stdin=control, stdout=errors, stderr=errors)  # noqa: S603
    info, info_child = os.pipe()
    block_child, block = os.pipe()
    stack.callback(os.close, block)
    with os.fdopen(info, encoding="utf-8") as info_file:
        try:
            process = subprocess.Popen(  # noqa: S603
                [*command, "--info-fd", str(info_child), "--userns-block-fd", str(block_child), *zygote, "1"],
                stdin=control, stdout=errors, stderr=errors, pass_fds=(info_child, block_child),
            )  # fmt: skip
        finally:
            os.close(info_child)
            os.close(block_child)
        text = ""
        while "}" not in text and (line := info_file.readline()):
            text += line
    try:
        pid = json.loads(text)["child-pid"] if text else 0
        for name in ("uid_map", "gid_map") if pid else ():
            Path(f"/proc/{pid}/{name}").write_text(f"0 0 1\n1 {outer_uid} 1\n")
        os.write(block, b"1")
    except OSError as problem:  # bubblewrap's own error message is more useful than this one
        errors.write(b"" if isinstance(problem, BrokenPipeError) else str(problem).encode())
        process.kill()
    return process


def _second_id() -> int | None:
    """A user that root can map into the box besides itself; ``None``: not root, or there is none."""
    if os.geteuid() != 0:
        return None
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= _PROGRAM_ID < first + count:
            return _PROGRAM_ID
        if count > 1:
            return first + count - 1
    return None


def _links_of_usr() -> Iterator[str]:
    """``/bin`` and the like: links into ``/usr``, or directories of their own on older systems."""
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


def _interpreter(python: Path) -> list[str]:
    """What Python needs beyond ``/usr``: the program, the standard library, its shared library."""
    library = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    shared = Path(*library).resolve() if all(library) else None
    paths = {python, Path(sysconfig.get_path("stdlib")).resolve()}
    if shared is not None and shared.is_file() and shared.suffix != ".a":
        paths.add(shared)
    return sorted(str(path) for path in paths if not path.is_relative_to("/usr"))


def _bound(source: str, target: str) -> Iterator[str]:
    """A file or directory, read-only, in directories that every user may pass."""
    for parent in reversed(Path(target).parents[:-1]):
        yield from ("--perms", "0755", "--dir", str(parent))
    yield from ("--ro-bind", source, target)


def _device(name: str) -> tuple[str, ...]:
    return "--dev-bind", f"/dev/{name}", f"/dev/{name}"


class _Process(SandboxedProcess):
    """A program in the box, and the socket on which its end is reported."""

    def __init__(self, program: Program, selector: selectors.BaseSelector) -> None:
        super().__init__(program, selector, deadline=time.monotonic() + program.limits.wall_s + _GRACE_S)
        self._message: dict[str, Any] = {}
        self._status: socket.socket | None = None

    def pipe(self, name: str, stack: contextlib.ExitStack) -> int:
        """The end to write of a pipe that is read into an output."""
        read, write = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, write)
        os.set_blocking(read, False)
        self.read(name, read)
        return write

    def start(self, box_: _Box, stdin: int, stdout: int, stdin_bytes: bytes | None) -> None:
        with contextlib.ExitStack() as stack:
            packed = _sealed(box.pack(self.program.argv, self.program.files, stdin_bytes), stack)
            self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(status.close)
            self.selector.register(self._status, selectors.EVENT_READ, self._reported)
            fds = [status.fileno(), packed, stdin, stdout, self.pipe("stderr", stack)]
            try:
                socket.send_fds(box_.control, [self.program.limits.model_dump_json().encode()], fds)
            except OSError:
                self.lost = "the box died"

    def overtime(self) -> None:
        self.lost = "the box did not end a program that was over its time"

    def close(self) -> None:
        super().close()
        if self._status is not None:
            self.selector.unregister(self._status)
            self._status.close()
            self._status = None

    def _kill(self) -> None:
        if self._status is not None:
            with contextlib.suppress(OSError):
                self._status.shutdown(socket.SHUT_WR)

    def _reported(self) -> None:
        assert self._status is not None  # noqa: S101
        data = self._status.recv(1 << 16)
        self.selector.unregister(self._status)
        self._status.close()
        self._status, self.ended = None, True
        if data:
            self._message = json.loads(data)
        else:
            self.lost = "the box died"

    def result(self) -> ProgramResult:
        message = self._message
        measured = {name: message.get(name, 0) for name in ("wall_s", "cpu_s", "peak_bytes")}
        return self._result(*self._ending(), message.get("exit_code"), **measured)

    def _ending(self) -> tuple[Ending, str]:
        message = self._message
        if not self.done or self.lost or message["failure"]:
            failure = message.get("failure") or "the box died with another program"
            return Ending.SANDBOX_FAILURE, self.lost or failure
        if message["refused"] and self.stopped != "output":
            return Ending.REFUSED, message["refused"]
        return ending_of(
            self.program.limits,
            code=message["exit_code"],
            stopped=self.stopped,
            killed=message["killed"],
            cpu_s=message["cpu_s"],
            stderr=bytes(self.output["stderr"]),
        )


def _sealed(data: bytes, stack: contextlib.ExitStack) -> int:
    """A sealed file in memory, positioned at its beginning."""
    fd = os.memfd_create("program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


_ENGINES = ("docker", "podman")
IMAGE = "python:3.12-slim"
"""Image of the containers, with a Python of 3.11 or newer."""
_CONTAINER_S = 60.0
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
        super().__init__(program, selector, deadline=time.monotonic() + _CONTAINER_S)
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
