"""Shards, folders and URLs that a text names."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import fsspec
import pytest

from surefoot.errors import RecordError
from surefoot.io import ReadReport, read_records, write_records
from surefoot.io.sources import files_of, origin, shown
from surefoot.records import Problem


def problems(first: int, count: int = 2) -> list[Problem]:
    return [Problem(id=f"p{number}", text=f"What is {number}?") for number in range(first, first + count)]


def ids(source: str, **options: object) -> list[str]:
    return [problem.id for problem in read_records(source, Problem, **options)]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of two problems each, of every ending, and files that are none."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_records(folder / "part-2.parquet", problems(4))
    write_records(folder / "part-0.jsonl", problems(0))
    write_records(folder / "part-1.jsonl.gz", problems(2))
    (folder / "README.md").write_text("no records")
    (folder / ".part-0.jsonl").write_text("hidden")
    return folder


def test_shards_are_read_as_one_in_the_order_of_their_names(shards: Path):
    everything = [f"p{number}" for number in range(6)]
    assert ids(str(shards)) == ids(f"{shards}/") == ids(f"{shards}/part-*") == everything
    assert ids(f"{shards}/part-[01]*") == everything[:4]
    assert ids(f"file://{shards}/part-?.jsonl") == everything[:2]
    with pytest.raises(RecordError, match=r"nothing-\*: no file matches; check the pattern"):
        ids(f"{shards}/nothing-*")


def test_bad_lines_say_which_shard_they_are_in(shards: Path):
    with (shards / "part-0.jsonl").open("a") as stream:
        stream.write("{}\n")
    report = ReadReport()
    assert len(ids(str(shards), report=report)) == 6
    assert report.files == ["part-0.jsonl", "part-1.jsonl.gz", "part-2.parquet"]
    assert [line for line, _ in report.bad] == [3]


def test_a_file_or_path_that_looks_like_a_pattern_is_itself(tmp_path: Path):
    for name in ("a[1].jsonl", "a1.jsonl"):
        write_records(tmp_path / name, problems(len(name)))
    assert ids(f"{tmp_path}/a[1].jsonl") == ["p10", "p11"]
    assert files_of(Path("memory://x/*.jsonl")) == [Path("memory://x/*.jsonl")]
    assert files_of("owner/name") == [Path("owner/name")]


def test_any_file_system_of_fsspec_is_read(shards: Path):
    memory = fsspec.filesystem("memory")
    memory.put(f"{shards}/", "/test_sources/", recursive=True)
    everything = [f"p{number}" for number in range(6)]
    for source in ("memory://test_sources/part-*", "memory://test_sources", "memory://test_sources/"):
        assert ids(source) == everything
    [local] = files_of("memory://test_sources/part-1.jsonl.gz")
    assert (ids("memory://test_sources/part-1.jsonl.gz"), local.name) == (["p2", "p3"], "part-1.jsonl.gz")
    assert origin(local) == "memory://test_sources/part-1.jsonl.gz"
    with pytest.raises(
        RecordError, match=r"memory://test_sources/no\.jsonl: cannot be fetched: FileNotFound"
    ):
        ids("memory://test_sources/no.jsonl")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket/a.jsonl", "needs the package s3fs: pip install s3fs"),
        ("gs://bucket/part-*.jsonl", "needs the package gcsfs: pip install gcsfs"),
        ("nothing://a.jsonl", "Protocol not known: nothing"),
    ],
)
def test_what_is_missing_is_named(url: str, reason: str):
    with pytest.raises(RecordError, match=reason):
        files_of(url)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def address(shards: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=shards)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_file_behind_a_web_address_is_fetched_once(shards: Path, address: str):
    url = f"http://{address}/part-1.jsonl.gz?key=secret"
    assert ids(url) == ["p2", "p3"]
    (shards / "part-1.jsonl.gz").unlink()
    assert ids(url) == ["p2", "p3"]
    with pytest.raises(RecordError, match="cannot be fetched") as caught:
        ids(f"http://user:secret@{address}/gone.jsonl?key=secret")
    assert "secret" not in str(caught.value)
    assert shown(f"https://user:secret@{address}/a?b#c") == f"https://{address}/a"


def test_a_download_is_bounded(shards: Path, address: str, monkeypatch: pytest.MonkeyPatch):
    (shards / "large.jsonl").write_bytes(b"x" * 100_000)
    monkeypatch.setenv("SUREFOOT_MAX_UNPACKED_BYTES", "50000")
    with pytest.raises(
        RecordError, match=r"large\.jsonl has more than 50,000 bytes, and at most 50,000 are read"
    ):
        ids(f"http://{address}/large.jsonl")


def test_outputs_are_local():
    with pytest.raises(RecordError, match=r"memory://out\.jsonl: outputs are local files"):
        write_records("memory://out.jsonl", problems(0))
