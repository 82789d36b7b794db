"""Run directories: configuration, inputs, finished work and time, so that a killed run resumes.

``manifest.json`` describes the run, ``pieces/<stage>.journal`` holds finished pieces of work,
``done/<stage>.json`` marks finished stages and ``timings.json`` holds seconds per stage. After a kill at any
moment each file is whole or absent, and a journal ends with a whole piece.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import socket
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeAlias, TypeVar

from pydantic_core import from_json

from surefoot.errors import RunError
from surefoot.io.atomic import TEMPORARY_SUFFIX, atomic_file, make_directory, write_json
from surefoot.io.files import json_line
from surefoot.io.sources import hub_commits
from surefoot.records import Record, now

_LOG = logging.getLogger("surefoot.io")
JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"
"""Anything that ``json.dumps`` accepts."""

R = TypeVar("R", bound=Record)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FIX = "use another --out, or delete the directory"

_PIECE_HEADER = re.compile(rb'\{"piece":(\d+),"bytes":(\d+),"crc32":(\d+)\}\n')
_SYNC_S = 1.0


class Run:
    """One run's directory, locked by this process until ``close`` (or the end of a ``with`` block)."""

    def __init__(self, directory: Path, manifest: dict[str, Any], lock: IO[str]) -> None:
        """Use ``Run.open``."""
        self.directory = directory
        self.manifest = manifest
        self._lock = lock
        self._journals: dict[str, Journal[Any]] = {}

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        command: str,
        config: Mapping[str, JSON],
        inputs: Mapping[str, Path] | None = None,
    ) -> Run:
        """Start a run in ``directory``, or resume the one that is there.

        ``config`` is the resolved configuration; ``inputs`` are files or directories, compared by content.

        Raises ``RunError`` if the directory holds another run (each differing field is named), is in use
        by a living process, or has a run's files without a manifest; and for an input that cannot be read.
        """
        directory = Path(directory)
        manifest = make_manifest(command, config, inputs or {})
        try:
            make_directory(directory)
        except OSError as error:
            raise RunError(f"{directory}: cannot be a run directory: {error}; use another --out") from error
        lock = _lock(directory / ".lock")
        try:
            resumed = (directory / "manifest.json").exists()
            manifest = _settle(directory, manifest)
            _remove_unfinished_files(directory, resumed=resumed)
            return cls(directory, manifest, lock)
        except BaseException:
            lock.close()
            raise

    def close(self) -> None:
        """Close the journals and unlock the directory; a second call does nothing."""
        if self._lock.closed:
            return
        for journal in self._journals.values():
            journal.close()
        # models that were downloaded during the run
        models = {**hub_commits(self.manifest["config"]), **self.manifest.get("models", {})}
        self.note({"models": models})
        self._lock.close()

    def note(self, facts: Mapping[str, JSON]) -> None:
        """Add facts to the manifest. They do not say whether another start continues this run."""
        if (noted := {**self.manifest, **facts}) != self.manifest:
            self.manifest = noted
            write_json(self.directory / "manifest.json", noted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def journal(self, stage: str, record: type[R]) -> Journal[R]:
        """The finished pieces of ``stage``, whose records are of class ``record``."""
        if stage not in self._journals:
            folder = make_directory(self.directory / "pieces")
            self._journals[stage] = Journal(folder / f"{_checked(stage)}.journal", record)
        return self._journals[stage]

    def done(self, name: str) -> bool:
        """Whether ``finish(name)`` was called, in this process or an earlier one."""
        return self._marker(name).exists()

    def finish(self, name: str, data: JSON = None) -> None:
        """Mark stage ``name`` as finished, with a small result. A second call replaces the first."""
        for journal in self._journals.values():
            journal.sync()  # the pieces of a finished stage survive a power failure
        make_directory(self._marker(name).parent)
        write_json(self._marker(name), {"finished": now().isoformat(), "data": data})

    def result(self, name: str) -> Any:
        """The result that ``finish`` stored. Raises ``RunError`` if the stage is not finished."""
        if not self.done(name):
            raise RunError(f"{self.directory}: stage '{name}' is not finished; run it first")
        return load_object(self._marker(name))["data"]

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time per stage, summed over all processes that worked in this directory."""
        path = self.directory / "timings.json"
        return load_object(path) if path.exists() else {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the block's wall time to ``seconds[stage]``, even if an exception ends it."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = self.seconds
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
            write_json(self.directory / "timings.json", seconds)

    def _marker(self, name: str) -> Path:
        return self.directory / "done" / f"{_checked(name)}.json"


class Journal(Generic[R]):
    """Finished pieces of work, appended to one file, so that a stopped run resumes where it was.

    Each piece is a header line with its number, length and checksum, followed by its records as JSON Lines.

    A piece is finished as soon as :meth:`write` returns: a killed process loses nothing of it. A power
    failure may lose the pieces since the last sync, at most a second's worth; they are computed again. One
    process writes at a time, which the lock of the run's directory guarantees.
    """

    def __init__(self, path: Path, record: type[R]) -> None:
        """Open the file or create it. Use :meth:`Run.journal`."""
        self._path, self._record = path, record
        self._positions = _scan(path)
        if not path.exists():
            with atomic_file(path):
                pass  # the new file's name reaches the disk before its lines do
        self._stream: IO[bytes] | None = None
        self._synced = time.monotonic()

    def missing(self, count: int) -> list[int]:
        """Numbers in ``0 … count - 1`` that are not finished, in order."""
        return [number for number in range(count) if number not in self._positions]

    def write(self, number: int, records: Iterable[R]) -> None:
        """Add piece ``number``, or replace it; it may be empty."""
        self.write_lines(number, [json_line(record, index) for index, record in enumerate(records, 1)])

    def write_lines(self, number: int, lines: Sequence[bytes]) -> None:
        """Add piece ``number``, whose records are lines of JSON already."""
        body = b"".join(lines)
        header = b'{"piece":%d,"bytes":%d,"crc32":%d}\n' % (number, len(body), zlib.crc32(body))
        self._stream = self._stream or self._path.open("ab")
        start = self._stream.tell() + len(header)
        self._stream.write(header + body)
        self._stream.flush()
        if time.monotonic() - self._synced > _SYNC_S:
            self.sync()
        self._positions[number] = start, len(body)

    def read(self) -> Iterator[R]:
        """All records, in the order of the pieces' numbers."""
        return map(self._record.model_validate_json, self.lines())

    def lines(self) -> Iterator[bytes]:
        """All records as the lines that they were written as; nothing is parsed."""
        for _, lines in self._pieces():
            yield from lines

    def pieces(self) -> Iterator[tuple[int, list[R]]]:
        """Number and records of each finished piece, in order."""
        for number, lines in self._pieces():
            yield number, [self._record.model_validate_json(line) for line in lines]

    def sync(self) -> None:
        """Wait until all pieces are on the disk."""
        if self._stream is not None:
            os.fsync(self._stream.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close the file; a second call does nothing."""
        if self._stream is not None:
            with self._stream:
                self.sync()
            self._stream = None

    def _pieces(self) -> Iterator[tuple[int, list[bytes]]]:
        with self._path.open("rb") as stream:
            for number in sorted(self._positions):
                start, size = self._positions[number]
                stream.seek(start)
                # not splitlines(), which also splits at carriage returns
                yield number, [line + b"\n" for line in stream.read(size).split(b"\n")[:-1]]


def _scan(path: Path) -> dict[int, tuple[int, int]]:
    """First byte and length of each piece's records; an incomplete last piece is cut off."""
    positions: dict[int, tuple[int, int]] = {}
    if not path.exists():
        return positions
    end = 0
    with path.open("r+b") as stream:
        while header := _PIECE_HEADER.fullmatch(line := stream.readline()):
            number, size, checksum = map(int, header.groups())
            body = stream.read(size)
            if len(body) < size or zlib.crc32(body) != checksum:
                break
            positions[number] = end + len(line), size
            end += len(line) + size
        if stream.seek(0, os.SEEK_END) > end:
            stream.truncate(end)
    return positions


def _lock(path: Path) -> IO[str]:
    """An open file that this process has locked. Raises ``RunError`` if another process holds the lock."""
    stream = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.seek(0)
        holder = stream.read().strip() or "unknown"
        stream.close()
        raise RunError(
            f"{path.parent} is in use by process {holder}; wait for it to end, or use another --out"
        ) from None
    except OSError as error:
        _LOG.warning("%s: no locks on this file system (%s); start one command at a time", path, error)
    stream.truncate(0)
    stream.write(f"{os.getpid()} on {socket.gethostname()}\n")
    stream.flush()
    return stream


def _settle(directory: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest of a new run, or compare it with the existing one, which is returned."""
    path = directory / "manifest.json"
    if not path.exists():
        if strays := [n for n in ("pieces", "done", "timings.json") if (directory / n).exists()]:
            raise RunError(f"{directory} has {', '.join(strays)} of a run but no manifest.json; {_FIX}")
        write_json(path, manifest)
        return manifest
    existing = load_object(path)
    try:
        changed = differences(existing, manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is not a run's manifest ({error!r}); {_FIX}") from error
    if changed:
        raise RunError(f"{directory} holds another run: {'; '.join(changed)}; {_FIX}")
    return existing


def _remove_unfinished_files(directory: Path, *, resumed: bool) -> None:
    """Remove what a killed process was writing; the lock says that no living process writes here.

    A new run looks for its own manifest only: a wrong ``--out`` may be a folder of another user's files
    with such names.
    """
    find = directory.rglob if resumed else directory.glob
    for path in find(f".*{TEMPORARY_SUFFIX}" if resumed else f".manifest.json.*{TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)


def load_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run. Raises ``RunError``."""
    try:
        data = from_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}; {_FIX}") from error
    if not isinstance(data, dict):
        raise RunError(f"{path} holds no JSON object; {_FIX}")
    return data


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise RunError(f"'{name}' cannot name a stage; use letters, digits, '.', '_' and '-'")
    return name


def make_manifest(command: str, config: Mapping[str, Any], inputs: Mapping[str, Path]) -> dict[str, Any]:
    """Everything that a run's results depend on, and where it was started.

    Raises ``RunError`` for a configuration that is not JSON and for an input that cannot be read.
    """
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(config)))
    except (TypeError, ValueError) as error:
        raise RunError(f"the run's config is not JSON: {error}; give plain values") from error
    return {
        "command": command,
        "config": plain,
        "seed": plain.get("seed"),
        "inputs": {
            name: {"path": str(path), "sha256": digest_of(name, path)} for name, path in inputs.items()
        },
        "models": hub_commits(plain),
        "surefoot": version("surefoot"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "created": now().isoformat(),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Fields in which two manifests describe different work: ``config.seed: 1 there, 2 asked``.

    A hub model differs if its branch has moved. The paths of inputs, the package's version and the time may
    differ.
    """
    old_fields, new_fields = _identity(old), _identity(new)
    old_models, new_models = old.get("models", {}), new.get("models", {})
    for name in old_models.keys() & new_models.keys():  # a model that is not downloaded yet lacks a commit
        old_fields[f"models.{name}"], new_fields[f"models.{name}"] = old_models[name], new_models[name]
    return [
        f"{field}: {old_fields.get(field, 'absent')} there, {new_fields.get(field, 'absent')} asked"
        for field in sorted(old_fields.keys() | new_fields.keys())
        if old_fields.get(field) != new_fields.get(field)
    ]


def _identity(manifest: Mapping[str, Any]) -> dict[str, str]:
    hashes = {name: entry["sha256"] for name, entry in manifest["inputs"].items()}
    return _flat({"command": manifest["command"], "config": manifest["config"], "inputs": hashes})


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Leaves by dotted name, as JSON text (so that 1 and true, or two NaN, compare as written)."""
    leaves: dict[str, str] = {}
    for name, part in value.items():
        if isinstance(part, Mapping) and part:
            leaves |= _flat(part, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = json.dumps(part, ensure_ascii=False, sort_keys=True)
    return leaves


def digest_of(name: str, path: Path) -> str:
    """SHA-256 of a file, or of the names and digests of all files in a directory (a checkpoint)."""
    path = Path(path)
    try:
        if path.is_dir():
            total = hashlib.sha256()
            for part in sorted(part for part in path.rglob("*") if part.is_file()):
                total.update(f"{part.relative_to(path).as_posix()}\0{digest_of(name, part)}\n".encode())
            return total.hexdigest()
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"input '{name}' cannot be read: {error}; check the path") from error
