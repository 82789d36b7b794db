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
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path``; on success it is synced to disk and renamed to ``path``.

    On any exception the temporary file goes and ``path`` stays as it was. A device or pipe, which a
    rename would replace, is written directly. Raises ``OSError`` where the folder cannot be written.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            yield stream
        return
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        # open() rather than tempfile: the file gets the permissions that the user's umask asks for.
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` as indented JSON, atomically."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    with atomic_file(path) as stream:
        stream.write(text.encode("utf-8") + b"\n")


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut; not every system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
