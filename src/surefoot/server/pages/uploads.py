"""Uploaded files: in a temporary folder for as long as they are read, called there by names of our own.

Of an upload's own name only a known ending is used, and a name that looks like a path is refused. What
readers say about a file is shown with the name that the user gave it.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from starlette.datastructures import UploadFile

from surefoot.errors import RecordError, StoreError
from surefoot.io import ReadReport
from surefoot.io.limits import lower_limits
from surefoot.server.pages.forms import Form


class Uploads:
    """Files of a form, saved below ``folder``."""

    def __init__(self, form: Form, folder: Path) -> None:
        self._form, self._folder = form, folder
        self._names: dict[Path, str] = {}

    def save(self, field: str, endings: Sequence[str]) -> list[Path]:
        """The files of a field. Raises ``StoreError`` for an unknown ending and a name that is a path."""
        return [self._saved(file, endings) for file in self._form.files(field)]

    def named(self, text: str) -> str:
        """``text`` with the users' names of the files in place of our own."""
        for path, name in self._names.items():
            text = text.replace(str(path), name).replace(path.name, name)
        return text

    def report(self, report: ReadReport) -> None:
        """Put the users' names into what a reader reports."""
        report.files = [self.named(name) for name in report.files]
        report.bad = [(line, self.named(reason)) for line, reason in report.bad]

    def _saved(self, file: UploadFile, endings: Sequence[str]) -> Path:
        # nothing else in a message is by chance like this name
        path = self._folder / f"{secrets.token_hex(16)}{_ending(file, endings)}"
        with path.open("wb") as out:
            shutil.copyfileobj(file.file, out)
        self._names[path] = file.filename or ""
        return path


@contextmanager
def uploads(form: Form, most: int) -> Iterator[Uploads]:
    """The files of a form, deleted at the end; at most ``most`` bytes of each are unpacked.

    A ``RecordError`` in the block uses the users' names of the files.
    """
    with (
        lower_limits(max_unpacked_bytes=most),
        tempfile.TemporaryDirectory(prefix="surefoot-import-") as folder,
    ):
        saved = Uploads(form, Path(folder))
        try:
            yield saved
        except RecordError as error:
            raise RecordError(saved.named(str(error))) from error


def _ending(file: UploadFile, endings: Sequence[str]) -> str:
    name = file.filename or ""
    if any(mark in name for mark in ("/", "\\", "\0", "..")) or not name.isprintable():
        raise StoreError("a file's name must be a plain name, not a path")
    matches = [ending for ending in endings if name.endswith(ending)]
    if not matches:
        raise StoreError(f"a file's name must end in one of {', '.join(endings)}")
    return max(matches, key=len)
