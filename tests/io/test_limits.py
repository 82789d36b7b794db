"""Files that are small outside and large inside: refused while they stream, with a way to raise the bound."""

from __future__ import annotations

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_files import write_as, write_parquet

from surefoot.errors import RecordError
from surefoot.formats import read_source
from surefoot.io import ReadReport, read_records
from surefoot.io.files import FileLimits, check_size, lower_limits
from surefoot.records import Problem, Trace

SMALL = {"max_rows": 50, "max_piece_bytes": 20_000, "max_unpacked_bytes": 100_000}


def gzipped(path, *pieces):
    with gzip.open(path, "wb") as stream:
        for piece in pieces:
            stream.write(piece)
    return path


def repeated_text(path, rows, length, *, nested=False):
    """A Parquet file of a few kB in which every row holds the same long text."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * length]))
    ids = pa.array([f"p{number}" for number in range(rows)])
    if nested:
        offsets = pa.array([0, *[rows] * rows], pa.int32())
        columns = {"id": ids, "text": ids, "tags": pa.ListArray.from_arrays(offsets, text)}
    else:
        columns = {"id": ids, "text": text}
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


def rows_of(path, **bounds):
    with lower_limits(**(bounds or SMALL)):
        return list(read_records(path, Problem, report=ReadReport()))


def test_a_gzipped_line_without_end_is_refused_before_it_fills_memory(tmp_path):
    path = gzipped(tmp_path / "bomb.jsonl.gz", b'{"text": "', *[b"a" * 2**20] * 300)
    assert path.stat().st_size < 400_000
    with pytest.raises(RecordError, match=r"bomb\.jsonl\.gz: line 1 .*set SUREFOOT_MAX_PIECE_BYTES"):
        rows_of(path, max_piece_bytes=2**20)
    with pytest.raises(RecordError, match=r"unpacks to more than .*SUREFOOT_MAX_UNPACKED_BYTES"):
        rows_of(path, max_unpacked_bytes=2**20)


@pytest.mark.parametrize("nested", [False, True])
def test_a_parquet_file_that_repeats_one_text_is_refused(tmp_path, nested):
    path = repeated_text(tmp_path / "bomb.parquet", 2_000, 2_000_000, nested=nested)
    assert path.stat().st_size < 100_000
    pa.default_memory_pool().release_unused()
    bounds = lower_limits(max_unpacked_bytes=2**26, max_piece_bytes=2**24)
    with bounds, pytest.raises(RecordError, match=r"bomb\.parquet: .*unpacks? to"):
        check_size(path)


def test_a_small_file_may_not_unpack_to_a_large_one(tmp_path, monkeypatch):
    monkeypatch.setattr("surefoot.io.files._ANY_EXPANSION", 2**20)
    path = repeated_text(tmp_path / "bomb.parquet", 400, 50_000)
    with pytest.raises(RecordError, match=r"bomb\.parquet: .* times its size.*set SUREFOOT_MAX_EXPANSION"):
        check_size(path)
    packed = gzipped(tmp_path / "bomb.jsonl.gz", *[b'{"text": "a"}\n' * 1000] * 300)
    with pytest.raises(RecordError, match="SUREFOOT_MAX_EXPANSION"):
        check_size(packed)
    with lower_limits(max_unpacked_bytes=2**20), pytest.raises(RecordError, match="MAX_UNPACKED_BYTES"):
        check_size(path)
    monkeypatch.setenv("SUREFOOT_MAX_EXPANSION", "100000")
    check_size(path)
    check_size(packed)


def test_rows_are_bounded_and_named(tmp_path):
    lines = tmp_path / "many.jsonl"
    lines.write_text('{"text": "p"}\n' * 51)
    with pytest.raises(RecordError, match=r"many\.jsonl: .*more than 50 rows.*SUREFOOT_MAX_ROWS"):
        rows_of(lines)
    with pytest.raises(RecordError, match="51 rows"):
        rows_of(repeated_text(tmp_path / "many.parquet", 51, 3))
    lines.write_text('{"text": "p"}\n' + json.dumps({"text": "p", "answer": "b" * 20_001}) + "\n")
    with pytest.raises(RecordError, match=r"line 2 has more than 20,000 bytes.*MAX_PIECE_BYTES"):
        rows_of(lines)
    with pytest.raises(RecordError, match=r"row 1 unpacks to 20,0.. bytes.*MAX_PIECE_BYTES"):
        rows_of(repeated_text(tmp_path / "long.parquet", 1, 20_001))


def test_what_is_within_the_bounds_is_read_as_before(tmp_path):
    problems = [Problem(text=f"question {n}", answer=str(n % 3), meta={"n": n}) for n in range(50)]
    for ending in (".jsonl", ".jsonl.gz", ".parquet"):
        write_as(tmp_path / f"p{ending}", problems)
        assert rows_of(tmp_path / f"p{ending}") == problems
    traces = [Trace(problem_id="p", text="a" * 40_000, sample=n) for n in range(3_000)]
    write_parquet(tmp_path / "t.parquet", traces)  # more than one batch, and batches in parts
    assert list(read_records(tmp_path / "t.parquet", Trace)) == traces


def test_the_environment_raises_the_bounds_and_the_caller_lowers_them(tmp_path, monkeypatch):
    path = tmp_path / "three.jsonl"
    path.write_text('{"text": "p"}\n' * 3)
    monkeypatch.setenv("SUREFOOT_MAX_ROWS", "2")
    with pytest.raises(RecordError, match="more than 2 rows"):
        list(read_records(path, Problem))
    monkeypatch.setenv("SUREFOOT_MAX_ROWS", "3")
    assert len(list(read_records(path, Problem))) == 3
    with lower_limits(max_rows=1):
        assert FileLimits.from_environment().max_rows == 1
    with lower_limits(max_rows=9):
        assert FileLimits.from_environment().max_rows == 3
    monkeypatch.setenv("SUREFOOT_MAX_ROWS", "many")
    with pytest.raises(RecordError, match=r"SUREFOOT_MAX_ROWS must be a whole number"):
        list(read_records(path, Problem))


def test_standard_input_is_bounded_too(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "p"}\n' * 51)))
    with pytest.raises(RecordError, match=r"standard input: .*more than 50 rows"):
        rows_of("-")


def test_public_formats_keep_to_the_bounds(tmp_path, monkeypatch):
    path = gzipped(tmp_path / "bomb.json.gz", b"[\n", *[b'{"a": 1},' * 1_000] * 200)
    monkeypatch.setenv("SUREFOOT_MAX_PIECE_BYTES", "100000")
    with pytest.raises(RecordError, match=r"bomb\.json\.gz: one JSON value has more than"):
        list(read_source("processbench", path, report=ReadReport()))
    monkeypatch.setenv("SUREFOOT_MAX_UNPACKED_BYTES", "50000")
    with pytest.raises(RecordError, match=r"bomb\.json\.gz: it unpacks to more than"):
        list(read_source("processbench", path, report=ReadReport()))
