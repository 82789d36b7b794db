"""Ends interrupted work, and work that runs out of disk or memory, with a clear message."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import NoReturn

from surefoot.errors import RunError

TERMINATED = 128 + signal.SIGTERM
"""Exit status after SIGTERM."""

_RESUME = "then start the same command again: it resumes"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# errors of safetensors and sqlite3 lack a number
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_NO_MEMORY = re.compile(
    r"can't allocate memory|out of memory|CUBLAS_STATUS_ALLOC_FAILED|not enough memory", re.IGNORECASE
)


@contextmanager
def plain_endings(outputs: Sequence[Path], saves_memory: Sequence[str]) -> Iterator[None]:
    """Convert errors of a full disk or memory to ``RunError``, and SIGTERM to an exit with status 143.

    SIGTERM is only handled for commands with ``outputs``; servers handle it themselves. ``saves_memory``
    names options that reduce memory.
    """
    signals: AbstractContextManager[list[int]] = _sigterm_interrupts() if outputs else nullcontext([])
    with signals as terminated:
        try:
            yield
        except KeyboardInterrupt:
            if terminated:
                raise SystemExit(TERMINATED) from None
            raise
        except Exception as error:
            if (sentence := _sentence(error, outputs, saves_memory)) is None:
                raise
            raise RunError(sentence) from error


@contextmanager
def _sigterm_interrupts() -> Iterator[list[int]]:
    """Handle SIGTERM like Ctrl-C, so that files get closed; the list then holds the signal."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    process = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        if os.getpid() != process:  # a forked child
            os._exit(128 + number)
        received.append(number)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, previous)


def _sentence(error: BaseException, outputs: Sequence[Path], saves_memory: Sequence[str]) -> str | None:
    """The message for an error of disk or memory, or for one that it was raised from; otherwise ``None``."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        number = _number(cause)
        if number in _FULL or number == errno.EFBIG:
            return _disk(cause, number, outputs)
        if number == errno.ENOMEM or _is_memory(cause):
            return _memory(cause, saves_memory)
        cause = cause.__cause__ or cause.__context__
    return None


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


def _disk(error: BaseException, number: int, outputs: Sequence[Path]) -> str:
    named = getattr(error, "filename", None)
    temporary = Path(tempfile.gettempdir())
    paths = [Path(named)] if isinstance(named, str) else [*outputs, temporary]
    free, folder = min((shutil.disk_usage(folder).free, folder) for folder in map(_folder, paths))
    if number == errno.EFBIG:
        return f"a file in {folder} may not become larger: raise the limit (ulimit -f), {_RESUME}"
    what = "the quota of the disk" if number == errno.EDQUOT else "the disk"
    fix = "free some, or set TMPDIR to another directory" if folder == _folder(temporary) else "free some"
    return f"{what} of {folder} is full, with {free / 1e6:.1f} MB free: {fix}, {_RESUME}"


def _folder(path: Path) -> Path:
    """The nearest existing directory."""
    path = path.resolve()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _memory(error: BaseException, saves_memory: Sequence[str]) -> str:
    device = "the device" if "CUDA" in str(error) else "the machine"
    fix = f"try {' or '.join(saves_memory)}" if saves_memory else "free some, or use a larger machine"
    return f"the memory of {device} is used up: {fix}, {_RESUME}"
