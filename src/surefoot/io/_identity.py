"""What a run is: its manifest, and how two of them differ."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from surefoot.errors import RunError
from surefoot.records import now


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
        "inputs": {name: {"path": str(path), "sha256": _digest(name, path)} for name, path in inputs.items()},
        "surefoot": version("surefoot"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "created": now().isoformat(),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Fields in which two manifests describe different work: ``config.seed: 1 there, 2 asked``.

    Where an input lies, which version wrote the manifest and when it did may differ.
    """
    before, after = _identity(old), _identity(new)
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
