"""Input files named by a path, a pattern or a folder of shards. A ``Path`` is always one local file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from surefoot.errors import RecordError

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
