"""What a command is about to write is not written over, unless the user says so with ``--force``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from surefoot.errors import RunError

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
"""As it is left of a URL that was made a path."""


def refuse_urls(paths: Iterable[Path]) -> None:
    """Raise ``RunError`` for the first of ``paths`` that was meant as a URL."""
    for path in paths:
        if _URL.match(str(path)):
            raise RunError(f"{path}: outputs are local files; write one, then upload it")


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise ``RunError`` for the first of ``paths`` that holds something which this command did not begin.

    Unfinished work goes on: a file beside which ``<file>.work`` stands, and a run's directory, whose manifest
    is compared with the command's settings where the run is opened. Devices and pipes have nothing to lose.
    """
    if int(os.environ.get("RANK", "0")) > 0:
        return  # the first of several processes has looked, and may have begun to write
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
