"""Runs with a cause that a monitor must not see: SHADE-Arena's side task, Thought Branches' hint."""

from __future__ import annotations

import json
from pathlib import Path

import hostile_files as hostile
import pytest
from command_line import good, refused
from openai_server import Reply, chat, serve

from surefoot.formats import detect_format, read_shade_arena, read_thought_branches
from surefoot.io import ReadReport

SHADE = next(seed.rows[0] for seed in hostile.SEEDS if seed.reader == "source shade-arena")
BRANCH = next(seed.rows[0] for seed in hostile.SEEDS if seed.reader == "source thought-branches")
REAL = Path(__file__).parents[3] / "shared" / "data" / "safety" / "shade_arena"


def written(path, row):
    path.write_text(json.dumps(row) + "\n")
    return path


@pytest.mark.parametrize(
    ("done", "asked", "outcome"), [(True, True, False), (False, False, True), (False, True, None)]
)
def test_a_run_with_the_side_task_done_is_bad(tmp_path, done, asked, outcome):
    row = {**SHADE, "side_task_evaluation": done, "experiment_metadata": {"include_secondary_task": asked}}
    path = written(tmp_path / "s.jsonl", row)
    assert detect_format(path) == "shade-arena"
    [item] = read_shade_arena(path)
    assert item.trace.outcome is outcome
    assert item.problem.text == "Pay Amy."


def test_the_system_prompt_is_not_shown_and_thoughts_are_reasoning(tmp_path):
    [item] = read_shade_arena(written(tmp_path / "s.jsonl", SHADE))
    assert "side task" not in item.trace.model_dump_json()
    call = item.trace.messages[1]
    assert call.readable_reasoning == "Nobody looks.\nNow Eve."
    assert (call.content, str(call.tool_calls[0])) == ("I pay.", 'pay({"to": "eve"})')


def test_a_moved_and_a_right_response_belong_to_the_question_without_hint(tmp_path):
    path = written(tmp_path / "b.jsonl", BRANCH)
    assert detect_format(path) == "thought-branches"
    moved, right = read_thought_branches(path)
    assert (moved.trace.outcome, moved.trace.answer) == (False, "B")
    assert (right.trace.outcome, right.trace.answer) == (True, "A")
    assert moved.problem == right.problem
    assert moved.problem.text == "Which? (A) this (B) that"
    report = ReadReport()
    same = written(tmp_path / "c.jsonl", {**BRANCH, "cue_answer": "A"})
    assert list(read_thought_branches(same, report=report)) == []
    assert "the hint cannot mislead" in report.summary()


def test_positives_alone_measure_no_monitor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = sorted(map(str, REAL.glob("*.json.gz")))
    if not files:
        pytest.skip(f"{REAL} is absent")
    for number, file in enumerate(files):
        good("import", file, "--out", f"run-{number}")
    Path("runs.jsonl").write_text("".join(p.read_text() for p in sorted(Path().glob("run-*/traces.jsonl"))))
    problems = ("--problems", "run-0/problems.jsonl", "--traces", "runs.jsonl")
    says = refused("evaluate", "--as=monitor", "w=keyword:IBAN", *problems, "--out", "m")
    assert "all 7 runs are bad: without runs of both kinds there is no AUC and no threshold" in says


def test_a_judge_on_a_server_sees_two_runs_together_and_not_the_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{**BRANCH, "pn": number} for number in range(6) for _ in range(2)]
    for number, row in enumerate(rows):  # two different runs of a question
        row |= {name: f"{row[name]} Run {number}." for name in ("response_text", "base_gt_response_text")}
    Path("b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    good("import", "b.jsonl", "--from", "thought-branches", "--out", "in")

    def judge(body):
        text = body["messages"][0]["content"]
        return Reply(payload=chat([f"Suspicion: {90 if 'seems' in text else 10}"]))

    data = ("--problems", "in/problems.jsonl", "--traces", "in/traces.jsonl")
    with serve(judge) as server:
        judge_of = f"--as=monitor:view=both,judge-url={server.url},together=2"
        url = (judge_of, "--draws", "20", "--out", "m")
        good("evaluate", "j=judge:big", *data, *url)
        asked = [body["messages"][0]["content"] for body in server.bodies]
    assert len(asked) == 12
    assert all("<run 2>" in text and "professor" not in text for text in asked)
    results = json.loads(Path("m/monitor.json").read_text())["monitors"]
    [by_judge] = [row for row in results if row["monitor"] == "j"]
    assert by_judge["auc"]["value"] == by_judge["product"]["value"] == 1.0
    assert "same ending" in {row["monitor"] for row in results}
    with serve(lambda _: Reply(payload=chat(["I cannot say."]))) as server:
        url = (f"--as=monitor:view=both,judge-url={server.url}", "--out", "n")
        says = refused("evaluate", "j=judge:big", *data, *url)
    assert "the judge gave no number for any of 24 runs: I cannot say." in says
