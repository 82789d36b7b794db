"""Files that a text names: one, several as one (a pattern or a folder of shards), or what a URL leads to.

What is behind a URL is fetched to a temporary folder first, since records are looked up by their place in a
file; it is removed when the process ends. A ``Path`` is always the one local file of that name.
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
from surefoot.io.limits import FileLimits, TooLargeError

ENDINGS: Final = (".jsonl", ".jsonl.gz", ".parquet")
"""Of files of records."""

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_PATTERN = re.compile(r"[*?\[]")
_CHUNK_BYTES = 2**22
_CONNECT_S, _SILENCE_S = 30.0, 60.0
_PACKAGES: Final = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}

_fetched: dict[str, list[Path]] = {}
_origins: dict[Path, str] = {}


def is_url(source: str) -> bool:
    """Whether ``source`` is a URL, of whatever file system."""
    return _URL.match(source) is not None


def names_files(source: str) -> bool:
    """Whether ``source`` is for :func:`files_of` where it could also be a model: its name, its folder, or the
    web address of a server."""
    if is_url(source):
        return urlsplit(source).scheme not in ("http", "https")
    return Path(source).is_file() or _PATTERN.search(source) is not None


def shown(source: str) -> str:
    """``source`` as messages may show it: a URL without password and query, which may hold a key."""
    if not is_url(source):
        return source
    parts = urlsplit(source)
    if parts.scheme not in ("http", "https"):
        return source
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def origin(path: Path) -> str:
    """Where a file of :func:`files_of` comes from: its URL, else its path."""
    return _origins.get(path, str(path))


def files_of(source: Path | str) -> list[Path]:
    """The local files that ``source`` names, sorted by name.

    A pattern (``data/part-*.jsonl.gz``) names the files that match, a folder the files of records in it. A
    URL (``https://…``, ``s3://…``, ``hf://datasets/…``, all that fsspec knows) names a file, or by a pattern
    or folder several, which are fetched once in a process and within ``FileLimits.max_unpacked_bytes``. Any
    other text is the path of one file, which need not exist.

    Raises ``RecordError`` if nothing matches, and for what cannot be fetched.
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
        return sorted(one for one in path.iterdir() if _is_shard(one.name) and one.is_file()) or [path]
    if path.exists() or not _PATTERN.search(source):
        return [path]
    anchor = Path(path.anchor)
    found = sorted(one for one in anchor.glob(str(path.relative_to(anchor))) if one.is_file())
    if not found:
        raise RecordError(f"{source}: no file matches; check the pattern")
    return found


def _is_shard(name: str) -> bool:
    return name.endswith(ENDINGS) and not name.startswith((".", "_"))


def _fetch(url: str, limits: FileLimits) -> list[Path]:
    from fsspec.core import url_to_fs

    name, scheme = shown(url), urlsplit(url).scheme
    web = scheme in ("http", "https")
    try:
        system, place = url_to_fs(url, **(_web_options() if web else {}))
        # a web server lists nothing, and a question mark begins its query
        places = sorted(system.glob(place)) if _PATTERN.search(place) and not web else [place]
        if not web and len(places) == 1 and system.isdir(places[0]):
            places = sorted(
                one for one in system.ls(places[0], detail=False) if _is_shard(one.rpartition("/")[2])
            )
        if not places:
            raise RecordError(f"{name}: no file matches; check the pattern")
        folder = Path(mkdtemp(prefix="surefoot-"))
        atexit.register(rmtree, folder, ignore_errors=True)
        left = limits.max_unpacked_bytes
        files = []
        for number, one in enumerate(places):
            file = folder / f"{number:05d}" / _last(one)
            file.parent.mkdir()
            left -= _copy(system, one, file, limits, left, **({"block_size": 0} if web else {}))
            _origins[file] = name if len(places) == 1 else f"{name} ({_last(one)})"
            files.append(file)
    except TooLargeError as error:
        raise RecordError(f"{name}: {error}") from error
    except RecordError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(scheme)
        fix = f"needs the package {package}: pip install {package}" if package else str(error)
        raise RecordError(f"{name}: {fix}") from error
    except Exception as error:  # each file system has errors of its own
        reason = f"{type(error).__name__}: {error}".replace(url, name)
        raise RecordError(f"{name}: cannot be fetched: {reason:.300}; check the address") from error
    return files


def _last(place: str) -> str:
    """The name of a file, which its format is told by; never a path, whatever the server calls it."""
    name = re.sub(r"[^\w.-]", "_", urlsplit(place).path.rstrip("/").rpartition("/")[2])
    return name[-100:].lstrip(".") or hashlib.sha256(place.encode()).hexdigest()[:16]


def _copy(system: Any, place: str, file: Path, limits: FileLimits, left: int, **options: Any) -> int:
    """Bytes of ``place`` that were written to ``file``, at most ``left``."""
    size = 0
    with system.open(place, "rb", **options) as stream, file.open("xb") as target:
        while piece := stream.read(_CHUNK_BYTES):
            size += len(piece)
            if size > left:
                raise limits.exceeded("max_unpacked_bytes", f"{_last(place)} has more than {left:,} bytes")
            target.write(piece)
    return size


def _web_options() -> dict[str, Any]:
    """A server that is silent ends the download; a slow one does not."""
    from aiohttp import ClientTimeout

    timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}
