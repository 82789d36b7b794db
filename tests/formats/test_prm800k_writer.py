from __future__ import annotations

import json
from pathlib import Path

from surefoot.formats import read_prm800k, read_prm800k_steps, write_prm800k
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence


def step(*rated: tuple[str, int | None], chosen: int | None = 0, human: object = None) -> dict:
    completions = [{"text": text, "rating": rating, "flagged": False} for text, rating in rated]
    return {"completions": completions or None, "human_completion": human, "chosen_completion": chosen}


def record(*steps: dict, finish: str = "solution") -> dict:
    return {
        "labeler": "rater-1",
        "timestamp": "2022-07-30T23:23:32.118856",
        "generation": None,
        "is_quality_control_question": False,
        "question": {"problem": "q?", "ground_truth_answer": "29", "pre_generated_steps": ["x", "y"]},
        "label": {"steps": list(steps), "total_time": 1500, "finish_reason": finish},
        "unknown": {"to": ["us"]},
    }


HUMAN = {"text": "mine", "rating": None, "source": "human", "flagged": False}
RECORDS = [
    record(step(("a", 1), ("A", -1)), step(("b", 0), ("B", 1), ("C", None), chosen=1)),
    record(step(("a", -1), chosen=None, human=HUMAN), step(chosen=None), finish="give_up"),
    record(step(chosen=None, human="mine"), step(("b", -1), ("c", 1), chosen=None), finish="found_error"),
    record({"completions": [{"text": "a", "odd": 1}], "chosen_completion": 0}),
    record(step(("a", 1), ("A", -1)), step(("b", 0), ("B", 1), ("C", None), chosen=1)),
]


def read(path: Path, *records: dict) -> list[LabelledTrace]:
    path.write_text("".join(json.dumps(row) + "\n" for row in records))
    return list(read_prm800k(path))


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_come_back_with_every_field(tmp_path: Path):
    items = read(tmp_path / "raw.jsonl", *RECORDS)
    report = write_prm800k(items, tmp_path / "o.jsonl")
    assert report.summary() == "5 rows written; dropped: nothing"
    assert rows_of(tmp_path / "o.jsonl") == RECORDS


def test_changed_ratings_and_missing_alternatives_are_written(tmp_path: Path):
    main, a, b, c = read(tmp_path / "raw.jsonl", RECORDS[0])
    flipped = a.labels[0].model_copy(update={"value": 0.0})
    items = [c, LabelledTrace(problem=a.problem, trace=a.trace, labels=(flipped,)), main]
    write_prm800k(items, tmp_path / "o.jsonl")
    assert rows_of(tmp_path / "o.jsonl") == [
        record(step(("a", 1), ("A", 0)), step(("B", 1), ("C", None), chosen=0))
    ]
    assert b.trace.text == "a\nb"


def test_without_the_first_trace_each_is_a_record_of_its_own(tmp_path: Path):
    _, a, b, _ = read(tmp_path / "raw.jsonl", RECORDS[0])
    assert write_prm800k([a, b], tmp_path / "o.jsonl").written == 2
    back = list(read_prm800k(tmp_path / "o.jsonl"))
    assert [item.trace.text for item in back] == ["A", "a\nb"]
    assert [[label.value for label in item.labels] for item in back] == [[-1.0], [None, 0.0]]
    assert {label.evidence.rater for item in back for label in item.labels} == {"rater-1"}
    assert {label.created for label in back[0].labels} == {a.labels[0].created}
    assert [row["label"]["finish_reason"] for row in rows_of(tmp_path / "o.jsonl")] == ["solution"] * 2


def test_step_rows_as_records(tmp_path: Path):
    flags = dict.fromkeys(("is_human_response", "is_solution", "is_preferred_response"), False)
    base = {"instruction": "q", "answer": None, **flags}
    rows = [
        {**base, "responses": [], "next_response": "a", "rating": 1},
        {**base, "responses": ["a"], "next_response": "b", "rating": -1},
        {**base, "responses": ["a"], "next_response": "b", "rating": 1},
    ]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (item,) = read_prm800k_steps(tmp_path / "s.jsonl")
    value = item.labels[0].model_copy(update={"kind": "value"})
    judged = item.labels[0].model_copy(update={"evidence": Evidence(rater="r")})
    changed = LabelledTrace(problem=item.problem, trace=item.trace, labels=(judged, *item.labels[1:], value))
    bare = LabelledTrace(problem=item.problem, trace=item.trace, labels=(value,))
    report = write_prm800k([changed, bare], tmp_path / "o.jsonl")
    assert report.dropped == {
        "labels: kind 'value'": 1,
        "labels: another one of the same step": 1,
        "traces: no correctness label": 1,
    }
    (row,) = rows_of(tmp_path / "o.jsonl")
    assert (row["labeler"], row["label"]["finish_reason"]) == ("r", "found_error")
    assert [part["chosen_completion"] for part in row["label"]["steps"]] == [0, None]
    (back,) = read_prm800k(tmp_path / "o.jsonl")
    assert [label.value for label in back.labels] == [1.0, -1.0]
