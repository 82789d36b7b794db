"""Shards and folders that a text names."""

from __future__ import annotations

from pathlib import Path

import pytest
from parquet_files import write_parquet

from surefoot.errors import RecordError
from surefoot.io import ReadReport, read_records, write_records
from surefoot.io.sources import files_of, names_files
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
    write_parquet(folder / "part-2.parquet", problems(4))
    write_records(folder / "part-0.jsonl", problems(0))
    write_records(folder / "part-1.jsonl.gz", problems(2))
    (folder / "README.md").write_text("no records")
    (folder / ".part-0.jsonl").write_text("hidden")
    return folder


def test_shards_are_read_as_one_in_the_order_of_their_names(shards: Path):
    everything = [f"p{number}" for number in range(6)]
    assert ids(str(shards)) == ids(f"{shards}/") == ids(f"{shards}/part-*") == everything
    assert ids(f"{shards}/part-[01]*") == everything[:4]
    assert ids(f"{shards}/part-?.jsonl") == everything[:2]
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
    assert files_of(Path("x/*.jsonl")) == [Path("x/*.jsonl")]
    assert files_of("owner/name") == [Path("owner/name")]


@pytest.mark.parametrize("url", ["s3://bucket/part-*.jsonl", "https://user:secret@host/a.jsonl?key=secret"])
def test_a_url_is_refused_without_its_secrets(url: str):
    with pytest.raises(RecordError, match="fetch the file first") as caught:
        ids(url)
    assert "secret" not in str(caught.value)
    assert not names_files(url)


def test_outputs_are_local():
    with pytest.raises(RecordError, match=r"memory:/out\.jsonl: its folder does not exist"):
        write_records("memory://out.jsonl", problems(0))
