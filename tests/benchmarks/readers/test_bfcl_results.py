"""Result and score files of BFCL, in the shape that `bfcl-eval` 2026.3 writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.readers import READERS
from surefoot.io import ReadReport
from surefoot.segment import segment_trace


def step(
    content: Any, decoded: list[str] | None, results: list[str] | None = None, **fields: str
) -> list[Any]:
    entries: list[Any] = [{"role": "assistant", "content": content, **fields}]
    if decoded is None:
        entries.append({"role": "handler_log", "content": "Error decoding the model response.", "error": "?"})
    else:
        entries.append(
            {"role": "handler_log", "content": "Successfully decoded.", "model_response_decoded": decoded}
        )
    return entries + [{"role": "tool", "content": result} for result in results or ()]


def run(name: str) -> dict[str, Any]:
    calls = [{"cd": '{"folder": "docs"}'}, {"touch": '{"file_name": "a.txt"}'}]
    log = [
        [{"role": "state_info", "class_name": "GorillaFileSystem", "content": {}}],
        {
            "begin_of_turn_query": [{"role": "user", "content": "Make a.txt in docs."}],
            "step_0": step(
                calls,
                ["cd(folder='docs')", "touch(file_name='a.txt')"],
                ['{"current_working_directory": "docs"}', "None"],
                reasoning_content="First cd.",
            ),
            "step_1": step("Made it.", None),
        },
        {
            "begin_of_turn_query": [{"role": "user", "content": "List it."}],
            "step_0": step("[ls(a=True)]", ["ls(a=True)"], ['{"current_directory_content": ["a.txt"]}']),
            "step_1": step("There it is.", []),
        },
    ]
    return {
        "id": name,
        "result": [[calls, "Made it."], ["[ls(a=True)]", "There it is."]],
        "inference_log": log,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> tuple[list[Any], ReadReport]:
    report = ReadReport()
    return list(READERS["bfcl"](path, report=report)), report


FAILED = {
    "id": "multi_turn_base_1",
    "model_name": "m",
    "test_category": "multi_turn_base",
    "valid": False,
    "error": {"error_type": "multi_turn:instance_state_mismatch"},
    "prompt": {
        "question": [[{"role": "user", "content": "Make a.txt."}], [{"role": "user", "content": "List it."}]]
    },
    "model_result_decoded": [[["touch(file_name='b.txt')"]], []],
    "possible_answer": [["touch('a.txt')"], ["ls()"]],
}
HEADER = {"accuracy": 0.5, "correct_count": 1, "total_count": 2}
RESULT = "result/m/multi_turn/BFCL_v4_multi_turn_base_result.json"
SCORE = "score/m/multi_turn/BFCL_v4_multi_turn_base_score.json"


def test_a_result_file_has_one_run_a_line_and_its_score_file_the_outcomes(tmp_path: Path) -> None:
    rows = [run("multi_turn_base_0"), run("multi_turn_base_1")]
    items, report = read(write(tmp_path / RESULT, rows))
    assert [item.trace.outcome for item in items] == [None, None]
    write(tmp_path / SCORE, [HEADER, FAILED])
    items, report = read(tmp_path / RESULT)
    assert not report.bad_count
    assert [item.trace.outcome for item in items] == [True, False]
    problem, trace = items[0].problem, items[0].trace
    assert (problem.id, problem.source) == ("multi_turn_base_0", "bfcl")
    assert problem.text == "Make a.txt in docs.\n\nList it."
    roles = [message.role for message in trace.messages]
    assert roles == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    first, second = trace.messages[1].tool_calls
    assert (first.name, json.loads(first.arguments)) == ("cd", {"folder": "docs"})
    assert [message.tool_call_id for message in trace.messages[2:4]] == [first.id, second.id]
    assert trace.messages[1].reasoning.text == "First cd."
    assert json.loads(trace.messages[6].tool_calls[0].arguments) == {"a": True}
    assert len({call.id for message in trace.messages for call in message.tool_calls}) == 3
    assert [trace.messages[place].content for place in (4, 8)] == ["Made it.", "There it is."]
    assert segment_trace(trace).steps


def test_a_score_file_alone_has_the_failed_runs(tmp_path: Path) -> None:
    ((item,), report) = read(write(tmp_path / SCORE, [HEADER, FAILED]))
    assert not report.bad_count
    assert (item.trace.outcome, item.trace.policy) == (False, "m")
    assert item.trace.meta["bfcl_error"] == FAILED["error"]
    assert [message.role for message in item.trace.messages] == ["user", "assistant", "user"]


def test_hostile_rows_are_rejected_with_the_reason(tmp_path: Path) -> None:
    single = {"id": "simple_0", "result": "f(a=1)", "inference_log": []}
    rows = [run("multi_turn_base_0")]
    for call in ("__import__('os').system('true')", "f(g())", "f(1)", "f(", "f(" + "[" * 5000):
        hostile = run("multi_turn_base_2")
        hostile["inference_log"][1]["step_0"] = step("x", [call])
        rows.append(hostile)
    items, report = read(write(tmp_path / "results.json", [*rows, single]))
    assert [item.problem.id for item in items if item.trace] == ["multi_turn_base_0"]
    assert report.bad_count == 6
    assert any("multi-turn categories" in reason for _, reason in report.bad)
