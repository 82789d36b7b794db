"""One program, from a fresh process of the zygote to its end: it gives up every right, then runs."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import resource
import signal
import struct
import sys
import threading
import types
from pathlib import Path
from typing import IO, Any, NoReturn

from . import seccomp

WORK = "/tmp"  # noqa: S108 - a file system of the program's own
BEGUN, REFUSED = b"+", b"refused: "
"""What a report begins with where the program was begun, or could not be. Any other: the box failed."""

_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 2, 4, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_CAP_AMBIENT = 1, 24, 28, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_ALL_SECURE_BITS_LOCKED = 0xEF
"""Root has the rights of an ordinary user; no right is kept or raised, and this is locked."""
_LAST_CAPABILITY = 40
_CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def pack(argv: tuple[str, ...], files: dict[str, bytes], stdin: bytes | None) -> bytes:
    """A program as bytes: a JSON header with its length before it, the contents. ``None``: no input."""
    header = json.dumps(
        {
            "argv": argv,
            "files": [(name, len(data)) for name, data in files.items()],
            "stdin": None if stdin is None else len(stdin),
        }
    ).encode()
    return b"".join([struct.pack("<I", len(header)), header, *files.values(), stdin or b""])


def run(program_fd: int, report_fd: int, limits: dict[str, Any], uid: int, filter_program: bytes) -> NoReturn:
    """Confine this process, then run the program that ``program_fd`` holds.

    Its standard streams are 0, 1 and 2. What happens before the program begins is written to ``report_fd``,
    which the program does not get. Raises ``OSError``: the process could not be confined.
    """
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)  # rights within the namespace stay until they are given up
    own_file_system(limits)
    try:
        with open(program_fd, "rb") as file:
            argv, stdin = unpack(file)
        if stdin is not None:
            replace_stdin(stdin)
    except OSError as problem:
        refuse(report_fd, f"the files cannot be written: {problem.strerror}; raise 'disk_bytes'")
    confine(limits, filter_program)
    os.write(report_fd, BEGUN)
    os.set_inheritable(report_fd, False)
    start(argv, report_fd)


def start(argv: list[str], report_fd: int) -> NoReturn:
    """Become the program. That it cannot be executed is written to ``report_fd``."""
    if argv[0] == "python" and len(argv) > 1 and (argv[1].endswith(".py") or argv[1] == "-m"):
        if not os.get_inheritable(report_fd):
            os.close(report_fd)
        run_python(argv[1:])
    try:
        os.execvp(sys.executable if argv[0] == "python" else argv[0], argv)  # noqa: S606
    except OSError as problem:
        refuse(report_fd, f"{argv[0]!r} cannot be executed: {problem.strerror}")


def refuse(report_fd: int, reason: str) -> NoReturn:
    os.write(report_fd, REFUSED + reason.encode()[:1000])
    os._exit(1)


def checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def own_file_system(limits: dict[str, Any]) -> None:
    """Mount an empty directory for the program's files, bounded in bytes and in number, and go there."""
    checked(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount namespace")
    flags = _MS_NOSUID | _MS_NODEV
    files = max(64, limits["disk_bytes"] // 4096)
    options = f"size={limits['disk_bytes']},nr_inodes={files},mode=700".encode()
    checked(libc.mount(b"tmpfs", WORK.encode(), b"tmpfs", flags, options), "working directory")
    os.chdir(WORK)


def unpack(file: IO[bytes]) -> tuple[list[str], bytes | None]:
    """Write the files of a program; its command line and standard input. Raises ``OSError``: no room."""
    (length,) = struct.unpack("<I", file.read(4))
    header = json.loads(file.read(length))
    for name, size in header["files"]:
        path = Path(WORK, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.read(size))
    return header["argv"], None if header["stdin"] is None else file.read(header["stdin"])


def replace_stdin(data: bytes) -> None:
    """Make standard input an unnamed file of these bytes."""
    with open(os.open(WORK, os.O_TMPFILE | os.O_RDWR, 0o400), "rb+") as file:
        file.write(data)
        file.flush()
        file.seek(0)
        os.dup2(file.fileno(), 0)


def confine(limits: dict[str, Any], filter_program: bytes) -> None:
    """Limits, then no rights, then the filter of system calls. Nothing of it can be undone."""
    limit(limits)
    os.umask(0o077)
    for capability in range(_LAST_CAPABILITY + 1):
        checked(libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "capability bounding set")
    checked(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient capabilities")
    checked(libc.prctl(_PR_SET_SECUREBITS, _ALL_SECURE_BITS_LOCKED, 0, 0, 0), "secure bits")
    nothing = struct.pack("=6I", *([0] * 6))
    checked(libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), nothing), "capabilities")
    checked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "signal at the parent's death")
    seccomp.install(libc, filter_program)


def limit(limits: dict[str, Any]) -> None:
    """The limits that hold for each process."""
    cpu = int(limits["cpu_s"])
    bounds = {
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: 1024,
    }
    for name, value in bounds.items():
        resource.setrlimit(name, (value, value))


def run_python(arguments: list[str]) -> NoReturn:
    """Run a file, or a module of this package, as ``__main__`` in this interpreter, and end the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    streams = {
        "stdin": open(0, encoding="utf-8", errors="surrogateescape", closefd=False),
        "stdout": open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False),
        "stderr": open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False),
    }
    for name, stream in streams.items():
        sys.__dict__.update({name: stream, f"__{name}__": stream})
    status = 1
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.modules[arguments[1]].main()
        else:
            sys.argv = arguments
            sys.path.insert(0, WORK)
            sys.modules["__main__"] = module = types.ModuleType("__main__")
            module.__dict__.update(__file__=arguments[0], __builtins__=__builtins__)
            with open(arguments[0], "rb") as file:
                code = compile(file.read(), arguments[0], "exec", dont_inherit=True)
            exec(code, module.__dict__)  # noqa: S102 - confined, and this is what the box is for
        status = 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status = (end.code or 0) & 0xFF
        else:
            print(end.code, file=sys.stderr)
    except BaseException as problem:
        below = problem.__traceback__.tb_next if problem.__traceback__ else None
        sys.excepthook(type(problem), problem.with_traceback(below), below)
    finish(status)


def finish(status: int) -> NoReturn:
    """End as the interpreter does: wait for threads, call exit functions, flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        status = status or 120
    os._exit(status)
