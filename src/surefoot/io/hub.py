"""Models of the Hugging Face hub, by ``owner/name`` or ``owner/name@revision``.

A revision is a branch, a tag or a commit; without one it is the branch ``main``. Every loader gets its files
from :func:`checkpoint_directory`, so a name means the same wherever it is given. Which commit it was says
:func:`pinned`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from surefoot.errors import CheckpointError

_OWNED = re.compile(r"[\w-][\w.-]*/[\w.-]+(@\w[\w./-]*)?")
_NAME = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*(@\w[\w./-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack", "*.onnx", "*.ot")


def is_hub_name(name: str | Path) -> bool:
    """Whether ``name`` is ``owner/name``, with or without a revision, and nothing on this machine."""
    return _OWNED.fullmatch(str(name)) is not None and not Path(name).exists()


def split_revision(name: str | Path) -> tuple[str, str | None]:
    """Repository and revision of a hub name."""
    repository, _, revision = str(name).partition("@")
    return repository, revision or None


def checkpoint_directory(name: str | Path, *, safetensors: bool = True) -> Path:
    """Where a checkpoint is: ``name`` itself if it is a path, else the hub's, fetched unless in the cache.

    With ``safetensors`` no other weights are fetched. Raises ``CheckpointError`` if the hub has none of that
    name and revision, or cannot be reached.
    """
    if Path(name).exists():
        return Path(name)
    if not _NAME.fullmatch(str(name)):
        raise CheckpointError(
            f"{str(name)!r} could not be loaded: it is no directory, and no hub name (owner/name@revision)"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, revision = split_revision(name)
    try:
        ignored = [*_PICKLES, "original/*"] if safetensors else None
        return Path(snapshot_download(repository, revision=revision, ignore_patterns=ignored))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{str(name)!r} is no directory and could not be loaded from the hub: {error}"
        ) from error


def pinned(name: str | Path) -> str:
    """``owner/name@commit`` for a hub name in the cache; any other name as it is."""
    if Path(name).exists() or not _NAME.fullmatch(str(name)):
        return str(name)
    from huggingface_hub import try_to_load_from_cache

    repository, revision = split_revision(name)
    found = try_to_load_from_cache(repository, "config.json", revision=revision)
    commit = Path(found).parent.name if isinstance(found, str) else ""
    return f"{repository}@{commit}" if _COMMIT.fullmatch(commit) else str(name)


def hub_commits(config: Any) -> dict[str, str]:
    """Commit of each hub model that a resolved configuration names and the cache has, by its name there.

    A name beside a ``base_url`` is a server's, and says nothing of files.
    """
    if isinstance(config, Mapping):
        parts = [part for part in config.values() if not (config.get("base_url") and isinstance(part, str))]
    elif isinstance(config, Sequence) and not isinstance(config, str):
        parts = list(config)
    else:
        named = isinstance(config, str) and is_hub_name(config)
        revision = split_revision(pinned(config))[1] if named else None
        return {config: revision} if revision and _COMMIT.fullmatch(revision) else {}
    return {name: commit for part in parts for name, commit in hub_commits(part).items()}
