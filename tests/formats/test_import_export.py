"""``surefoot import`` and ``export`` with every labelled format, through records and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from surefoot.cli import app
from surefoot.formats import read_source
from surefoot.io import read_records
from surefoot.records import Problem, Step, StepLabel, Trace, content_id

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SESSION = {
    "labeler": "r",
    "timestamp": "2022-07-30T23:23:32",
    "question": {"problem": "q?", "ground_truth_answer": "2"},
    "label": {
        "steps": [
            {
                "completions": [{"text": text, "rating": rating} for text, rating in step],
                "chosen_completion": 0,
            }
            for step in ([("a", 1), ("b", 0)], [("c", -1)])
        ],
        "finish_reason": "solution",
    },
}
PLACE = {"start": "0", "end": "0", "startOffset": 0, "endOffset": 2, "text": "a\n"}
LABEL_STUDIO_TASK = {
    "data": {
        "problem": "q?",
        "answer": "2",
        "steps": [{"author": "1", "text": "a\n"}, {"author": "2", "text": "b"}],
        "surefoot": {
            "problem": Problem(id="p", text="q?", answer="2").model_dump(mode="json"),
            "trace": Trace(
                id="t",
                problem_id="p",
                text="a\nb",
                steps=(Step(start=0, end=2), Step(start=2, end=3)),
            ).model_dump(mode="json"),
        },
    },
    "annotations": [
        {
            "result": [
                {
                    "id": content_id("label-studio", "t", 0)[:10],
                    "from_name": "label",
                    "to_name": "steps",
                    "type": "paragraphlabels",
                    "value": {**PLACE, "paragraphlabels": ["neutral"]},
                    "meta": {
                        "surefoot": StepLabel(
                            trace_id="t", step=0, kind="correctness", value=0, source="human", created=NOON
                        ).model_dump(mode="json", exclude={"trace_id"})
                    },
                }
            ],
            "was_cancelled": False,
            "ground_truth": False,
            "created_at": NOON.isoformat(),
        }
    ],
    "predictions": [],
}
ROWS = {
    "agent-processbench": {
        "total_index": 3,
        "query_index": 1,
        "sample_index": 2,
        "question": "Who wrote it?",
        "data_source": "hotpotqa",
        "ground_truth": {"target": ["Ann"]},
        "answer_text": "Ann",
        "messages": [
            {"role": "user", "content": "Who wrote it?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "search", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "name": "search", "content": "Ann did.", "tool_call_id": "a"},
            {"role": "assistant", "content": "Ann"},
        ],
        "tool_metrics": {"search": [{"status": "success"}]},
        "tools": [
            {
                "type": "function",
                "function": {"name": "search", "description": "Search.", "parameters": {"type": "object"}},
            }
        ],
        "step_labels": {"1": 0, "3": 1},
        "final_label": 1,
    },
    "label-studio": LABEL_STUDIO_TASK,
    "math-shepherd": {"input": "q Step 1: a ки", "label": "q Step 1: a +", "task": "GSM8K"},
    "prm800k": SESSION,
    "prm800k-steps": {
        "instruction": "q",
        "responses": ["a"],
        "next_response": "b",
        "answer": None,
        "is_human_response": False,
        "is_solution": False,
        "is_preferred_response": True,
        "rating": 0,
    },
    "prmbench": {
        "original_question": "q",
        "modified_question": "q",
        "original_process": ["a"],
        "modified_process": ["a", "b"],
        "modified_steps": [2],
        "error_steps": [2],
        "reason": "r",
        "idx": "1",
        "question": "q",
        "classification": "redundency",
    },
    "processbench": {
        "id": "1",
        "generator": "g",
        "problem": "p",
        "steps": ["a", "b"],
        "final_answer_correct": True,
        "label": -1,
    },
    "who-and-when": {
        "question": "When?",
        "question_ID": "q",
        "ground_truth": "now",
        "history": [
            {"content": "When?", "role": "human"},
            {"content": "Ask.", "role": "Orchestrator (thought)"},
            {"content": "Then.", "role": "assistant", "name": "Clock_Expert"},
        ],
        "mistake_agent": "Clock_Expert",
        "mistake_step": "2",
        "mistake_reason": "It is now.",
    },
    "stepwise": {"prompt": "p", "completions": ["a"], "labels": [True]},
}


SIGNED = ("processbench", "stepwise")


def run(*words: object):
    return CliRunner().invoke(app, [*map(str, words)])


def good(*words: object):
    ended = run(*words)
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return ended


def file(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(ROWS[name]) + "\n", encoding="utf-8")
    return path


def records(tmp_path: Path, name: str) -> Path:
    """The directory of records of a file in the format ``name``."""
    good("import", file(tmp_path, name), "--from", name, "--out", tmp_path / "records")
    return tmp_path / "records"


@pytest.mark.parametrize("name", sorted(ROWS))
def test_each_format_is_detected_and_imported_as_its_reader_reads_it(tmp_path: Path, name: str):
    ended = good("import", file(tmp_path, name), "--out", tmp_path / "records")
    assert f"is read as {name}" in ended.output
    (item,) = list(read_source(name, tmp_path / "in.jsonl"))[:1]
    [trace, *_] = read_records(tmp_path / "records/traces.jsonl", Trace)
    assert trace == item.trace
    labels = list(read_records(tmp_path / "records/labels.jsonl", StepLabel))
    assert [(label.step, label.value) for label in labels[: len(item.labels)]] == [
        (label.step, label.value) for label in item.labels
    ]


@pytest.mark.parametrize("name", ["label-studio", *SIGNED])
def test_a_row_comes_back_through_records(tmp_path: Path, name: str):
    ended = good("export", records(tmp_path, name), "--to", name, "--out", tmp_path / "out.jsonl")
    assert "1 rows written; dropped: nothing" in ended.output
    assert json.loads((tmp_path / "out.jsonl").read_text("utf-8")) == ROWS[name]


@pytest.mark.parametrize("name", SIGNED)
def test_neutral_ratings_need_a_rule_where_signs_are_written(tmp_path: Path, name: str):
    words = ("export", records(tmp_path, "prm800k"), "--to", name, "--out", tmp_path / "out.jsonl")
    ended = run(*words)
    assert ended.exit_code != 0
    assert "there are neutral labels (0)" in f"{ended.output} {ended.exception}"
    assert "--neutral" in f"{ended.output} {ended.exception}"
    assert not (tmp_path / "out.jsonl").exists()
    decided = run(*words, "--neutral", "drop")
    assert "rows written" in decided.output  # ProcessBench's need an outcome, too
    refused = run(*words, "--neutral", "maybe", "--force")
    assert refused.exit_code != 0
    assert "choose good, bad or drop" in f"{refused.output} {refused.exception}"


def test_the_rule_says_what_a_neutral_rating_becomes(tmp_path: Path):
    source = records(tmp_path, "prm800k")
    for rule, labels in (("good", [True]), ("bad", [False])):
        good("export", source, "--to=stepwise", "--neutral", rule, "--out", tmp_path / rule)
        rows = [json.loads(line) for line in (tmp_path / rule).read_text().splitlines()]
        assert [row["labels"] for row in rows] == [[True, False], labels]


def test_controls_and_problems_have_their_readers(tmp_path: Path):
    source = file(tmp_path, "prmbench")
    ended = good("import", source, "--from=prmbench-controls", "--out", tmp_path / "controls")
    assert "1 label" in ended.output
    question = {"question": "q", "answer": "#### 1"}
    (tmp_path / "g.jsonl").write_text(json.dumps(question))
    ended = good("import", tmp_path / "g.jsonl", "--out", tmp_path / "g")
    assert "read as gsm8k" in ended.output
    assert "1 problem, 0 traces" in ended.output
    refused = run("export", tmp_path / "g", "--to=stepwise", "--out", tmp_path / "o.jsonl")
    assert "there is no traces.jsonl" in f"{refused.output} {refused.exception}"


def test_data_sets_have_fixed_steps(tmp_path: Path):
    refused = run("import", file(tmp_path, "stepwise"), "--segment", "line", "--out", tmp_path / "o")
    assert "stepwise is a data set with fixed steps" in f"{refused.output} {refused.exception}"
