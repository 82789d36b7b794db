"""Run directories: configuration, inputs, finished work and time, so that a killed run goes on.

``manifest.json`` says what the run is, ``shards/<stage>/000000.jsonl`` hold finished pieces of work
(``shards/<stage>.journal`` those that are small and many),
``done/<stage>.json`` marks finished stages and ``timings.json`` holds seconds per stage. Every file is
written atomically and synced, so after a kill at any moment each is whole or absent.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from pydantic_core import from_json

from surefoot.errors import RunError
from surefoot.io.atomic import NODE, TEMPORARY_SUFFIX, atomic_file, make_directory, write_json
from surefoot.io.files import read_records, write_records
from surefoot.io.hub import hub_commits
from surefoot.io.journal import Journal
from surefoot.io.lease import LEASE_S, Lease
from surefoot.io.sources import origin
from surefoot.records import Record, now

JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"
"""What ``json.dumps`` takes."""

R = TypeVar("R", bound=Record)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FIX = "use another --out, or delete the directory"


class Run:
    """One run's directory, held by this process until ``close`` (or the end of a ``with`` block)."""

    def __init__(self, directory: Path, manifest: dict[str, Any], lease: Lease) -> None:
        """Use ``Run.open``."""
        self.directory = directory
        self.manifest = manifest
        self._lease = lease

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        command: str,
        config: Mapping[str, JSON],
        inputs: Mapping[str, Path] | None = None,
    ) -> Run:
        """Start a run in ``directory``, or go on with the one that is there.

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
        lease = Lease(directory)
        try:
            resumed = (directory / "manifest.json").exists()
            there = _settle(directory, manifest)
            _clear_unfinished(directory, resumed=resumed)
            return cls(directory, there, lease)
        except BaseException:
            lease.release()
            raise

    def close(self) -> None:
        """Give the directory up for another process; a second call does nothing."""
        if self._lease.held:
            # models that were fetched meanwhile
            models = {**hub_commits(self.manifest["config"]), **self.manifest.get("models", {})}
            if models != self.manifest.get("models", {}):
                self.manifest = self.manifest | {"models": models}
                write_json(self.directory / "manifest.json", self.manifest)
        self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self) -> None:
        """Raise ``RunError`` if a process on another machine took the directory over; see :class:`Lease`."""
        self._lease.check()

    def shards(self, stage: str, record: type[R]) -> Shards[R]:
        """The numbered pieces of ``stage``, whose records are of class ``record``."""
        folder = make_directory(self.directory / "shards" / _checked(stage))
        return Shards(folder, record, self.check)

    def journal(self, stage: str, record: type[R]) -> Journal[R]:
        """The same for pieces that are small and many; close it."""
        folder = make_directory(self.directory / "shards")
        return Journal(folder / f"{_checked(stage)}.journal", record, self.check)

    def done(self, name: str) -> bool:
        """Whether ``finish(name)`` was called, in this process or an earlier one."""
        return self._marker(name).exists()

    def finish(self, name: str, data: JSON = None) -> None:
        """Mark stage ``name`` as finished, with a small result. A second call replaces the first."""
        self.check()
        make_directory(self._marker(name).parent)
        write_json(self._marker(name), {"finished": now().isoformat(), "data": data})

    def result(self, name: str) -> Any:
        """What ``finish`` was given. Raises ``RunError`` if the stage is not finished."""
        if not self.done(name):
            raise RunError(f"{self.directory}: stage '{name}' is not finished; run it first")
        return _load(self._marker(name))["data"]

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time per stage, over all processes that worked in this directory."""
        path = self.directory / "timings.json"
        return _load(path) if path.exists() else {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the block's wall time to ``seconds[stage]``, also when an exception ends it.

        A process killed outright loses the time since its block began: keep blocks to a shard's length.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            seconds = self.seconds
            write_json(self.directory / "timings.json", seconds | {stage: seconds.get(stage, 0.0) + spent})

    def _marker(self, name: str) -> Path:
        return self.directory / "done" / f"{_checked(name)}.json"


class Shards(Generic[R]):
    """The finished pieces of one stage: JSON Lines files named by number, each whole or absent."""

    def __init__(self, folder: Path, record: type[R], check: Callable[[], object]) -> None:
        """Use ``Run.shards``. ``check`` raises where nothing may be written any more."""
        self.folder = folder
        self._record = record
        self._check = check

    def missing(self, count: int) -> list[int]:
        """Numbers in ``0 … count - 1`` still to be done, in order."""
        there = set(self._numbers())
        return [number for number in range(count) if number not in there]

    def write(self, number: int, records: Iterable[R]) -> None:
        """Store piece ``number``; it counts as done from the moment this returns. An empty one is fine."""
        if number < 0:
            raise RunError(f"shard number {number} is negative; count from 0")
        self._check()
        write_records(self._path(number), records, record=self._record)

    def read(self) -> Iterator[R]:
        """All records stored so far, in the order of the shard numbers."""
        return chain.from_iterable(
            read_records(self._path(number), self._record) for number in sorted(self._numbers())
        )

    def lines(self) -> Iterator[bytes]:
        """The same, each as the line of JSON that it was written as; nothing is parsed."""
        for number in sorted(self._numbers()):
            with self._path(number).open("rb") as stream:
                yield from stream

    def pieces(self) -> Iterator[tuple[int, list[R]]]:
        """Number and records of each piece so far, in order."""
        for number in sorted(self._numbers()):
            yield number, list(read_records(self._path(number), self._record))

    def merge(self, path: Path, count: int) -> Path:
        """Join shards ``0 … count - 1`` byte by byte into ``path`` (``.jsonl``), atomically.

        Raises ``RunError`` if one is missing, or if there are more than ``count``.
        """
        if path.suffix != ".jsonl":
            raise RunError(f"{path}: shards are joined as JSON Lines; let the name end in .jsonl")
        if missing := self.missing(count):
            raise RunError(
                f"{self.folder}: {len(missing)} of {count} shards are missing, first {missing[0]}; "
                "finish the stage before merging"
            )
        if extra := [number for number in self._numbers() if number >= count]:
            raise RunError(f"{self.folder}: shard {max(extra)} lies beyond the {count} to merge; {_FIX}")
        with atomic_file(path) as target:
            for number in range(count):
                with self._path(number).open("rb") as source:
                    shutil.copyfileobj(source, target)
        return path

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.jsonl"

    def _numbers(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.jsonl") if path.stem.isdecimal()]


def _settle(directory: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest of a new run, or hold an old one against it."""
    path = directory / "manifest.json"
    if not path.exists():
        if strays := [n for n in ("shards", "done", "timings.json") if (directory / n).exists()]:
            raise RunError(f"{directory} has {', '.join(strays)} of a run but no manifest.json; {_FIX}")
        write_json(path, manifest)
        return manifest
    there = _load(path)
    try:
        changed = differences(there, manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is not a run's manifest ({error!r}); {_FIX}") from error
    if changed:
        raise RunError(f"{directory} holds another run: {'; '.join(changed)}; {_FIX}")
    return there


def _clear_unfinished(directory: Path, *, resumed: bool) -> None:
    """Remove what a killed process was writing; the lease says that no living run writes here.

    A worker on another machine may still be writing for a run that died; its file is left until it is old.
    Where no run was before, only a manifest can be unfinished: a wrong ``--out`` may hold others' files of
    such names.
    """
    unfinished = (
        directory.rglob(f".*{TEMPORARY_SUFFIX}")
        if resumed
        else directory.glob(f".manifest.json.*{TEMPORARY_SUFFIX}")
    )
    now_s = time.time()
    for path in unfinished:
        with suppress(FileNotFoundError):
            if f".{NODE}." in path.name or now_s - path.stat().st_mtime > LEASE_S:
                path.unlink()


def _load(path: Path) -> dict[str, Any]:
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
    """Everything a run's results depend on, and the facts of where it was started.

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
            name: {"path": origin(Path(path)), "sha256": _digest(name, path)} for name, path in inputs.items()
        },
        "models": hub_commits(plain),
        "surefoot": version("surefoot"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "created": now().isoformat(),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Fields in which two manifests describe different work: ``config.seed: 1 there, 2 asked``.

    A model of the hub differs if its branch has moved on. Where an input lies, which version wrote the
    manifest and when it did may differ.
    """
    before, after = _identity(old), _identity(new)
    old_models, new_models = old.get("models", {}), new.get("models", {})
    for name in old_models.keys() & new_models.keys():  # a model that is not fetched yet has no commit
        before[f"models.{name}"], after[f"models.{name}"] = old_models[name], new_models[name]
    return [
        f"{field}: {before.get(field, 'absent')} there, {after.get(field, 'absent')} asked"
        for field in sorted(before.keys() | after.keys())
        if before.get(field) != after.get(field)
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


def _digest(name: str, path: Path) -> str:
    """SHA-256 of a file, or of the names and digests of all files in a directory (a checkpoint)."""
    path = Path(path)
    try:
        if path.is_dir():
            total = hashlib.sha256()
            for part in sorted(part for part in path.rglob("*") if part.is_file()):
                total.update(f"{part.relative_to(path).as_posix()}\0{_digest(name, part)}\n".encode())
            return total.hexdigest()
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"input '{name}' cannot be read: {error}; check the path") from error
