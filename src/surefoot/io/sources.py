"""Input files named by a path, a pattern, a folder of shards or a URL.

A URL is downloaded to a temporary folder, since records are looked up by their place in a file; the folder is
removed when the process ends. A ``Path`` is always one local file.
"""

from __future__ import annotations

import atexit
import hashlib
import re
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final
from urllib.parse import urlsplit

from surefoot.errors import RecordError
from surefoot.io.limits import FileLimits, LimitError

ENDINGS: Final = (".jsonl", ".jsonl.gz", ".parquet")
"""Name endings of files of records."""

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_PATTERN = re.compile(r"[*?\[]")
_CHUNK_BYTES = 2**22
_CONNECT_S, _SILENCE_S = 30.0, 60.0
_PACKAGES: Final = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}

_fetched: dict[str, list[Path]] = {}
_origins: dict[Path, str] = {}


def is_url(source: str) -> bool:
    """Whether ``source`` is a URL of any file system."""
    return _URL.match(source) is not None


def names_files(source: str) -> bool:
    """Whether ``source`` names files, and not a model by its folder or the address of its server."""
    if is_url(source):
        return urlsplit(source).scheme not in ("http", "https")
    return Path(source).is_file() or _PATTERN.search(source) is not None


def shown(source: str) -> str:
    """``source`` for messages: a URL without password and query, which may hold a key."""
    if not is_url(source):
        return source
    parts = urlsplit(source)
    if parts.scheme not in ("http", "https"):
        return source
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def origin(path: Path) -> str:
    """The URL of a file that was downloaded, otherwise its path."""
    return _origins.get(path, str(path))


def files_of(source: Path | str) -> list[Path]:
    """The local files that ``source`` names, sorted by name.

    A pattern (``data/part-*.jsonl.gz``) names the files that match, a folder the files of records in it. A
    URL (``https://…``, ``s3://…``, ``hf://datasets/…``, all that fsspec supports) names a file, or several by
    a pattern or folder; they are downloaded once per process, within ``FileLimits.max_unpacked_bytes``. Any
    other string is the path of one file, which need not exist.

    Raises ``RecordError`` if no file matches or a download fails.
    """
    if isinstance(source, Path):
        return [source]
    if source.startswith("file://"):
        source = source.removeprefix("file://")
    if is_url(source):
        if source not in _fetched:
            _fetched[source] = _fetch(source, FileLimits.from_environment())
        return _fetched[source]
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


def _fetch(url: str, limits: FileLimits) -> list[Path]:
    from fsspec.core import url_to_fs

    name, scheme = shown(url), urlsplit(url).scheme
    web = scheme in ("http", "https")
    try:
        system, path = url_to_fs(url, **(_web_options() if web else {}))
        # a web server cannot list files, and a question mark begins its query
        paths = sorted(system.glob(path)) if _PATTERN.search(path) and not web else [path]
        if not web and len(paths) == 1 and system.isdir(paths[0]):
            listed = system.ls(paths[0], detail=False)
            paths = sorted(path for path in listed if _is_shard(path.rpartition("/")[2]))
        if not paths:
            raise RecordError(f"{name}: no file matches; check the pattern")
        folder = Path(mkdtemp(prefix="surefoot-"))
        atexit.register(rmtree, folder, ignore_errors=True)
        bytes_left = limits.max_unpacked_bytes
        files = []
        for number, path in enumerate(paths):
            file = folder / f"{number:05d}" / _file_name(path)
            file.parent.mkdir()
            bytes_left -= _copy(system, path, file, limits, bytes_left, **({"block_size": 0} if web else {}))
            _origins[file] = name if len(paths) == 1 else f"{name} ({_file_name(path)})"
            files.append(file)
    except LimitError as error:
        raise RecordError(f"{name}: {error}") from error
    except RecordError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(scheme)
        fix = f"needs the package {package}: pip install {package}" if package else str(error)
        raise RecordError(f"{name}: {fix}") from error
    except Exception as error:  # each file system raises its own classes
        reason = f"{type(error).__name__}: {error}".replace(url, name)
        raise RecordError(f"{name}: cannot be fetched: {reason:.300}; check the address") from error
    return files


def _file_name(path: str) -> str:
    """A safe local name with the ending of ``path``, which decides the format."""
    name = re.sub(r"[^\w.-]", "_", urlsplit(path).path.rstrip("/").rpartition("/")[2])
    return name[-100:].lstrip(".") or hashlib.sha256(path.encode()).hexdigest()[:16]


def _copy(system: Any, path: str, file: Path, limits: FileLimits, max_bytes: int, **options: Any) -> int:
    """Copy ``path`` to ``file``; returns its size in bytes."""
    size = 0
    with system.open(path, "rb", **options) as stream, file.open("xb") as target:
        while chunk := stream.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > max_bytes:
                what = f"{_file_name(path)} has more than {max_bytes:,} bytes"
                raise limits.exceeded("max_unpacked_bytes", what)
            target.write(chunk)
    return size


def _web_options() -> dict[str, Any]:
    """Time-outs: a silent server ends the download, a slow one does not."""
    from aiohttp import ClientTimeout

    timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}
