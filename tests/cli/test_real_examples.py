"""The real solutions and runs that are shipped: a fair sample, small, with licences."""

from __future__ import annotations

import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REAL = ROOT / "src" / "surefoot" / "cli" / "real"
DATA = ROOT / "../shared/data"
SCORER = "Qwen2.5-Math-PRM-7B"
NAMES = ("solutions.jsonl", "scores.jsonl", "agent-runs.jsonl")


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (REAL / name).read_text(encoding="utf-8").split("\n") if line]


def test_they_are_small_and_each_has_its_licence_and_source():
    assert {path.name for path in REAL.iterdir()} == {*NAMES, "NOTICE.md"}
    assert sum(path.stat().st_size for path in REAL.iterdir()) <= 250_000
    notice = (REAL / "NOTICE.md").read_text(encoding="utf-8")
    table = {line.split("`")[1]: line for line in notice.splitlines() if line.startswith("| `")}
    licences = dict(zip(NAMES, ("Apache-2.0", "CC BY 4.0", "MIT"), strict=True))
    for name, licence in licences.items():
        assert licence in table[name]
        assert "https://" in table[name]
    assert "Permission is hereby granted" in notice


def test_the_scores_belong_to_the_solutions():
    solutions, scores = rows("solutions.jsonl"), rows("scores.jsonl")
    assert len({row["id"] for row in solutions}) == len(solutions) == 100
    for solution, row in zip(solutions, scores, strict=True):
        assert (row["trace_id"], row["scorer"]) == (solution["id"], SCORER)
        assert len(row["scores"]) == len(solution["steps"])
        scored = len(solution["steps"]) if solution["label"] < 0 else solution["label"] + 1
        assert [score is not None for score in row["scores"][:scored]] == [True] * scored


def test_every_message_of_an_agent_has_a_label_of_people():
    runs = rows("agent-runs.jsonl")
    assert len({run["question"] for run in runs}) == len(runs) == 10
    for run in runs:
        agent = [str(n) for n, message in enumerate(run["messages"]) if message["role"] == "assistant"]
        assert sorted(run["step_labels"]) == sorted(agent)


@pytest.mark.skipif(not DATA.exists(), reason="the published files are not here")
def test_they_were_chosen_by_a_rule_that_does_not_look_at_labels_or_scores():
    def published(name: str) -> list[dict[str, Any]]:
        with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def place(name: str) -> str:
        return sha256(name.encode()).hexdigest()

    scored = [row for row in published("calib/fover_processbench_scores.jsonl.gz") if row["split"] == "gsm8k"]
    scored.sort(key=lambda row: place(row["id"]))
    shipped = [[score for score in row["scores"] if score is not None] for row in rows("scores.jsonl")]
    assert shipped == [row["scores"][SCORER] for row in scored[:100]]
    with gzip.open(DATA / "processbench/gsm8k.json.gz", "rt", encoding="utf-8") as file:
        by_id = {row["id"]: row for row in json.load(file)}
    assert rows("solutions.jsonl") == [by_id[row["id"]] for row in scored[:100]]

    runs = published("agent/agentprocessbench_hotpotqa.jsonl.gz")
    runs.sort(key=lambda run: place(f"{run['data_source']}:{run['query_index']}:{run['sample_index']}"))
    first: dict[int, dict[str, Any]] = {}
    for run in runs:
        if len(json.dumps(run, ensure_ascii=False).encode()) <= 20_000:
            first.setdefault(run["query_index"], run)
    assert rows("agent-runs.jsonl") == list(first.values())[:10]
