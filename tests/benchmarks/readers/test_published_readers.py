"""The readers of benchmarks on the published files, where these are at hand."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.readers import READERS
from benchmarks.readers.__main__ import main
from benchmarks.readers.bigbench_mistake import read_bigbench_mistake
from benchmarks.readers.math_aps import read_math_aps
from benchmarks.readers.r_judge import read_r_judge
from surefoot.io import read_records
from surefoot.records import Problem, StepLabel, Trace

DATA = Path(__file__).parents[3] / "../shared/data"


def needed(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip("the shared data set is not here")
    return DATA / name


def test_the_program_writes_records(tmp_path, monkeypatch):
    row = {"input": "( [", "steps": ["a", "b"], "target": "])", "answer": "])", "mistake_index": 1}
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr("sys.argv", ["x", "bigbench-mistake", f"{tmp_path}/b.jsonl", "--out", f"{tmp_path}"])
    main()
    [item] = READERS["bigbench-mistake"](tmp_path / "b.jsonl")
    assert list(read_records(tmp_path / "problems.jsonl", Problem)) == [item.problem]
    assert list(read_records(tmp_path / "traces.jsonl", Trace)) == [item.trace]
    labels = list(read_records(tmp_path / "labels.jsonl", StepLabel))
    assert [label.value for label in labels] == [label.value for label in item.labels] == [1, -1]


def test_big_bench_mistakes_and_right_answers():
    items = list(read_bigbench_mistake(needed("bigbench_mistake/multistep_arithmetic.jsonl.gz")))
    found = Counter((item.trace.outcome, any(label.value == -1 for label in item.labels)) for item in items)
    assert found == {(False, True): 237, (True, False): 44, (False, False): 18, (True, True): 1}


def test_math_aps_states_and_values():
    path = needed("prm800k/openr_samples_math-aps-tree.jsonl.gz")
    items = list(read_math_aps(path))

    def nodes(node: dict) -> int:
        return 1 + sum(map(nodes, node["children"]))

    trees = [
        row["reasoning_steps"] for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    ]
    assert sum(len(item.labels) for item in items) == sum(map(nodes, trees)) - 3  # all but the questions
    assert {label.kind for item in items for label in item.labels} == {"value"}


def test_r_judge_runs_are_safe_or_unsafe():
    items = list(read_r_judge(needed("safety/rjudge.json.gz")))
    assert Counter(item.trace.outcome for item in items) == {True: 266, False: 298}
    assert len({item.trace.id for item in items}) == 564
