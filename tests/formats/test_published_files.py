"""Every file of the shared data: read, stored as records, and written back, equal row by row."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from surefoot.formats import read_prm800k, read_prmbench, read_prmbench_controls, read_source, write_labelled
from surefoot.formats.rows import step_parts
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace

DATA = Path(__file__).parents[2] / "../shared/data"

FILES = [
    ("agent-processbench", "agent/agentprocessbench_hotpotqa.jsonl.gz", 150),
    ("math-shepherd", "prm800k/openr_samples_math-shepherd.jsonl.gz", 7),
    ("prm800k", "prm800k/openr_samples_prm800k.jsonl.gz", 6),
    ("prm800k-steps", "prm800k/phase1_test.jsonl.gz", 5449),
    ("processbench", "processbench/gsm8k.json.gz", 400),
    ("processbench", "processbench/math.fixed.json.gz", 1000),
]

WRITTEN = ("processbench",)


def needed(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip("the shared data set is not here")
    return DATA / name


def load(path: Path) -> list[dict[str, Any]]:
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]


def stored(item: LabelledTrace) -> LabelledTrace:
    """The same, gone through the text form of the records."""
    return LabelledTrace(
        problem=Problem.model_validate_json(item.problem.model_dump_json()),
        trace=Trace.model_validate_json(item.trace.model_dump_json()),
        labels=tuple(StepLabel.model_validate_json(label.model_dump_json()) for label in item.labels),
    )


@pytest.mark.parametrize(("name", "file", "count"), FILES)
def test_all_rows_are_read_and_survive_as_records(name: str, file: str, count: int):
    assert_records(name, needed(file), count)


@pytest.mark.slow
def test_a_part_of_the_training_rows_is_read(tmp_path: Path):
    with gzip.open(needed("prm800k/phase1_train_plus.jsonl.gz"), "rt", encoding="utf-8") as lines:
        part = list(lines)[-8000:]
    (tmp_path / "part.jsonl").write_text("".join(part), encoding="utf-8")
    items = assert_records("prm800k-steps", tmp_path / "part.jsonl", 8000)
    assert sum(len(item.labels) for item in items) == 8000


@pytest.mark.parametrize(("name", "file", "count"), [row for row in FILES if row[0] in WRITTEN])
def test_all_rows_and_fields_come_back_in_order(tmp_path: Path, name: str, file: str, count: int):
    items = assert_records(name, needed(file), count)
    report = write_labelled(name, items, tmp_path / "out.jsonl", neutral="drop")
    assert report.summary() == f"{count} rows written; dropped: nothing"
    rows, written = load(needed(file)), load(tmp_path / "out.jsonl")
    assert written == rows
    assert [list(row) for row in written] == [list(row) for row in rows]


def assert_records(name: str, path: Path, count: int) -> list[LabelledTrace]:
    """The labelled traces of a file, each equal after a round trip through JSON."""
    reading = ReadReport()
    items = list(read_source(name, path, report=reading))
    assert (reading.good, reading.bad_count) == (count, 0)
    assert len({item.trace.id for item in items}) == len(items)
    records = [stored(item) for item in items]
    assert records == items
    return records


def test_prmbench_labels_and_controls():
    path = needed("prmbench/subset400_target_data.jsonl.gz")
    rows, items = load(path), list(read_prmbench(path))
    outside = 0
    for row, item in zip(rows, items, strict=True):
        bad = {label.step + 1 for label in item.labels if label.value == -1}
        assert len(item.labels) == len(row["modified_process"])
        outside += bad != set(row["error_steps"])
        assert bad == {step for step in row["error_steps"] if step <= len(row["modified_process"])}
    assert outside == 11  # rows that name a step after the last
    controls = list(read_prmbench_controls(path))
    assert len(controls) == sum(row["classification"] == "redundency" for row in rows) == 48
    assert {label.value for item in controls for label in item.labels} == {1.0}


def test_prm800k_alternatives_branch_from_the_chosen_path_alone():
    path = needed("prm800k/openr_samples_prm800k.jsonl.gz")
    items = list(read_prm800k(path))
    for record in load(path):
        offered = [
            [*(step["completions"] or []), *([step["human_completion"]] if step["human_completion"] else [])]
            for step in record["label"]["steps"]
        ]
        chosen = [
            texts[-1 if step["human_completion"] else step["chosen_completion"]]["text"]
            for step, texts in zip(record["label"]["steps"], offered, strict=True)
            if step["human_completion"] or step["chosen_completion"] is not None
        ]
        mine = [item for item in items if item.problem.text == record["question"]["problem"]]
        assert mine
        for item in mine:
            *prefix, last = step_parts(item.trace)
            assert prefix == chosen[: len(prefix)]
            assert last in [completion["text"] for completion in offered[len(prefix)]]
        ends = Counter(len(item.trace.steps) for item in mine if item.trace.meta["branch"] == "alternative")
        main = sum(item.trace.meta["branch"] == "main" for item in mine)
        length = max(len(item.trace.steps) for item in mine if item.trace.meta["branch"] == "main")
        assert main == 1
        assert ends == Counter({n: len(o) - (n <= length) for n, o in enumerate(offered, 1)}) + Counter()
