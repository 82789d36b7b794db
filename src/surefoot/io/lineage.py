"""Where a file came from: the records of the commands that made it and its inputs, back to the sources.

A record holds the SHA-256 of a command's inputs, of its models in directories, and of its outputs. It is the
``manifest.json`` of a run directory; other outputs have ``<first output>.manifest.json`` next to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import metadata
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from surefoot.errors import RunError
from surefoot.extras import installed
from surefoot.io.atomic import write_json
from surefoot.io.runs import digest_of, load_object
from surefoot.io.sources import is_hub_name
from surefoot.records import FrozenModel

MANIFEST: Final = "manifest.json"
_OF_THE_RUN: Final = {"pieces", "done", MANIFEST}
"""What a run directory holds besides its outputs."""
_MODEL_FILES: Final = ("surefoot.json", "config.json", "head.safetensors", "training.json", "recipe.json")
_PACKAGE: Final = Path(__file__).parents[1]
NOT_STATED: Final = "not stated"
_METADATA: Final = re.compile(r"---[ \t]*\n(.*?)\n---[ \t]*(?:\n|$)", re.DOTALL)
_LICENCE: Final = re.compile(r"^license:[ \t]*([^\s#][^\n#]*|(?:\n[ \t]*- [^\n#]*)+)", re.MULTILINE)


class LineageNode(FrozenModel):
    """A file or checkpoint, and its inputs."""

    name: str
    command: str | None = None
    """The command that made it; ``None`` for a source, which no command here has made."""
    version: str | None = None
    """Version of surefoot that ran the command."""
    sha256: dict[str, str] = Field(default={})
    """Current hash of each file, by its path in a directory; of a single file under the empty name."""
    licence: str | None = None
    """Of a source: the licence that it states."""
    faults: tuple[str, ...] = ()
    """Edits by hand, missing files, and files that changed after they were read."""
    inputs: tuple[LineageNode, ...] = ()

    def walk(self) -> Iterator[LineageNode]:
        """This node and all below it."""
        yield self
        for node in self.inputs:
            yield from node.walk()

    def lines(self, indent: str = "", printed: set[str] | None = None) -> Iterator[str]:
        """The tree as indented text; a subtree that comes again (whose name is ``printed``) is left out."""
        printed = set() if printed is None else printed
        origin = f"surefoot {self.command}" if self.command else "source"
        origin += f", licence: {self.licence}" if self.licence else ""
        is_repeated = bool(self.inputs) and self.name in printed
        yield f"{indent}{self.name} ({origin}{'; see above' if is_repeated else ''})"
        yield from (f"{indent}  ✗ {fault}" for fault in self.faults)
        for node in () if is_repeated else self.inputs:
            printed.add(self.name)
            yield from node.lines(f"{indent}  ", printed)


@dataclass(frozen=True, kw_only=True)
class CommandRecord:
    """A manifest with outputs."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """The directory that the names of outputs are relative to."""
        return self.path.parent

    @property
    def outputs(self) -> Mapping[str, str]:
        """SHA-256 of each output by its relative path."""
        return self.manifest.get("outputs") or {}

    def below(self, name: str) -> dict[str, str]:
        """The outputs in directory ``name``, by path in it; a file's own hash under the empty name."""
        if name in self.outputs:
            return {"": self.outputs[name]}
        start = "" if name == "." else f"{name}/"
        return {key.removeprefix(start): sha for key, sha in self.outputs.items() if key.startswith(start)}


def hashes_of(path: Path) -> dict[str, str]:
    """SHA-256 of a file under the empty name, or of each output file in a directory by its path there."""
    if path.is_file():
        return {"": digest_of(path.name, path)}
    files: dict[str, str] = {}
    for folder, folders, names in os.walk(path):
        at = Path(folder)
        skipped = _OF_THE_RUN if at == path else set[str]()
        folders[:] = sorted(n for n in folders if n not in skipped and not n.endswith(".work"))
        for name in sorted(names):
            if name not in skipped and not name.startswith(".") and not name.endswith(f".{MANIFEST}"):
                files[(at / name).relative_to(path).as_posix()] = digest_of(name, at / name)
    return files


