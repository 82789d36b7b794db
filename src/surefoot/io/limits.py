"""How large a file may be inside: bounds on rows, fields and unpacked bytes, checked while it streams.

A small file can hold a great deal: a Parquet file of 3 kB repeats one text a million times, a gzip file of
2 MB unpacks to one line of gigabytes. Every reader of the package keeps to these bounds, whoever sent the
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

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surefoot.errors import RecordError

_PREFIX: Final = "SUREFOOT_"


class TooLargeError(RecordError):
    """A bound of :class:`FileLimits` is exceeded; :func:`surefoot.io.files.readable` adds the file's name."""


class FileLimits(BaseModel):
    """Bounds on one file. ``SUREFOOT_MAX_ROWS=20000000`` and so on raise them, for commands and servers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_rows: int = Field(default=10_000_000, ge=1, description="Rows of a file.")
    max_field_characters: int = Field(
        default=8_000_000, ge=1, description="Characters of one text in a row, at any depth."
    )
    max_piece_bytes: int = Field(
        default=2**28,
        ge=1,
        description="Bytes that are in memory at once: a line, a Parquet row, a JSON array.",
    )
    max_unpacked_bytes: int = Field(
        default=2**33, ge=1, description="Bytes that a gzip or Parquet file unpacks to, repetitions included."
    )

    @classmethod
    def from_environment(cls) -> FileLimits:
        """The bounds as the environment sets them, and none above those of :func:`lower_limits`.

        Raises ``RecordError`` for a variable that is no number of at least 1.
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

    def exceeded(self, name: str, what: str) -> TooLargeError:
        """The error of ``what`` being above the bound ``name``."""
        return TooLargeError(
            f"{what}, and at most {getattr(self, name):,} are read; if the file is meant to be so large, set "
            f"{_PREFIX}{name.upper()}"
        )

    def check_fields(self, value: Any, where: str) -> None:
        """Raise :class:`TooLargeError` naming a text of a row that is too long; ``where`` is the row."""
        waiting: list[tuple[str, Any]] = [("", value)]
        while waiting:
            name, inner = waiting.pop()
            if isinstance(inner, str) and len(inner) > self.max_field_characters:
                what = f"{where}: field '{name}' has {len(inner):,} characters"
                raise self.exceeded("max_field_characters", what)
            if isinstance(inner, dict):
                waiting += [(f"{name}.{key}" if name else str(key), part) for key, part in inner.items()]
            elif isinstance(inner, list | tuple):
                waiting += [(f"{name}.{number}", part) for number, part in enumerate(inner)]


class RowSize:
    """What one row becomes: a small one can become a great deal, as a tree's prefix is in all its leaves."""

    def __init__(self, limits: FileLimits) -> None:
        self._limits, self._bytes = limits, 0

    def add(self, size: int) -> None:
        """Count ``size`` bytes more. Raises :class:`TooLargeError` above ``limits.max_piece_bytes``."""
        self._bytes += size
        if self._bytes > self._limits.max_piece_bytes:
            what = f"the row becomes more than {self._limits.max_piece_bytes:,} bytes"
            raise self._limits.exceeded("max_piece_bytes", what)


_LOWER: Final[ContextVar[Mapping[str, int]]] = ContextVar("lower_limits", default=MappingProxyType({}))


@contextmanager
def lower_limits(**bounds: int) -> Iterator[None]:
    """Lower bounds for what is read in the block: those of a server, on the files of others."""
    token = _LOWER.set(MappingProxyType({**_LOWER.get(), **bounds}))
    try:
        yield
    finally:
        _LOWER.reset(token)


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Counted(io.RawIOBase):
    """What ``source`` unpacks to; reading past ``limits.max_unpacked_bytes`` raises."""

    def __init__(self, source: _Source, limits: FileLimits) -> None:
        super().__init__()
        self._source, self._limits, self._bytes = source, limits, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        piece = self._source.read(len(buffer))
        self._bytes += len(piece)
        if self._bytes > self._limits.max_unpacked_bytes:
            what = f"it unpacks to more than {self._limits.max_unpacked_bytes:,} bytes"
            raise self._limits.exceeded("max_unpacked_bytes", what)
        buffer[: len(piece)] = piece
        return len(piece)


@contextmanager
def open_bounded(path: Path, limits: FileLimits) -> Iterator[IO[bytes]]:
    """The bytes of ``path``, unpacked within ``limits`` if its name ends in ``.gz``. Raises ``OSError``."""
    with path.open("rb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(fileobj=raw, mode="rb") as packed:
            yield io.BufferedReader(_Counted(packed, limits), 1 << 20)


def read_whole(stream: IO[bytes], limits: FileLimits) -> bytes:
    """The rest of ``stream`` as one piece. Raises :class:`TooLargeError`."""
    text = stream.read(limits.max_piece_bytes + 1)
    if len(text) > limits.max_piece_bytes:
        raise limits.exceeded("max_piece_bytes", f"one JSON value has more than {len(text) - 1:,} bytes")
    return text
