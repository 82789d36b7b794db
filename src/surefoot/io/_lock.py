"""One process per run directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from surefoot.errors import RunError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: two runs in one directory are not kept apart there
    fcntl = None  # type: ignore[assignment]


class RunLock:
    """A lock that the operating system holds for as long as the process lives, and no longer.

    So a run that was killed leaves no lock behind. The file's text (the holder's process id) is only
    for the message.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock, or raise ``RunError`` if a living process holds it."""
        self._stream: IO[str] | None = path.open("a+", encoding="utf-8")
        if fcntl is None:  # pragma: no cover
            return
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stream.seek(0)
            holder = self._stream.read().strip() or "unknown"
            self.release()
            raise RunError(
                f"{path.parent} is in use by process {holder}; wait for it to end, or use another --out"
            ) from None
        self._stream.truncate(0)
        self._stream.write(f"{os.getpid()}\n")
        self._stream.flush()

    def release(self) -> None:
        """Give the lock up; a second call does nothing."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