def model_hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of the files that tell a model from another: its card, or its configuration and weights.

    The card of a checkpoint that was trained here states the checksums of its weights.
    """
    names = {name for name in _MODEL_FILES if (directory / name).is_file()}
    if "surefoot.json" not in names:
        names |= {path.name for path in directory.glob("*.safetensors")}
    return {name: digest_of(name, directory / name) for name in sorted(names)}


def write_outputs(outputs: Sequence[Path], manifest: Mapping[str, Any]) -> None:
    """Record existing ``outputs`` with ``manifest``, in a run's own manifest if they are its directory."""
    records: dict[Path, dict[str, str]] = {}
    first: dict[Path, Path] = {}
    for path in outputs:
        if (path / MANIFEST).is_file():
            record, folder = path / MANIFEST, path
        elif path.exists() or path.suffix:
            # also a file that a stopped command has not written yet: its next start uses the same name
            record = first.setdefault(path.parent, path.with_name(f"{path.name}.{MANIFEST}"))
            folder = path.parent
        if not path.exists():
            continue
        names = {(path / name).relative_to(folder).as_posix(): sha for name, sha in hashes_of(path).items()}
        records.setdefault(record, {}).update(names)
    for record, names in records.items():
        earlier = load_object(record) if record.exists() else {}
        if earlier.get("command") not in (None, manifest["command"]):
            earlier = {}
        models = {**manifest["models"], **earlier.get("models", {})}
        write_json(record, {**manifest, **earlier, "models": models, "outputs": names})


def record_of(path: Path) -> tuple[CommandRecord, str] | None:
    """The record of the command that made ``path``, and the name of ``path`` in it."""
    path = path.resolve()
    manifests = [path / MANIFEST] if path.is_dir() else []
    sidecar = path.with_name(f"{path.name}.{MANIFEST}")
    manifests += [sidecar, *sorted({*path.parent.glob(f"*.{MANIFEST}")} - {sidecar})]
    manifests += [folder / MANIFEST for folder in path.parents]
    for at in manifests:
        if at.is_file():
            record = CommandRecord(path=at, manifest=load_object(at))
            name = path.relative_to(at.parent).as_posix()
            if record.below(name):
                return record, name
    return None


def lineage(path: Path) -> LineageNode:
    """The chain of commands behind a file or checkpoint. Raises ``RunError`` if it does not exist."""
    if not path.exists():
        raise RunError(f"{path} does not exist; name a checkpoint or a file that a command wrote")
    return _Tracer().node(path, {}, "")


