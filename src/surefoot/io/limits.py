"""Bounds on the rows and unpacked bytes of a file, checked while it is read.

A small file can unpack to a large one: a Parquet file of 3 kB repeats one text a million times, a gzip file
of 2 MB unpacks to one line of gigabytes. Every reader of the package enforces these bounds, whoever sent the
file. To read larger files, set the environment variables of :class:`FileLimits`.
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, Protocol

from pydantic import Field, ValidationError

from surefoot.errors import RecordError
from surefoot.records import FrozenModel

_PREFIX: Final = "SUREFOOT_"
_ANY_EXPANSION = 2**27
"""Unpacked bytes that a file of any size may have."""


class LimitError(RecordError):
    """A bound of :class:`FileLimits` is exceeded; :func:`surefoot.io.files.readable` adds the file's name."""


class FileLimits(FrozenModel):
    """Bounds on one file. ``SUREFOOT_MAX_ROWS=20000000`` and so on raise them, for commands and servers."""

    max_rows: int = Field(default=10_000_000, ge=1, description="Rows of a file.")
    max_piece_bytes: int = Field(
        default=2**28,
        ge=1,
        description="Bytes in memory at once: a line, a Parquet row or a JSON array.",
    )
    max_unpacked_bytes: int = Field(
        default=2**33, ge=1, description="Unpacked bytes of a gzip or Parquet file, repetitions included."
    )
    max_expansion: int = Field(
        default=200, ge=1, description="Times its own size that a file above 128 MB may unpack to."
    )

    @classmethod
    def from_environment(cls) -> FileLimits:
        """The bounds that environment variables set, lowered by :func:`lower_limits`.

        Raises ``RecordError`` for a variable that is not a whole number of at least 1.
        """
        names = {name: f"{_PREFIX}{name.upper()}" for name in cls.model_fields}
        try:
            limits = cls.model_validate(
                {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}
            )
        except ValidationError as error:
            variable = names[str(error.errors()[0]["loc"][0])]
            raise RecordError(
                f"{variable} must be a whole number of at least 1, not {os.environ[variable]!r}"
            ) from error
        lower = _LOWER.get()
        return limits.model_copy(update={n: min(most, getattr(limits, n)) for n, most in lower.items()})

    def check_unpacked(self, size: int, packed: int, what: str) -> None:
        """Raise :class:`LimitError` if ``size`` bytes are too many of a file of ``packed`` bytes."""
        if size > self.max_unpacked_bytes:
            raise self.exceeded("max_unpacked_bytes", f"{what} {self.max_unpacked_bytes:,} bytes")
        if size > max(_ANY_EXPANSION, self.max_expansion * packed):
            raise self.exceeded("max_expansion", f"{what} {size // max(1, packed):,} times its size")

    def exceeded(self, name: str, what: str) -> LimitError:
        """The error to raise if ``what`` exceeds the bound ``name``."""
        return LimitError(
            f"{what}, and at most {getattr(self, name):,} are read; if the file is meant to be so large, set "
            f"{_PREFIX}{name.upper()}"
        )


class RowSize:
    """Counts the bytes that a row expands to: a tree's prefix, say, is repeated in all its leaves."""

    def __init__(self, limits: FileLimits) -> None:
        self._limits, self._bytes = limits, 0

    def add(self, size: int) -> None:
        """Add ``size`` bytes. Raises :class:`LimitError` above ``limits.max_piece_bytes``."""
        self._bytes += size
        if self._bytes > self._limits.max_piece_bytes:
            what = f"the row becomes more than {self._limits.max_piece_bytes:,} bytes"
            raise self._limits.exceeded("max_piece_bytes", what)


_LOWER: Final[ContextVar[Mapping[str, int]]] = ContextVar("lower_limits", default=MappingProxyType({}))


@contextmanager
def lower_limits(**bounds: int) -> Iterator[None]:
    """Lower the limits within the block, as a server does for uploaded files."""
    token = _LOWER.set(MappingProxyType({**_LOWER.get(), **bounds}))
    try:
        yield
    finally:
        _LOWER.reset(token)


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Counted(io.RawIOBase):
    """The bytes of ``source``, which ``limits`` bound."""

    def __init__(self, source: _Source, limits: FileLimits, packed: int) -> None:
        super().__init__()
        self._source, self._limits, self._bytes, self._packed = source, limits, 0, packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        piece = self._source.read(len(buffer))
        self._bytes += len(piece)
        self._limits.check_unpacked(self._bytes, self._packed, "it unpacks to more than")
        buffer[: len(piece)] = piece
        return len(piece)


@contextmanager
def open_bounded(path: Path, limits: FileLimits) -> Iterator[IO[bytes]]:
    """Open ``path``, unpacked within ``limits`` if its name ends in ``.gz``. Raises ``OSError``."""
    with path.open("rb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(fileobj=raw, mode="rb") as packed:
            yield io.BufferedReader(_Counted(packed, limits, path.stat().st_size), 1 << 20)


def read_whole(stream: IO[bytes], limits: FileLimits) -> bytes:
    """The remaining bytes of ``stream``. Raises :class:`LimitError`."""
    text = stream.read(limits.max_piece_bytes + 1)
    if len(text) > limits.max_piece_bytes:
        raise limits.exceeded("max_piece_bytes", f"one JSON value has more than {len(text) - 1:,} bytes")
    return text
