from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.readers.agent_judgements import read_agent_judgements
from surefoot.io import ReadReport

DATA = Path(__file__).parents[3] / "../shared/data/agent"


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_judges_beside_people(tmp_path: Path):
    row = {
        "dataset": "tau2",
        "record_id": "tau2:2:4",
        "data_source": "tau2",
        "query_index": 2,
        "sample_index": 4,
        "human_step_labels": {"2": 0, "15": -1},
        "human_final_label": 0,
        "judges": {"m": {"step_labels": {"15": 1}, "final_label": None}, "n": {"step_labels": {"2": None}}},
    }
    (run,) = read_agent_judgements(lines(tmp_path / "j.jsonl", row))
    trace = run.item.trace
    assert (trace.id, trace.problem_id, run.item.problem.id) == ("tau2:2:4", "tau2:2", "tau2:2")
    assert (run.item.problem.source, len(trace.steps), trace.outcome) == ("tau2", 2, None)
    assert [(one.step, one.value, one.source) for one in run.item.labels] == [
        (0, 0, "human"),
        (1, -1, "human"),
    ]
    assert [(one.step, one.value, one.source, one.evidence.rater) for one in run.judges["m"]] == [
        (1, 1, "judge", "m")
    ]
    assert [(one.value, one.reason) for one in run.judges["n"]] == [(None, "no label given")]
    report = ReadReport()
    bad = {**row, "judges": {"m": {"step_labels": {"3": 1}}}}
    unsorted = {**row, "human_step_labels": {"15": 1, "2": 1}, "judges": {}}
    empty = {**row, "human_step_labels": {}, "judges": {}}
    assert not list(read_agent_judgements(lines(tmp_path / "b.jsonl", bad, unsorted, empty), report=report))
    assert [reason for _, reason in report.bad] == [
        "field 'step_labels': message 3 is not from the assistant",
        "field 'human_step_labels': message indices must be ascending numbers",
        "field 'human_step_labels': empty",
    ]


def test_published_judgements(tmp_path: Path):
    """A part of them; benchmarks/agents/run.py reads all."""
    path = DATA / "apb_human_vs_judges.jsonl.gz"
    if not path.exists():
        pytest.skip("the shared data set is not here")
    with gzip.open(path, "rt") as stream:
        rows = [json.loads(next(stream)) for _ in range(30)]
    runs = list(read_agent_judgements(lines(tmp_path / "part.jsonl", *rows)))
    assert [run.item.trace.id for run in runs] == [row["record_id"] for row in rows]
    assert {len(run.judges) for run in runs} == {20}
    assert [len(run.item.trace.steps) for run in runs] == [len(row["human_step_labels"]) for row in rows]
    signs = [[label.value for label in run.judges["GPT-5.2"]] for run in runs]
    assert signs == [list(row["judges"]["GPT-5.2"]["step_labels"].values()) for row in rows]
