"""Broken and hostile files of every format: what is read is valid, and the rest is refused by name.

Each test tries ``SUREFOOT_HOSTILE_EXAMPLES`` files (10), the same ones each time. To look for new faults:
``SUREFOOT_HOSTILE_EXAMPLES=20000 pytest --hypothesis-profile=default tests/formats/test_hostile_files.py``.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hostile_files as hostile
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot.errors import RecordError
from surefoot.formats import ImportContext, ImportSettings, detect_format, import_traces, read_source
from surefoot.io import ReadReport, read_records
from surefoot.io.files import lower_limits
from surefoot.records import MAX_COUNT, Problem, Record, Trace

EXAMPLES = int(os.environ.get("SUREFOOT_HOSTILE_EXAMPLES", "10"))
CASES = settings(
    max_examples=EXAMPLES,
    deadline=None,  # the bound is in the test: Hypothesis counts the making of the file, too
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
LONGEST_S = 10.0
"""Time to read one of these files, of at most some 100 kB; milliseconds where the machine is idle."""
LONGEST_MESSAGE = 1_000


def records_in(item: Any) -> Iterator[Record]:
    if isinstance(item, Record):
        yield item
    elif isinstance(item, tuple):
        for one in item:
            yield from records_in(one)
    elif item is not None:
        for name in ("problem", "trace", "labels", "traces", "scores"):
            yield from records_in(getattr(item, name, None))


def assert_read_or_refused(seed: hostile.Seed, ending: str, content: bytes, strict: bool) -> None:
    report = None if strict else ReadReport()
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"in{ending}"
        path.write_bytes(content)
        began = time.monotonic()
        try:
            for item in seed.read(path, report):
                for record in records_in(item):
                    assert type(record).model_validate_json(record.model_dump_json()) == record
        except RecordError as error:  # any other error is a fault
            message = str(error)
        else:
            message = path.name
        assert path.name in message
        assert len(message) <= LONGEST_MESSAGE
        assert time.monotonic() - began < LONGEST_S
        assert list(Path(folder).iterdir()) == [path]
    for number, reason in report.bad if report else ():
        assert number >= 1
        assert 0 < len(reason) <= LONGEST_MESSAGE


def named(seed: hostile.Seed) -> str:
    return f"{seed.reader} {seed.ending}"


def test_every_reader_has_a_valid_file():
    assert {seed.reader for seed in hostile.SEEDS} == hostile.REGISTERED


@pytest.mark.parametrize("seed", hostile.SEEDS, ids=named)
def test_valid_files_are_read(seed, tmp_path):
    path, report = tmp_path / f"in{seed.ending}", ReadReport()
    path.write_bytes(seed.written)
    assert list(seed.read(path, report))
    assert report.bad == []


@pytest.mark.parametrize("seed", hostile.SEEDS, ids=named)
@CASES
@given(data=st.data(), strict=st.booleans())
def test_broken_files_are_read_or_refused(seed, data, strict):
    assert_read_or_refused(seed, seed.ending, data.draw(hostile.broken(seed)), strict)


@pytest.mark.parametrize(
    "seed", [one for one in hostile.SEEDS if one.ending in (".jsonl", ".json", ".csv")], ids=named
)
@settings(CASES, max_examples=max(EXAMPLES // 5, 1))
@given(data=st.data(), strict=st.booleans())
def test_broken_gzip_is_read_or_refused(seed, data, strict):
    content = data.draw(hostile.broken_gzip(seed.written))
    assert_read_or_refused(seed, f"{seed.ending}.gz", content, strict)


# What was found so, one test each.


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def imported(path: Path) -> tuple[list[Any], ReadReport]:
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    return list(import_traces(path, detect_format(path), context)), context.report


@contextmanager
def memory_within(bound: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bound
    finally:
        tracemalloc.stop()


def test_text_of_deep_json_in_meta_is_a_bad_line(tmp_path):
    path = lines(tmp_path / "p.jsonl", {"text": "p", "meta": '{"a":' * 100_000}, {"text": "q"})
    report = ReadReport()
    assert [problem.text for problem in read_records(path, Problem, report=report)] == ["q"]
    assert report.bad[0][0] == 1
    assert report.bad[0][1].startswith("field 'meta': ")
    half = lines(tmp_path / "half.jsonl", {"text": "p", "meta": '{"a": "\\ud800"}'})
    with pytest.raises(RecordError, match=r"half\.jsonl, line 1: field 'meta'"):
        list(read_records(half, Problem))


@pytest.mark.parametrize("column", sorted(hostile.COLUMNS))
@pytest.mark.parametrize("name", ["id", "text", "meta"])
def test_parquet_columns_of_any_type(column, name, tmp_path):
    path = tmp_path / "p.parquet"
    table = pa.table({"id": ["a"], "text": ["p"], "meta": ["{}"]})
    pq.write_table(table.set_column(table.column_names.index(name), name, hostile.COLUMNS[column](1)), path)
    for read in (lambda: list(read_records(path, Problem)), lambda: imported(path)):
        with suppress(RecordError):
            read()


@pytest.mark.parametrize("column", ["date", "invalid UTF-8", "two of one name"])
def test_parquet_values_that_python_lacks_are_named(column, tmp_path):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"text": ["p"], "x": hostile.COLUMNS[column](1)}), path)
    with pytest.raises(RecordError, match=r"p\.parquet: not a readable Parquet file after row 0: "):
        list(read_records(path, Problem, report=ReadReport()))


def test_an_encrypted_parquet_file_is_refused(tmp_path):
    import pyarrow.parquet.encryption as pe

    class Keys(pe.KmsClient):
        def wrap_key(self, key_bytes, master_key_identifier):
            return key_bytes.hex()

        def unwrap_key(self, wrapped_key, master_key_identifier):
            return bytes.fromhex(wrapped_key)

    keys = pe.CryptoFactory(lambda _: Keys()).file_encryption_properties(
        pe.KmsConnectionConfig(), pe.EncryptionConfiguration("k", uniform_encryption=True)
    )
    path = tmp_path / "p.parquet"
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())]), encryption_properties=keys) as writer:
        writer.write_table(pa.table({"text": ["p"]}))
    with pytest.raises(RecordError, match=r"p\.parquet: "):
        list(read_records(path, Problem))


def test_counts_that_are_too_large_are_bounded(tmp_path):
    batch = '{"choices": [{"text": "4"}], "usage": {"prompt_tokens": 1e999}}\n'
    [found], report = imported(lines(tmp_path / "batch.jsonl", batch))
    assert (found.trace.usage.prompt_tokens, report.bad) == (MAX_COUNT, [])


def test_numbers_that_are_too_large_are_bad_rows(tmp_path):
    value = '{"key": "x", "value": {"intValue": 1e999}}'
    span = '{"context": {"trace_id": "1", "span_id": "2"}, "attributes": [' + value + "]}\n"
    found, report = imported(lines(tmp_path / "spans.jsonl", span))
    assert (found, [line for line, _ in report.bad]) == ([], [1])


@pytest.mark.parametrize("place", ["more", "label.more", "question.pre_generated_verifier_score"])
def test_numbers_that_json_lacks_are_bad_rows(place, tmp_path):
    row = session(1)
    *above, last = place.split(".")
    (row[above[0]] if above else row)[last] = float("inf")
    report = ReadReport()
    assert list(read_source("prm800k", lines(tmp_path / "in.jsonl", row), report=report)) == []
    assert last in report.bad[0][1]


def test_attribute_names_of_many_parts_are_a_bad_row(tmp_path):
    name = "llm.tools.0." + "a." * 3_000 + "b"
    span = {"context": {"trace_id": "1", "span_id": "2"}, "attributes": {name: 1}}
    found, report = imported(lines(tmp_path / "spans.jsonl", span))
    assert found == []
    assert "3,002 parts" in report.bad[0][1]


def test_what_an_error_quotes_is_shortened(tmp_path):
    path = lines(tmp_path / "p.jsonl", {"text": "p", "x" * 100_000: 1})
    report = ReadReport()
    assert list(read_records(path, Problem, report=report)) == []
    assert report.bad[0][1].startswith("field 'xxx")
    assert report.bad[0][1].endswith("x': unknown field")
    assert len(report.bad[0][1]) < LONGEST_MESSAGE


# Archives.


def archive(path: Path, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as target:
        target.writestr("samples/1.json", content)
    return path


def test_a_member_that_is_larger_than_it_says_is_not_unpacked(tmp_path):
    path = archive(tmp_path / "log.eval", b'"' + b"a" * 200_000_000)
    data = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        struct.pack_into("<I", data, data.index(mark) + at, 100)
    path.write_bytes(data)
    with memory_within(20_000_000), pytest.raises(RecordError, match=r"log\.eval"):
        imported(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_unpack_without_bound_are_refused(method, tmp_path):
    path = archive(tmp_path / "log.eval", b"0" * 50_000_000, method)
    with (
        memory_within(20_000_000),
        pytest.raises(RecordError, match=r"log\.eval: samples/1\.json is packed by"),
    ):
        imported(path)


def damaged(content: bytes, how: str) -> bytes:
    data = bytearray(content)
    directory = data.index(b"PK\x01\x02")
    if how == "Zstandard":
        data[data.index(b"\x28\xb5\x2f\xfd")] ^= 1
    elif how == "directory":
        data[directory] ^= 1
    elif how == "version":
        data[directory + 6] = 255
    elif how == "encrypted":
        data[directory + 8] |= 1
        struct.pack_into("<H", data, directory + 10, zipfile.ZIP_STORED)
    return bytes(data)


@pytest.mark.parametrize("how", ["Zstandard", "directory", "version", "encrypted"])
def test_damaged_archives_are_named(how, tmp_path):
    path = tmp_path / "log.eval"
    path.write_bytes(damaged((hostile.DATA / "inspect.eval").read_bytes(), how))
    with pytest.raises(RecordError, match=r"log\.eval: "):
        imported(path)


# Small rows that become large.


def test_a_table_of_one_row_without_end_is_refused(tmp_path):
    for name, piece in (("line", b"a" * 2**20), ("row", b'"a\n",' * 2**18)):
        path = tmp_path / f"{name}.csv.gz"
        with gzip.open(path, "wb", 1) as stream:
            stream.write(b"question,response\n")
            for _ in range(40):
                stream.write(piece)
        bounds = lower_limits(max_piece_bytes=2**20)
        with bounds, memory_within(60_000_000), pytest.raises(RecordError, match="PIECE_BYTES"):
            imported(path)


def test_many_columns_and_short_rows_take_little(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(
        "question,response," + ",".join(f"c{number}" for number in range(50_000)) + "\nq,r" * 2_000
    )
    began = time.process_time()
    found, report = imported(path)
    assert (len(found), report.bad_count) == (2_000, 0)
    assert time.process_time() - began < 5


def test_cells_of_nothing_count(tmp_path):
    path = tmp_path / "nulls.parquet"
    nothing = {f"c{number}": pa.nulls(20_000) for number in range(100)}
    pq.write_table(pa.table({"text": pa.nulls(20_000, pa.string()), **nothing}), path)
    with lower_limits(max_unpacked_bytes=10_000_000), pytest.raises(RecordError, match="UNPACKED_BYTES"):
        list(read_records(path, Problem, report=ReadReport()))


def session(steps: int) -> dict[str, Any]:
    offered = {
        "completions": [{"text": "a", "rating": 1}, {"text": "b", "rating": -1}],
        "chosen_completion": 0,
    }
    return {
        "labeler": "r",
        "timestamp": "2022-07-30T23:23:32",
        "question": {"problem": "q"},
        "label": {"steps": [offered] * steps},
    }


def regions(steps: int, count: int) -> dict[str, Any]:
    value = {"start": 0, "end": steps - 1, "paragraphlabels": ["wrong"]}
    result = [{"type": "paragraphlabels", "value": value}] * count
    return {"data": {"question": "q", "steps": ["a"] * steps}, "annotations": [{"result": result}]}


@pytest.mark.parametrize(
    ("source", "row"),
    [
        ("prm800k", session(300)),
        ("label-studio", regions(200, 200)),
    ],
    ids=["alternatives", "regions"],
)
def test_rows_that_become_large_are_refused(source, row, tmp_path):
    path, report = lines(tmp_path / "in.jsonl", row), ReadReport()
    with lower_limits(max_piece_bytes=2**22), memory_within(40_000_000):
        assert list(read_source(source, path, report=report)) == []
    assert "the row becomes more than 4,194,304 bytes" in report.bad[0][1]


def test_an_attachment_that_is_used_often_is_refused(tmp_path):
    parts = [{"type": "text", "text": "attachment://a"}] * 2_000
    sample = {
        "id": 1,
        "messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "x"}],
        "attachments": {"a": "x" * 10_000},
    }
    path = archive(tmp_path / "log.eval", json.dumps(sample).encode())
    with lower_limits(max_piece_bytes=2**22), memory_within(40_000_000):
        found, report = imported(path)
    assert found == []
    assert "the row becomes more than" in report.bad[0][1]


def test_a_prompt_of_many_choices_is_refused(tmp_path):
    choices = [{"message": {"role": "assistant", "content": "x"}}] * 1_000
    row = {"custom_id": "a", "response": {"body": {"choices": choices, "usage": {}}}}
    path = lines(tmp_path / "batch.jsonl", row)
    asked = {"custom_id": "a", "body": {"messages": [{"role": "user", "content": "q" * 10_000}]}}
    settings = ImportSettings(requests=str(lines(tmp_path / "asked.jsonl", asked)))
    context = ImportContext(settings=settings, report=ReadReport())
    with lower_limits(max_piece_bytes=2**22):
        assert list(import_traces(path, "batch", context)) == []
    assert "the row becomes more than" in context.report.bad[0][1]


def test_several_members_of_gzip_are_one_file(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    trace = Trace(problem_id="p", text="a").model_dump_json().encode()
    path.write_bytes(gzip.compress(trace[:9]) + gzip.compress(trace[9:]) + b"\x00" * 7)
    assert [one.text for one in read_records(path, Trace)] == ["a"]
    path.write_bytes(path.read_bytes() + b"rubbish")
    with pytest.raises(RecordError, match=r"t\.jsonl\.gz"):
        list(read_records(path, Trace))


def test_names_in_an_archive_write_nothing(tmp_path):
    """A log's members are read by their content; no name of theirs becomes a path."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name in ("samples/../../outside.json", "/samples/outside.json", "samples/1.json"):
            target.writestr(name, json.dumps(hostile.LOG["samples"][0]))
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "log.eval").write_bytes(buffer.getvalue())
    found, _ = imported(inside / "log.eval")
    assert len(found) == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inside", "log.eval"]
