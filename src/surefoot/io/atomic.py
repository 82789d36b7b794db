"""Files that are either whole or absent: write beside the target, flush to disk, rename over it."""

from __future__ import annotations

import json
import os
import secrets
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
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        _sync(temporary, os.O_RDWR)
        temporary.replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    # The rename itself has to survive a power cut; not every system lets a folder be opened.
    with suppress(OSError):
        _sync(target.parent, os.O_RDONLY)


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


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` as indented JSON, atomically."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    with atomic_file(path) as stream:
        stream.write(text.encode("utf-8") + b"\n")


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
