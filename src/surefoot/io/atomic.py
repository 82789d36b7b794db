"""Atomic writes: a temporary file or directory is synced and then renamed to its final name.

After a kill, or a power failure on a disk that honours fsync, the target is either the old or the new one.
The file is synced before the rename, its directory afterwards.
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
"""Ends the names of unfinished files, so that files of a killed process can be removed."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of ``path``, for a library that writes files itself.

    When the block ends, the file is synced to disk and renamed to ``path``. On any exception it is removed
    and ``path`` stays unchanged. Raises ``OSError`` if the folder cannot be written.
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

    A device or pipe is written directly, as a rename would replace it.
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
    """A new directory that replaces ``path`` when the block ends, synced with all its files.

    On any exception it is removed and ``path`` stays unchanged. One directory cannot be renamed over another:
    after a kill between the two renames, the next call restores the old directory from its temporary name.
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
    """Make ``path`` and its missing parents, so that they survive a power failure."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        _sync_directory(folder.parent)
    return path


def sync_tree(directory: Path) -> None:
    """Sync all files that libraries wrote into ``directory``, and its name."""
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
