"""Programs in a box that bubblewrap makes: Linux namespaces, started once and kept warm.

One bubblewrap holds a *zygote* (``inside/zygote.py``), which starts a fresh process for every program, in
new user, PID and mount namespaces. Nothing here parses a program's output: results come
from the zygote over sockets that programs do not have.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from surefoot.concurrency import FairQueue
from surefoot.errors import SandboxError
from surefoot.sandbox.inside import box
from surefoot.sandbox.protocol import (
    Ending,
    Limits,
    LocalSandbox,
    Program,
    ProgramResult,
    ending_of,
    with_peer,
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

    def _attempt(self, program: Program) -> ProgramResult:
        with self._lock:
            if self._box is None:
                self._box = _Box()
            box = self._box
        with selectors.DefaultSelector() as selector:
            run = _Run(program, selector)
            run.start(box)
            while not (run.done or run.failed):
                for key, _ in selector.select(max(0.0, run.deadline - time.monotonic())):
                    key.data()
                if time.monotonic() > run.deadline and not run.done:
                    run.fail("the box did not end a program that was over its time")
            if run.failed:
                run.abandon()
                with self._lock:
                    if self._box is box:
                        self._box.kill()
                        self._box = None
            return run.result()

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

    def start(self, limits: Limits, fds: Sequence[int]) -> None:
        """Start a program. Raises ``ConnectionError``: the box died."""
        try:
            socket.send_fds(self.control, [limits.model_dump_json().encode()], fds)
        except OSError as problem:
            raise ConnectionError from problem

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


class _Run:
    """A program that runs, with its peer."""

    def __init__(self, program: Program, selector: selectors.BaseSelector) -> None:
        self.parts = [_Part(program, selector, self)]
        if program.peer is not None:
            self.parts.append(_Part(program.peer, selector, self))
        longest = max(part.program.limits.wall_s for part in self.parts)
        self.deadline = time.monotonic() + longest + _GRACE_S

    def start(self, box: _Box) -> None:
        with contextlib.ExitStack() as stack:
            try:
                if len(self.parts) == 1:
                    (part,) = self.parts
                    part.start(box, _nowhere(stack), part.reader("stdout", stack))
                else:
                    first, second = self.parts
                    (read_1, write_1), (read_2, write_2) = _pipe(stack), _pipe(stack)
                    second.start(box, read_1, write_2)
                    first.start(box, read_2, write_1)
            except ConnectionError:
                self.fail("the box died")

    @property
    def done(self) -> bool:
        return all(part.done for part in self.parts)

    @property
    def failed(self) -> bool:
        """The box failed, so that all that runs in it is lost."""
        return any(part.lost for part in self.parts)

    def fail(self, reason: str) -> None:
        for part in self.parts:
            part.lost = part.lost or reason

    def ended(self, part: _Part) -> None:
        """Without the first program, its peer has nothing to do."""
        if part is self.parts[0]:
            for other in self.parts[1:]:
                other.stop("its peer ended")

    def abandon(self) -> None:
        for part in self.parts:
            part.close()
            if not part.done:
                part.lost = part.lost or "the box died with another program"

    def result(self) -> ProgramResult:
        first, *peers = (part.result() for part in self.parts)
        return with_peer(first, peers[0]) if peers else first


class _Part:
    """One of the processes of a run: its output while it comes, and then how it ended."""

    def __init__(self, program: Program, selector: selectors.BaseSelector, run: _Run) -> None:
        self.program = program
        self.lost = ""
        self._selector = selector
        self._run = run
        self._stopped = ""
        self._message: dict[str, Any] | None = None
        self._output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._open: dict[str, int] = {}
        self._status: socket.socket | None = None

    @property
    def done(self) -> bool:
        return bool(self.lost) or (self._message is not None and not self._open)

    def reader(self, name: str, stack: contextlib.ExitStack) -> int:
        """The end to write of a pipe that is read into ``name``."""
        read, write = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, write)
        os.set_blocking(read, False)
        self._open[name] = read
        self._selector.register(read, selectors.EVENT_READ, lambda: self._read(name))
        return write

    def start(self, box_: _Box, stdin: int, stdout: int) -> None:
        """Raises ``ConnectionError``: the box died."""
        with contextlib.ExitStack() as stack:
            stdin_bytes = None if len(self._run.parts) > 1 else self.program.stdin
            packed = _sealed(box.pack(self.program.argv, self.program.files, stdin_bytes), stack)
            self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(status.close)
            self._selector.register(self._status, selectors.EVENT_READ, self._told)
            fds = [status.fileno(), packed, stdin, stdout, self.reader("stderr", stack)]
            box_.start(self.program.limits, fds)

    def stop(self, reason: str) -> None:
        """Have it killed; its end is still reported."""
        if self._message is None and not self._stopped and self._status is not None:
            self._stopped = reason
            with contextlib.suppress(OSError):
                self._status.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for name in list(self._open):
            self._close(name)
        if self._status is not None:
            self._selector.unregister(self._status)
            self._status.close()
            self._status = None

    def _close(self, name: str) -> None:
        fd = self._open.pop(name)
        self._selector.unregister(fd)
        os.close(fd)

    def _read(self, name: str) -> None:
        data = os.read(self._open[name], 1 << 16)
        if not data:
            self._close(name)
            return
        buffer = self._output[name]
        room = self.program.limits.output_bytes - len(buffer)
        buffer += data[:room]
        if len(data) > room:
            self.stop("output")

    def _told(self) -> None:
        assert self._status is not None  # noqa: S101
        data = self._status.recv(1 << 16)
        self._selector.unregister(self._status)
        self._status.close()
        self._status = None
        if data:
            self._message = json.loads(data)
            self._run.ended(self)
        else:
            self._run.fail("the box died")

    def result(self) -> ProgramResult:
        ending, reason = self._ending()
        message = self._message or {}
        ran = ending is not Ending.SANDBOX_FAILURE and ending is not Ending.REFUSED
        return ProgramResult(
            ending=ending,
            exit_code=message.get("exit_code") if ran else None,
            reason=reason,
            stdout=bytes(self._output["stdout"]),
            stderr=bytes(self._output["stderr"]),
            wall_s=message.get("wall_s", 0.0),
            cpu_s=message.get("cpu_s", 0.0),
            peak_bytes=message.get("peak_bytes", 0),
        )

    def _ending(self) -> tuple[Ending, str]:
        message = self._message or {}
        if not message or self.lost or message.get("failure"):
            return Ending.SANDBOX_FAILURE, self.lost or message.get("failure", "")
        if message["refused"] and self._stopped != "output":
            return Ending.REFUSED, message["refused"]
        return ending_of(
            self.program.limits,
            code=message["exit_code"],
            stopped=self._stopped,
            killed=message["killed"],
            cpu_s=message["cpu_s"],
            stderr=bytes(self._output["stderr"]),
        )


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    for end in ends:
        stack.callback(os.close, end)
    return ends


def _nowhere(stack: contextlib.ExitStack) -> int:
    fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _sealed(data: bytes, stack: contextlib.ExitStack) -> int:
    """A sealed file in memory, positioned at its beginning."""
    fd = os.memfd_create("program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
