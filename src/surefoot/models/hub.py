"""Checkpoints on the Hugging Face hub: down by name, up as one commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import create_repo, snapshot_download, upload_folder
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from surefoot.errors import CheckpointError


def fetch_checkpoint(name: str | Path, revision: str | None = None) -> Path:
    """The directory ``name``, or the hub's repository of that name, downloaded unless it is in the cache.

    Raises ``CheckpointError`` if there is neither.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        return Path(snapshot_download(str(name), revision=revision))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{str(name)!r} is no directory and could not be loaded from the hub: {error}"
        ) from error


def push_checkpoint(
    save: Callable[[Path], None], name: str, *, private: bool, message: str, **options: Any
) -> str:
    """What ``save`` writes, as one commit to ``owner/name``, which is made if absent; returns its address.

    Raises ``CheckpointError`` if the hub refuses.
    """
    token = options.get("token")
    with TemporaryDirectory() as folder:
        save(Path(folder))
        try:
            create_repo(name, private=private, exist_ok=True, token=token)
            commit = upload_folder(repo_id=name, folder_path=folder, commit_message=message, **options)
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise CheckpointError(f"could not push to {name!r}: {error}") from error
    return str(commit.commit_url)
