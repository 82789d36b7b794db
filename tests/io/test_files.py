from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_files import write_parquet

from surefoot.errors import RecordError
from surefoot.io import ReadReport, read_records, write_records
from surefoot.io.files import blocks
from surefoot.records import (
    Evidence,
    Message,
    Problem,
    Record,
    Step,
    StepLabel,
    StepScores,
    ToolCall,
    Trace,
    Usage,
)

ENDINGS = ["jsonl", "jsonl.gz"]

EXAMPLES: dict[type[Record], list[Record]] = {
    Problem: [
        Problem(text="1+1?"),
        Problem(text="Сколько 2+2?\n", answer="4", source="x", meta={"level": [1, {"a": None}], "é": 0.5}),
    ],
    Trace: [
        Trace(
            problem_id="p", text="a\n\nb", steps=(Step(start=0, end=3), Step(start=3, end=4)), outcome=False
        ),
        Trace(
            problem_id="p",
            messages=(
                Message(role="user", content="hi"),
                Message(role="assistant", tool_calls=(ToolCall(id="1", name="f", arguments='{"x": 1}'),)),
                Message(role="tool", content="3", tool_call_id="1"),
            ),
            steps=(Step(start=0, end=2, message=0),),
            usage=Usage(prompt_tokens=3),
            seed=7,
        ),
    ],
    StepLabel: [
        StepLabel(trace_id="t", step=0, kind="value", value=0.25, source="mc", evidence=Evidence(trials=4)),
        StepLabel(
            trace_id="t",
            step=1,
            kind="correctness",
            value=None,
            reason="not rated",
            source="human",
            created=datetime(2022, 7, 30, 23, 23, 32, 118856, tzinfo=UTC),
        ),
    ],
    StepScores: [
        StepScores(trace_id="t", scorer="s", scores=(0.5, None), unscored_reason="too long"),
        StepScores(trace_id="u", scorer="s", scores=()),
        StepScores(trace_id="v", scorer="s", scores=(0.0, 1.0), reasons=("NameError: x", None)),
    ],
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: record.__name__)
def test_records_come_back_equal(tmp_path: Path, ending: str, record: type[Record]):
    path = tmp_path / f"some.{ending}"
    assert write_records(path, EXAMPLES[record]) == len(EXAMPLES[record])
    assert list(read_records(path, record)) == EXAMPLES[record]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
@settings(deadline=None, max_examples=50)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=4))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, ending: str, texts: list[str]):
    path = tmp_path_factory.mktemp("texts") / f"some.{ending}"
    problems = [Problem(text=text, meta={"again": text}) for text in texts]
    write_records(path, problems)
    assert list(read_records(path, Problem)) == problems


@pytest.mark.parametrize("ending", ENDINGS)
def test_empty_file_and_more_records_than_a_row_group(tmp_path: Path, ending: str):
    path = tmp_path / f"some.{ending}"
    assert write_records(path, []) == 0
    assert list(read_records(path, Trace)) == []
    many = [Problem(text=str(number)) for number in range(2500)]
    assert write_records(path, iter(many)) == 2500
    assert list(read_records(path, Problem)) == many


def test_gzip_bytes_depend_on_the_records_alone(tmp_path: Path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_records(tmp_path / name, EXAMPLES[Problem])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_datasets_loads_what_is_written_and_makes_it_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    for record, examples in EXAMPLES.items():
        path = tmp_path / f"{record.__name__}.jsonl"
        write_records(path, examples)
        rows = datasets.load_dataset(
            "json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
        )
        assert set(rows.column_names) == set(record.model_fields)
        assert rows.num_rows == len(examples)
        rows.to_parquet(path.with_suffix(".parquet"))
        assert list(read_records(path.with_suffix(".parquet"), record)) == examples


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: record.__name__)
def test_parquet_is_read(tmp_path: Path, record: type[Record]):
    write_parquet(tmp_path / "some.parquet", EXAMPLES[record])
    assert list(read_records(tmp_path / "some.parquet", record)) == EXAMPLES[record]


BAD_LINES = (
    b'{"text": "good one"}\n'
    b"\n"
    b"{not json}\n"
    b'{"text": 5}\n'
    b'{"text": "x", "colour": "red"}\n'
    b"\xff\xfe\n"
    b"{}\n"
    b"null\n"
    b"   \n"
    b'{"answer": "3"}\n'
    b'{"text": "good two"}'
)


def test_bad_lines_are_counted_and_the_good_ones_kept(tmp_path: Path):
    path = tmp_path / "problems.jsonl"
    path.write_bytes(BAD_LINES)
    report = ReadReport()
    good = [problem.text for problem in read_records(path, Problem, report=report)]
    assert good == ["good one", "good two"]
    assert (report.good, report.bad_count) == (2, 7)
    reasons = dict(report.bad)
    assert list(reasons) == [3, 4, 5, 6, 7, 8, 10]
    assert reasons[3].startswith("not JSON (")
    assert reasons[4] == "field 'text': Input should be a valid string"
    assert reasons[5] == "field 'colour': unknown field"
    assert reasons[6].startswith("not UTF-8")
    assert reasons[7] == "an empty object"
    assert reasons[8] == "not an object but None"
    assert reasons[10] == "field 'text': missing"
    assert report.summary().startswith("problems.jsonl: 2 read, 7 skipped: line 3: not JSON (")
    assert "; line 4: field 'text': Input should be a valid string; line 5:" in report.summary()


