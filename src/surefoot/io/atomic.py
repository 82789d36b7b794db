"""Files and directories that are either whole or absent: write beside the target, sync, rename over it.

After a kill, and after a power cut on a disk that does what fsync asks, the target is the old one or the
new one. What is renamed is synced first, and the directory that the name is in afterwards.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

TEMPORARY_SUFFIX = ".part"
"""End of the names of unfinished files; what a killed process left behind can be found by it."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` for a library that writes files itself.

    When the block ends, the file is synced to disk and renamed to ``path``. On any exception it is removed
    and ``path`` stays as it was. Raises ``OSError`` where the folder cannot be written.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        _sync(temporary, os.O_RDWR)
        temporary.replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    _sync_directory(target.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary stream that becomes ``path`` when the block ends without an exception; see ``atomic_path``.

    A device or pipe, which a rename would replace, is written directly.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            yield stream
        return
    # open() rather than tempfile: the file gets the permissions that the user's umask asks for.
    with atomic_path(target) as temporary, temporary.open("xb") as stream:
        yield stream


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A new directory beside ``path`` that takes its place when the block ends, synced with all its files.

    On any exception it is removed and ``path`` stays as it was. One directory cannot be renamed over another:
    a kill between the two renames leaves none, and the old one beside it, for the next call to put back.
    """
    target = path.resolve()
    new, old = (target.with_name(f".{target.name}.{word}") for word in ("new", "old"))
    if old.exists() and not target.exists():
        old.rename(target)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        yield new
        sync_tree(new)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if target.exists():
        target.rename(old)
    new.rename(target)
    _sync_directory(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def make_directory(path: Path) -> Path:
    """Make ``path`` and its missing parents, so that they are still there after a power cut."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in reversed(missing):
        _sync_directory(one.parent)
    return path


def sync_tree(directory: Path) -> None:
    """Sync all that libraries wrote into ``directory``, and its name; a file that says so may follow."""
    for folder, _, names in os.walk(directory, topdown=False):
        for name in names:
            _sync(Path(folder, name), os.O_RDWR)
        _sync_directory(Path(folder))
    _sync_directory(directory.resolve().parent)


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` as indented JSON, atomically."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    with atomic_file(path) as stream:
        stream.write(text.encode("utf-8") + b"\n")


def _sync_directory(path: Path) -> None:
    # not every system lets a directory be opened, or synced
    with suppress(OSError):
        _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
