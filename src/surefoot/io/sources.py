"""Where input comes from: files named by a path, a pattern or a folder of shards, and models of the hub.

A ``Path`` is always one local file. Models of the Hugging Face hub are ``owner/name`` or
``owner/name@revision``: a branch, a tag or a commit, by default the branch ``main``. Every loader gets its
files from :func:`checkpoint_directory`, so a name means the same everywhere. :func:`pinned` returns the
commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from surefoot.errors import CheckpointError, RecordError, SurefootError
from surefoot.extras import installed, need

OUT_ENDINGS: Final = (".jsonl", ".jsonl.gz")
"""Name endings of files of records that are written."""
ENDINGS: Final = (*OUT_ENDINGS, ".parquet")
"""Name endings of files of records that are read."""

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_PATTERN = re.compile(r"[*?\[]")


def names_files(source: str) -> bool:
    """Whether ``source`` names files, and not a model by its folder or the address of its server."""
    return Path(source).is_file() or (_PATTERN.search(source) is not None and not _URL.match(source))


def files_of(source: Path | str) -> list[Path]:
    """The files that ``source`` names, sorted by name.

    A pattern (``data/part-*.jsonl.gz``) names the files that match, a folder the files of records in it. Any
    other string is the path of one file, which need not exist.

    Raises ``RecordError`` if no file matches, and for a URL.
    """
    if isinstance(source, Path):
        return [source]
    if _URL.match(source):
        raise RecordError("a URL is not read: fetch the file first, as with curl, aws s3 cp or hf download")
    path = Path(source)
    if path.is_dir():
        return sorted(file for file in path.iterdir() if _is_shard(file.name) and file.is_file()) or [path]
    if path.exists() or not _PATTERN.search(source):
        return [path]
    anchor = Path(path.anchor)
    matches = sorted(file for file in anchor.glob(str(path.relative_to(anchor))) if file.is_file())
    if not matches:
        raise RecordError(f"{source}: no file matches; check the pattern")
    return matches


def _is_shard(name: str) -> bool:
    return name.endswith(ENDINGS) and not name.startswith((".", "_"))


_OWNED = re.compile(r"[\w-][\w.-]*/[\w.-]+(@\w[\w./-]*)?")
_NAME = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*(@\w[\w./-]*)?")
_LONGEST_REASON = 2000
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack", "*.onnx", "*.ot")


@contextmanager
def reading_checkpoint(what: str) -> Iterator[None]:
    """Turn whatever a library raises about files of a checkpoint into ``CheckpointError``, after ``what``.

    The files are foreign, and libraries fail in any way at cut or lying ones; a panic of Rust is not even an
    ``Exception``. Errors of this package pass unchanged.
    """
    try:
        yield
    except SurefootError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error).strip() or type(error).__name__
        raise CheckpointError(f"{what}: {reason[:_LONGEST_REASON]}") from error


def is_hub_name(name: str | Path) -> bool:
    """Whether ``name`` is ``owner/name``, with or without a revision, and not a local path."""
    return _OWNED.fullmatch(str(name)) is not None and not Path(name).exists()


def split_revision(name: str | Path) -> tuple[str, str | None]:
    """Repository and revision of a hub name."""
    repository, _, revision = str(name).partition("@")
    return repository, revision or None


def checkpoint_directory(name: str | Path, *, safetensors: bool = True) -> Path:
    """The folder (or GGUF file) of a checkpoint: ``name`` if it is a path, otherwise a download from the hub.

    With ``safetensors`` other weights are not downloaded. Raises ``CheckpointError`` if the hub cannot be
    reached or does not have this name and revision, ``MissingExtraError`` without the hub's client.
    """
    if Path(name).exists():
        return Path(name)
    if not _NAME.fullmatch(str(name)):
        raise CheckpointError(
            f"{str(name)!r} could not be loaded: it is neither a directory nor a hub name "
            "(owner/name@revision)"
        )
    need("huggingface_hub", f"the download of {name}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, revision = split_revision(name)
    try:
        ignored = [*_PICKLES, "original/*"] if safetensors else None
        return Path(snapshot_download(repository, revision=revision, ignore_patterns=ignored))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{str(name)!r} is not a directory and could not be loaded from the hub: {error}"
        ) from error


def pretrained_source(name: str | Path) -> tuple[Path, dict[str, str]]:
    """What transformers' ``from_pretrained`` takes for ``name``: a folder, and the argument of a GGUF file.

    Raises ``CheckpointError`` as :func:`checkpoint_directory`, ``MissingExtraError`` if gguf is missing.
    """
    path = checkpoint_directory(name)
    if not path.is_file():
        return path, {}
    if path.suffix != ".gguf":
        raise CheckpointError(f"{path} is a file; name the directory of the checkpoint, or a .gguf file")
    need("gguf", f"{path.name}")
    return path.parent, {"gguf_file": path.name}


def pinned(name: str | Path) -> str:
    """``owner/name@commit`` for a hub name in the cache; any other name unchanged."""
    if Path(name).exists() or not _NAME.fullmatch(str(name)) or not installed("huggingface_hub"):
        return str(name)
    from huggingface_hub import try_to_load_from_cache

    repository, revision = split_revision(name)
    cached = try_to_load_from_cache(repository, "config.json", revision=revision)
    commit = Path(cached).parent.name if isinstance(cached, str) else ""
    return f"{repository}@{commit}" if _COMMIT.fullmatch(commit) else str(name)


def hub_commits(config: Any) -> dict[str, str]:
    """The commit of each cached hub model that a resolved configuration names, by that name.

    A name with a ``base_url`` belongs to a server and is ignored.
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
