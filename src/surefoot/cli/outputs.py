"""Refuses to overwrite existing outputs without ``--force``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from surefoot.errors import RunError

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
"""Matches a URL that was converted to a path, which removes a slash."""


def refuse_urls(paths: Iterable[Path]) -> None:
    """Raise ``RunError`` for the first path that was meant as a URL."""
    for path in paths:
        if _URL.match(str(path)):
            raise RunError(f"{path}: outputs are local files; write one, then upload it")


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise ``RunError`` for the first path that exists and that this command cannot resume.

    Unfinished work can be resumed: a file with a ``<file>.work`` directory, and a run directory, whose
    manifest is compared with the command's settings later. Devices and pipes may be written.
    """
    if int(os.environ.get("RANK", "0")) > 0:
        return  # the first of several processes has checked, and may already be writing
    for path in paths:
        if path.with_name(f"{path.name}.work").is_dir():
            continue
        if path.is_dir():
            if any(path.iterdir()) and not (path / "manifest.json").exists():
                raise RunError(
                    f"{path} is a directory with other files in it; name a new one, or add --force"
                )
        elif path.is_file():
            raise RunError(f"{path} exists; name another file, or add --force to replace it")