@dataclass
class _Tracer:
    """Follows records; files are hashed once."""

    hashes: dict[Path, dict[str, str]] = field(default_factory=dict)
    done: dict[tuple[Path, str], LineageNode] = field(default_factory=dict)

    def node(self, path: Path, used: Mapping[str, str], reader: str) -> LineageNode:
        """The node of ``path``, whose files had the hashes ``used`` when the command ``reader`` read them."""
        key = path.resolve(), repr(sorted(used.items()))
        if key not in self.done:
            self.done[key] = LineageNode(name=shown_path(path), faults=("made from itself",))
            self.done[key] = self._node(path, used, reader)
        return self.done[key]

    def _node(self, path: Path, used: Mapping[str, str], reader: str) -> LineageNode:
        if not path.exists():
            return LineageNode(name=shown_path(path), licence=NOT_STATED, faults=("missing",))
        if path.resolve() not in self.hashes:
            of_model = not path.is_file() and record_of(path) is None
            self.hashes[path.resolve()] = model_hashes(path) if of_model else hashes_of(path)
        now = self.hashes[path.resolve()]
        changed = [name for name, sha in used.items() if now.get(name) != sha]
        faults = [f"{name or 'it'} changed after surefoot {reader} read it" for name in changed]
        if (entry := record_of(path)) is None:
            return LineageNode(
                name=shown_path(path), sha256=now, licence=licence_of(path), faults=tuple(faults)
            )
        record, name = entry
        command, written = record.manifest["command"], record.below(name)
        for part, sha in written.items():
            what = part or "it"
            if part not in now:
                faults.append(f"{what} is missing")
            elif now[part] != sha:
                faults.append(f"{what} was edited by hand after surefoot {command} wrote it")
            elif used.get(part, sha) != sha:
                faults.append(f"{what} was edited by hand when surefoot {reader} read it")
        moved = record.manifest.get("changed_while_running") or ()
        faults += [f"the input {part} changed while surefoot {command} ran" for part in moved]
        inputs = tuple(self._inputs(record))
        return LineageNode(
            name=shown_path(path),
            command=command,
            licence=None if inputs else _own_licence(),  # generated by the command itself
            version=record.manifest.get("surefoot"),
            sha256=now,
            faults=tuple(dict.fromkeys(faults)),
            inputs=inputs,
        )

    def _inputs(self, record: CommandRecord) -> Iterator[LineageNode]:
        manifest, command = record.manifest, record.manifest["command"]
        models: Mapping[str, Any] = manifest.get("models") or {}
        files: dict[Path, dict[str, str]] = {}
        for entry in manifest["inputs"].values():
            at = _located(record, entry["path"])
            is_model = (at.parent / "surefoot.json").exists() or (at.parent / "config.json").exists()
            source, part = (at.parent, at.name) if is_model else (at, "")
            files.setdefault(source, {})[part] = entry["sha256"]
        for at, used in files.items():
            node = self.node(at, used, command)
            stated = manifest["config"].get("licence") if node.command is None else None
            yield node.model_copy(update={"licence": stated}) if stated else node
        for model, hashes in models.items():
            if _located(record, model) not in files:
                yield self._model(record, model, hashes, command)
        if not (manifest["inputs"] or models or manifest.get("generated")):
            source = manifest["config"].get("source", "standard input, or a server: not recorded")
            yield LineageNode(name=str(source), licence=manifest["config"].get("licence") or NOT_STATED)

    def _model(
        self, record: CommandRecord, name: str, hashes: str | Mapping[str, str], command: str
    ) -> LineageNode:
        if isinstance(hashes, str):  # the commit of a model on the hub
            repository = name.partition("@")[0]
            licence = _hub_licence(repository, hashes)
            return LineageNode(name=f"{repository}@{hashes}", sha256={"": hashes}, licence=licence)
        return self.node(_located(record, name), hashes, command)


def _located(record: CommandRecord, name: str) -> Path:
    """The path as recorded, or next to the record if the files were moved together."""
    if name.startswith("surefoot:"):
        return _PACKAGE / name.removeprefix("surefoot:")
    nearby = (Path(name), record.folder / Path(name).name, record.folder.parent / Path(name).name)
    return next((path for path in nearby if path.exists()), Path(name))


def portable(path: Path) -> str:
    """``path`` as a record names it: a shipped file by its place in the package."""
    return f"surefoot:{path.relative_to(_PACKAGE).as_posix()}" if path.is_relative_to(_PACKAGE) else str(path)


def shown_path(path: Path) -> str:
    """:func:`portable`, and relative to the working directory if it is below."""
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else portable(path)


def licence_of(path: Path) -> str:
    """The licence that a source states: the metadata of a README, or a licence file, next to it."""
    if path.resolve().is_relative_to(_PACKAGE):
        return _own_licence()
    folder = path if path.is_dir() else path.parent
    if (folder / "README.md").is_file() and (stated := _stated_licence(folder / "README.md")):
        return stated
    for name in ("LICENSE", "LICENSE.txt", "LICENCE"):
        if (folder / name).is_file():
            with (folder / name).open(encoding="utf-8", errors="replace") as stream:
                return next((line.strip()[:100] for line in stream if line.strip()), NOT_STATED)
    return NOT_STATED


def _stated_licence(readme: Path) -> str:
    """``license`` of the metadata at a README's top, one or a list; empty if there is none."""
    head = _METADATA.match(readme.read_text("utf-8", errors="replace"))
    stated = _LICENCE.search(head[1]) if head else None
    names = re.split(r"[\n,]\s*(?:- )?", stated[1]) if stated else []
    return ", ".join(filter(None, (name.strip(" \t'\"[]") for name in names)))


@cache
def _own_licence() -> str:
    return str(metadata("surefoot")["License-Expression"] or NOT_STATED)


def _hub_licence(repository: str, commit: str) -> str:
    if not is_hub_name(repository) or not installed("huggingface_hub"):
        return NOT_STATED
    from huggingface_hub import try_to_load_from_cache

    readme = try_to_load_from_cache(repository, "README.md", revision=commit)
    return licence_of(Path(readme)) if isinstance(readme, str) else NOT_STATED
