"""Who writes in a run's directory, on this machine or on another that sees the same disk.

On one machine the operating system knows: it holds a lock for as long as a process lives. A shared file
system need not, so a process on another machine is believed to live while its lease is renewed. A lease is a
file ``.lease-000003``: the number, its *epoch*, is one more than that of the lease before, and the file is
made only if nobody else has made it, which every file system does atomically. Whoever finds another lease in
place of its own has lost the directory and must not write any more.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from surefoot.errors import RunError
from surefoot.io.atomic import NODE

try:
    import fcntl
except ImportError:  # pragma: no cover - on Windows the lease alone keeps others away
    fcntl = None  # type: ignore[assignment]

_LOG = logging.getLogger("surefoot.io")
LEASE_S: Final = 60.0
"""Seconds without renewal after which a process on another machine is taken for dead."""


class Lease:
    """The right of this process to write in ``directory``, until :meth:`release` or the process's end.

    A thread renews it four times in ``seconds``. The age of another's lease is that of its file by the clock
    of the file system, so the clocks of the machines may differ. A process that is stopped for longer than
    ``seconds`` loses its lease to any other machine that asks, and finds out in :meth:`check`.
    """

    def __init__(self, directory: Path, *, seconds: float = LEASE_S) -> None:
        """Take the lease, after at most ``seconds`` in which a holder on another machine may renew it.

        Raises ``RunError`` if a living process has it.
        """
        self.directory, self.seconds = directory, seconds
        self._text = json.dumps({"node": NODE, "pid": os.getpid(), "key": secrets.token_hex(8)}) + "\n"
        self._lock, self._alone_here = _lock(directory / ".lock")
        try:
            self.epoch = self._take()
        except BaseException:
            self._lock.close()
            raise
        self._released = threading.Event()
        threading.Thread(target=self._renew, daemon=True, name=f"lease of {directory}").start()

    @property
    def held(self) -> bool:
        """Whether :meth:`release` was not called yet."""
        return not self._lock.closed

    def check(self) -> None:
        """Raise ``RunError`` if another process has taken the directory over."""
        try:
            if self._path(self.epoch).read_text(encoding="utf-8") == self._text:
                return
        except OSError:
            pass
        epoch, holder = self._last()
        raise RunError(
            f"{self.directory} was taken over by {_name(holder)} (epoch {epoch}) while this process, epoch "
            f"{self.epoch}, did not renew its lease for {self.seconds:.0f} s; nothing more is written here"
        )

    def release(self) -> None:
        """Give the directory up; a second call does nothing."""
        if not self.held:
            return
        self._released.set()
        with suppress(OSError, RunError):
            self.check()
            self._path(self.epoch).unlink()
        self._lock.close()

    def _take(self) -> int:
        """Make the next lease, once the holder of the last one is known to be dead."""
        while True:
            last, holder = self._last()
            if holder and not (holder.get("node") == NODE and self._alone_here):
                self._wait(last, holder)
            try:
                with self._path(last + 1).open("x", encoding="utf-8") as stream:
                    stream.write(self._text)
            except FileExistsError:
                continue  # another was faster
            for older in self.directory.glob(".lease-*"):
                if _epoch(older) <= last:
                    older.unlink(missing_ok=True)
            return last + 1

    def _wait(self, epoch: int, holder: dict[str, object]) -> None:
        """Until the lease is too old. Raises ``RunError`` if it is renewed, or followed by another."""
        renewed, age = self._renewed(epoch)
        if age < self.seconds:
            _LOG.warning(
                "%s was in use by %s %.0f s ago; waiting for at most %.0f s to see whether it still is",
                self.directory, _name(holder), age, self.seconds - age,
            )  # fmt: skip
        while age < self.seconds:
            time.sleep(min(1.0, self.seconds / 20))
            now, age = self._renewed(epoch)
            if now != renewed and now:
                raise RunError(
                    f"{self.directory} is in use by {_name(holder)}; wait for it to end, or use another --out"
                )

    def _last(self) -> tuple[int, dict[str, object]]:
        """Epoch and holder of the newest lease; 0 and nobody where there is none."""
        epoch = max((_epoch(path) for path in self.directory.glob(".lease-*")), default=0)
        try:
            holder = json.loads(self._path(epoch).read_bytes())
        except (OSError, ValueError):
            holder = {"node": "unknown"} if epoch and self._path(epoch).exists() else {}
        return epoch, holder if isinstance(holder, dict) else {"node": "unknown"}

    def _renewed(self, epoch: int) -> tuple[float, float]:
        """When the lease was last renewed, and seconds since then, by the file system's clock.

        A lease that is gone was renewed at 0.
        """
        probe = self.directory / f".lease-probe-{secrets.token_hex(4)}"
        try:
            probe.touch()
            renewed = self._path(epoch).stat().st_mtime
            return renewed, probe.stat().st_mtime - renewed
        except FileNotFoundError:
            return 0.0, math.inf
        finally:
            probe.unlink(missing_ok=True)

    def _renew(self) -> None:
        while not self._released.wait(self.seconds / 4):
            with suppress(OSError, RunError):
                self.check()
                os.utime(self._path(self.epoch))

    def _path(self, epoch: int) -> Path:
        return self.directory / f".lease-{epoch:06d}"


def _lock(path: Path) -> tuple[IO[str], bool]:
    """This machine's lock, open, and whether the file system has such locks.

    Raises ``RunError`` if a process of this machine holds it.
    """
    stream = path.open("a+", encoding="utf-8")
    locked = False
    try:
        if fcntl is not None:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
    except BlockingIOError:
        stream.seek(0)
        holder = stream.read().strip() or "unknown"
        stream.close()
        raise RunError(
            f"{path.parent} is in use by process {holder}; wait for it to end, or use another --out"
        ) from None
    except OSError as error:
        _LOG.info("%s: no locks on this file system (%s); the lease alone keeps others away", path, error)
    stream.truncate(0)
    stream.write(f"{os.getpid()}\n")
    stream.flush()
    return stream, locked


def _epoch(path: Path) -> int:
    digits = path.name.removeprefix(".lease-")
    return int(digits) if digits.isdecimal() else 0


def _name(holder: dict[str, object]) -> str:
    return f"process {holder.get('pid', 'unknown')} on {holder.get('node', 'nobody')}"
