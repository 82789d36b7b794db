"""Ends interrupted work, and work that runs out of disk or memory, with a clear message."""

from __future__ import annotations

import errno
import os
import re
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from surefoot.errors import RunError
from surefoot.io.atomic import TEMPORARY_SUFFIX

TERMINATED = 128 + signal.SIGTERM
"""Exit status after SIGTERM."""

_DISK = {
    errno.ENOSPC: "the disk is full: free some of it, or set TMPDIR to another directory",
    errno.EDQUOT: "the quota of the disk is used up: free some of it",
    errno.EFBIG: "a file may not become larger: raise the limit (ulimit -f)",
    errno.EROFS: "the file system is read-only: choose another --out",
}
_REFUSED = (errno.EACCES, errno.EPERM)
# errors of safetensors and sqlite3 lack a number
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_NO_MEMORY = re.compile(
    r"can't allocate memory|out of memory|CUBLAS_STATUS_ALLOC_FAILED|not enough memory", re.IGNORECASE
)


@contextmanager
def plain_endings(outputs: Sequence[Path], saves_memory: Sequence[str]) -> Iterator[None]:
    """Convert errors of a full disk or memory to ``RunError``, and SIGTERM to an exit with status 143.

    SIGTERM is handled like Ctrl-C, so that files get closed, but only for commands with ``outputs``; servers
    handle it themselves. ``saves_memory`` names options that reduce memory.
    """
    process, received = os.getpid(), list[int]()

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        if os.getpid() != process:  # a forked child
            os._exit(128 + number)
        received.append(number)
        raise KeyboardInterrupt

    handles = outputs and threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGTERM, interrupt) if handles else None
    try:
        yield
    except KeyboardInterrupt:
        if received:
            raise SystemExit(TERMINATED) from None
        raise
    except Exception as error:
        if (sentence := _sentence(error, saves_memory)) is None:
            raise
        raise RunError(f"{sentence}, then start the same command again: it resumes") from error
    finally:
        if handles:
            signal.signal(signal.SIGTERM, previous)


def _sentence(error: BaseException, saves_memory: Sequence[str]) -> str | None:
    """The message for an error of disk or memory, or for one that it was raised from; otherwise ``None``."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        number = _number(cause)
        path = getattr(cause, "filename", None)
        name = f"{_shown(path)}: " if isinstance(path, str) else ""
        if number in _DISK:
            return name + _DISK[number]
        if number in _REFUSED and cause is error and name:
            return f"{name}this user may not write or read it: change its rights, or choose another path"
        if number == errno.ENOMEM or _is_memory(cause):
            device = "the device" if "CUDA" in str(cause) else "the machine"
            fix = f"try {' or '.join(saves_memory)}" if saves_memory else "free some, or use a larger machine"
            return f"the memory of {device} is used up: {fix}"
        cause = cause.__cause__ or cause.__context__
    return None


def told(error: Exception) -> str:
    """An error as one sentence, without its number; of a file, its path and what is wrong there."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}; check the path"
    return re.sub(r"\[Errno -?\d+\] ", "", " ".join(str(error).split()))


def _shown(path: str) -> str:
    """The folder of a temporary file, whose own name the user has never seen."""
    return str(Path(path).parent) if path.endswith(TEMPORARY_SUFFIX) else path


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    if isinstance(error, sqlite3.Error):
        return errno.ENOSPC if error.sqlite_errorcode == sqlite3.SQLITE_FULL else None
    if type(error).__name__ == "SafetensorError" and (match := _OS_ERROR.search(str(error))):
        return int(match[1])
    return None


def _is_memory(error: BaseException) -> bool:
    """Whether the memory of the machine or a device is used up; torch is not imported for this."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))