def test_kept_reasons_are_capped_but_the_count_is_not(tmp_path: Path):
    path = tmp_path / "p.jsonl"
    path.write_text("x\n" * 50)
    report = ReadReport(keep=2)
    assert list(read_records(path, Problem, report=report)) == []
    assert (len(report.bad), report.bad_count) == (2, 50)
    assert report.summary().endswith("; and 48 more")


def test_one_report_over_two_files_names_each(tmp_path: Path):
    report = ReadReport()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("x\n")
        list(read_records(tmp_path / name, Problem, report=report))
    assert report.summary().startswith("a.jsonl, b.jsonl: 0 read, 2 skipped: line 1: not JSON")
    assert "line 1: b.jsonl: not JSON" in report.summary()


def test_without_report_the_first_bad_line_raises(tmp_path: Path):
    path = tmp_path / "problems.jsonl"
    path.write_bytes(BAD_LINES)
    reader = read_records(path, Problem)
    assert next(reader).text == "good one"
    with pytest.raises(RecordError, match=r"problems\.jsonl, line 3: not JSON .*; correct the line, or pass"):
        next(reader)
    path.write_text('{"problem_id": "p", "text": "ab", "steps": [{"start": 0, "end": 9}]}')
    with pytest.raises(RecordError, match=r"line 1: steps\[0\] spans \[0, 9\) outside its text"):
        list(read_records(path, Trace))


def test_bad_parquet_rows_are_counted(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"text": ["fine", "", None]}), path)
    report = ReadReport()
    assert [problem.text for problem in read_records(path, Problem, report=report)] == ["fine"]
    assert [line for line, _ in report.bad] == [2, 3]


def test_unreadable_files_raise_even_with_a_report(tmp_path: Path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 100)[:-12])
    (tmp_path / "no.jsonl.gz").write_text("plain text")
    (tmp_path / "no.parquet").write_text("plain text")
    for name in ("absent.jsonl", "cut.jsonl.gz", "no.jsonl.gz", "no.parquet"):
        with pytest.raises(RecordError, match=name):
            list(read_records(tmp_path / name, Problem, report=ReadReport()))
    with pytest.raises(RecordError, match=r"a\.txt: unknown ending; name the file \*\.jsonl"):
        list(read_records("a.txt", Problem))
    with pytest.raises(RecordError, match="unknown ending"):
        write_records(tmp_path / "a.csv", [])
    with pytest.raises(RecordError, match="folder does not exist"):
        write_records(tmp_path / "nowhere" / "a.jsonl", [])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, ending: str):
    path = tmp_path / f"some.{ending}"
    write_records(path, [Problem(text="old")])

    def failing():
        for number in range(3000):
            yield Problem(text=str(number))
        raise RuntimeError("the policy went away")

    with pytest.raises(RuntimeError, match="went away"):
        write_records(path, failing())
    assert [problem.text for problem in read_records(path, Problem)] == ["old"]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_values_that_no_file_can_hold_are_named(tmp_path: Path, ending: str):
    with pytest.raises(RecordError, match="cannot be written as"):
        write_records(tmp_path / f"some.{ending}", [Problem(id="x", text="lone", meta={"half": "\ud800"})])


def test_permissions_and_links_are_respected(tmp_path: Path):
    target = tmp_path / "real.jsonl"
    write_records(target, [])
    plain = tmp_path / "plain"
    plain.write_text("")
    assert target.stat().st_mode == plain.stat().st_mode
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    write_records(link, EXAMPLES[Problem])
    assert link.is_symlink()
    assert list(read_records(target, Problem)) == EXAMPLES[Problem]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_written_not_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        assert write_records(pipe, EXAMPLES[Problem]) == 2
        assert len(read.result(timeout=10).splitlines()) == 2
    assert pipe.is_fifo()


def test_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'\xef\xbb\xbf{"text": "a"}\nx\n')))
    report = ReadReport()
    assert [problem.text for problem in read_records("-", Problem, report=report)] == ["a"]
    assert report.summary().startswith("standard input: 1 read, 1 skipped: line 2: not JSON")


def test_dash_pipes_from_process_to_process():
    program = (
        "from surefoot.io import *; from surefoot.records import Problem\n"
        "import sys; write_records('-', read_records('-', Problem)); assert 'torch' not in sys.modules\n"
        "assert 'pyarrow' not in sys.modules"
    )
    lines = b"".join(record.model_dump_json().encode() + b"\n" for record in EXAMPLES[Problem])
    done = subprocess.run([sys.executable, "-c", program], input=lines, capture_output=True, check=True)
    assert done.stdout == lines


def test_blocks_hold_all_items_in_order_and_large_ones_alone():
    sizes = [2**20, 2**20, *[1] * 100, 2**20, 5]
    parts = list(blocks(sizes, lambda size: size))
    assert [len(part) for part in parts] == [1, 1, 64, 37, 1]
    assert [size for part in parts for size in part] == sizes
