"""How work ends that machine or user do not let finish: with a sentence, and what is saved is kept."""

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
"""Exit status of work that SIGTERM ended."""

_AGAIN = "then start the same command again: what is saved is kept"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# safetensors and sqlite3 have no error numbers
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_NO_MEMORY = re.compile(
    r"can't allocate memory|out of memory|CUBLAS_STATUS_ALLOC_FAILED|not enough memory", re.IGNORECASE
)


@contextmanager
def plain_endings(outputs: Sequence[Path], saves_memory: Sequence[str]) -> Iterator[None]:
    """Turn the end of disk or memory into ``RunError``, and SIGTERM into an interrupt with exit status 143.

    ``outputs`` is what the command writes: without any there is nothing to close at SIGTERM, and a server
    ends in its own way. ``saves_memory`` names what may need less memory.
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
    """Within it, SIGTERM is as Ctrl-C, so that what is open gets closed; the list then holds the signal."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    process = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        if os.getpid() != process:  # a fork has nothing to close
            os._exit(128 + number)
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def _sentence(error: BaseException, outputs: Sequence[Path], saves_memory: Sequence[str]) -> str | None:
    """What ended, and what helps; ``None`` if neither disk nor memory did. Errors may hide one another."""
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
    if type(error).__name__ == "SafetensorError" and (found := _OS_ERROR.search(str(error))):
        return int(found[1])
    return None


def _is_memory(error: BaseException) -> bool:
    """Whether memory of the machine or of a device ended; torch is not loaded to find out."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))


def _disk(error: BaseException, number: int, outputs: Sequence[Path]) -> str:
    named = getattr(error, "filename", None)
    temporary = Path(tempfile.gettempdir())
    places = [Path(named)] if isinstance(named, str) else [*outputs, temporary]
    free, place = min((shutil.disk_usage(folder).free, folder) for folder in map(_folder, places))
    if number == errno.EFBIG:
        return f"a file in {place} may not become larger: raise the limit (ulimit -f), {_AGAIN}"
    what = "the quota of the disk" if number == errno.EDQUOT else "the disk"
    fix = "free some, or set TMPDIR to another directory" if place == _folder(temporary) else "free some"
    return f"{what} of {place} is full, with {free / 1e6:.1f} MB free: {fix}, {_AGAIN}"


def _folder(path: Path) -> Path:
    """The nearest directory that is there."""
    path = path.resolve()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _memory(error: BaseException, saves_memory: Sequence[str]) -> str:
    device = "the device" if "CUDA" in str(error) else "the machine"
    fix = f"try {' or '.join(saves_memory)}" if saves_memory else "free some, or use a larger machine"
    return f"the memory of {device} is used up: {fix}, {_AGAIN}"
