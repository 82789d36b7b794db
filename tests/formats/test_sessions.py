"""Sessions of coding agents: every message, call and result is read once, or counted as left out."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import RecordError
from surefoot.formats import ImportContext, ImportedTrace, ImportSettings, detect_format, import_traces
from surefoot.formats.imports import NO_TASK
from surefoot.io import ReadReport
from surefoot.labelling.verifiers.tool_policy import call_results
from surefoot.records import Trace

DATA = Path(__file__).parents[1] / "data"
TASK = "Add 2 and 2 in sum.py."


def read(path: Path) -> tuple[list[ImportedTrace], Counter[str]]:
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    found = list(import_traces(path, detect_format(path), context))
    assert context.report.bad == []
    return found, context.report.left_out


def one(path: Path) -> Trace:
    [imported], _ = read(path)
    assert imported.trace is not None
    return imported.trace


def calls(trace: Trace) -> list[tuple[str, bool | None]]:
    """Each call's tool, and whether its result failed; ``None`` where nothing says."""
    return [(pair.call.name, pair.result and pair.result.error) for pair in call_results(trace.messages)]


def texts(trace: Trace, role: str) -> list[str]:
    return [message.content for message in trace.messages if message.role == role and message.content]


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_session_of_claude_code() -> None:
    [main, subagent], left_out = read(DATA / "claude-code.jsonl")
    assert main.problem is not None
    assert main.trace is not None
    assert subagent.trace is not None
    assert (main.problem.text, main.trace.id) == (TASK, "5d1c")
    assert calls(main.trace) == [("Read", False), ("Bash", True), ("Edit", False), ("Task", False)]
    assert texts(main.trace, "assistant") == [
        "I fix the bracket.", "Done: it prints 4.", "The closing bracket was missing."
    ]  # fmt: skip
    assert texts(main.trace, "user")[2:] == [
        "Explain the fix.", "Summary: the bracket was fixed.", "In one sentence, please."
    ]  # fmt: skip
    assert [message.reasoning.visibility for message in main.trace.messages if message.reasoning] == [
        "visible", "encrypted"
    ]  # fmt: skip
    assert texts(subagent.trace, "assistant") == ["They come in pairs."]
    assert subagent.trace.meta["import"]["subagent"] == "s1"
    assert left_out["messages that the user took back"] == 2, "the prompt to delete the file, and its answer"
    assert left_out["events that come again"] == 1
    assert left_out["messages that the program wrote in the model's place"] == 1


def test_a_broken_chain_of_parents_loses_nothing(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / "claude-code.jsonl").read_text().splitlines()]
    kept = [row for row in rows if row["type"] not in ("progress", "system") and row.get("uuid") != "u2"]
    path = write(tmp_path / "s.jsonl", *[row | {"parentUuid": None} for row in kept if "uuid" in row])
    whole, broken = one_of(read(DATA / "claude-code.jsonl")[0]), one_of(read(path)[0])
    assert [text for text in texts(whole, "assistant") if text not in texts(broken, "assistant")] == []
    assert calls(whole) == calls(broken)


def one_of(found: list[ImportedTrace]) -> Trace:
    assert found[0].trace is not None
    return found[0].trace


def test_a_stream_of_claude_code() -> None:
    [main, subagent], left_out = read(DATA / "claude-code-stream.jsonl")
    assert main.problem is not None
    assert main.trace is not None
    assert subagent.trace is not None
    assert main.problem.text == NO_TASK
    assert calls(main.trace) == [("Bash", False), ("Task", False)]
    assert main.trace.messages[0].tool_calls[0].arguments == '{"command": "ls"}', "the later of two equal ids"
    assert main.trace.messages[0].content == "I list the files."
    assert left_out["calls that the model wrote again"] == 1
    assert (calls(subagent.trace), subagent.trace.error) == ([("Bash", True)], None)
    assert subagent.problem is not None
    assert subagent.problem.text == "Add 2 and 2"


def test_a_stream_that_was_cut(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / "claude-code-stream.jsonl").read_text().splitlines()]
    path = tmp_path / "s.txt"
    path.write_text(
        "Starting…\n" + "".join(json.dumps(row) + "\n" for row in rows[:6]) + '{"type": "user", "mess'
    )
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    [imported] = import_traces(path, detect_format(path), context)
    assert imported.trace is not None
    assert imported.trace.error == "the stream ends before its result"
    assert calls(imported.trace) == [("Bash", False), ("Task", None)]
    assert context.report.bad_count == 2, "the line before the events, and the cut one"


def test_a_rollout_of_codex() -> None:
    trace = one(DATA / "codex.jsonl")
    names = ["exec_command", "exec_command", "apply_patch", "local_shell", "web_search"]
    assert calls(trace) == list(zip(names, [True, None, None, False, None], strict=True))
    assert json.loads(trace.messages[7].tool_calls[0].arguments) == {
        "input": "*** Begin Patch\n*** End Patch\n"
    }
    assert texts(trace, "assistant") == ["It prints 4.", "You are welcome."]
    assert "Summary: the bracket was fixed." in texts(trace, "user")
    assert (trace.policy, trace.usage.completion_tokens, trace.id) == ("gpt-test-codex", 40, "019a")
    [imported], left_out = read(DATA / "codex.jsonl")
    assert imported.problem is not None
    assert imported.problem.text == TASK
    assert left_out["messages that the user took back"] == 2


def test_a_subagent_of_codex_without_the_history_of_its_parent(tmp_path: Path) -> None:
    meta = {"id": "sub", "thread_source": "subagent", "subagent_history_start_ordinal": 2}
    rows = [
        {"timestamp": "t", "ordinal": number, "type": "response_item", "payload": {
            "type": "message", "role": role, "content": [{"type": "text", "text": text}]}}
        for number, role, text in [(1, "user", "theirs"), (2, "user", "mine"), (3, "assistant", "yes")]
    ]  # fmt: skip
    head = {"timestamp": "t", "ordinal": 0, "type": "session_meta", "payload": meta}
    trace = one(write(tmp_path / "r.jsonl", head, *rows))
    assert texts(trace, "user") == ["mine"]
    assert trace.meta["import"]["subagent"] == "sub"


def test_a_rollout_of_codex_before_september_2025(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rollout.jsonl",
        {"id": "old", "timestamp": "2025-06-01T10:00:00Z", "instructions": None, "git": {}},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TASK}]},
        {"type": "function_call", "id": None, "name": "shell", "call_id": "c",
         "arguments": '{"command": ["ls"]}'},
        {"type": "function_call_output", "call_id": "c", "output": {"content": "no", "success": False}},
    )  # fmt: skip
    assert calls(one(path)) == [("shell", True)]


def test_scripts_of_codex_fail_by_their_header_or_by_a_command_that_they_ran(tmp_path: Path) -> None:
    """Since 2026 all tools are called by scripts, and an event without the call's id says how each ended."""

    def script(name: str, header: str, *ends: dict[str, Any], late: bool = False) -> list[dict[str, Any]]:
        output = {"type": "custom_tool_call_output", "call_id": name, "output": [
            {"type": "input_text", "text": f"{header}\nWall time 0.1 seconds\nOutput:\n"},
            {"type": "input_text", "text": "no error"},
        ]}  # fmt: skip
        events = [
            {"type": "event_msg", "payload": {"type": "item_completed", "item": {"id": "e", **end}}}
            for end in ends
        ]
        call = {"type": "custom_tool_call", "call_id": name, "name": "exec", "input": "text(await tools.x())"}
        result = [{"type": "response_item", "payload": output}]
        rows = [*result, *events] if late else [*events, *result]
        return [{"type": "response_item", "payload": call}, *rows]

    right = {"type": "CommandExecution", "status": "completed", "exit_code": 0}
    wrong = {"type": "CommandExecution", "status": "failed", "exit_code": 2}
    declined = {"type": "McpToolCall", "status": "declined"}
    user = {"type": "UserMessage", "content": [{"type": "text", "text": TASK}]}
    path = write(
        tmp_path / "rollout.jsonl",
        {"type": "session_meta", "payload": {"id": "new"}},
        {
            "type": "response_item",
            "payload": {"type": "message", "role": "user", "content": "<environment_context>"},
        },
        {"type": "event_msg", "payload": {"type": "item_completed", "item": user}},
        *script("a", "Script completed", right),
        *script("b", "Script failed"),
        *script("c", "Script completed", wrong, right),
        *script("d", "Script completed", right, wrong, late=True),
        *script("e", "Script completed", declined),
        *script("f", "Script completed"),
    )
    [imported], _ = read(path)
    assert imported.problem is not None
    assert imported.problem.text == TASK
    failed = [failed for _, failed in calls(one(path))]
    assert failed == [False, True, True, True, True, False]


def test_what_gemini_cli_adds_in_the_users_name_is_not_the_task(tmp_path: Path) -> None:
    path = write(
        tmp_path / "session.jsonl",
        {"sessionId": "s", "projectHash": "h"},
        {"id": "1", "type": "user", "content": [{"text": "<session_context>\nA long tree of files"}]},
        {"id": "2", "type": "user", "content": [{"text": TASK}]},
        {"id": "3", "type": "model", "content": [{"text": "It is 4."}], "tokens": {"input": 1}},
        {"id": "4", "type": "user", "content": [{"text": "Thanks"}]},
    )
    [imported], left_out = read(path)
    assert imported.problem is not None
    assert imported.problem.text == TASK
    assert texts(one(path), "assistant") == ["It is 4."]
    assert len(texts(one(path), "user")) == 3
    assert not left_out


def test_a_session_of_gemini_cli(tmp_path: Path) -> None:
    path = DATA / "gemini-cli.jsonl"
    trace = one(path)
    assert calls(trace) == [("read_file", False), ("run_shell_command", True)]
    assert texts(trace, "tool") == ["print(2 + 2", "SyntaxError"]
    assert texts(trace, "assistant") == ["I run it.", "A bracket is missing.", "It shows 4."]
    assert (trace.policy, trace.usage.calls) == ("gemini-test", 3)
    assert [message.attachments[0].kind for message in trace.messages if message.attachments] == ["image"]
    _, left_out = read(path)
    assert left_out == {"messages that the user took back": 2, "messages info": 1}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    messages = [row for row in rows if row.get("id") in ("1", "3", "4")] + [rows[4]]
    old = tmp_path / "session.json"
    old.write_text(json.dumps(rows[0] | {"messages": messages}, indent=2))
    assert calls(one(old)) == calls(trace)


def test_sessions_of_opencode(tmp_path: Path) -> None:
    exported = one(DATA / "opencode.json")
    assert calls(exported) == [("bash", True), ("edit", True), ("bash", None)]
    assert (exported.id, exported.policy, exported.finish_reason) == ("ses_1", "test-model", "stop")
    session = json.loads((DATA / "opencode.json").read_text())
    path = tmp_path / "opencode.db"
    with sqlite3.connect(path) as database:
        database.executescript(
            "CREATE TABLE session (id TEXT, parent_id TEXT, time_created INTEGER);"
            "CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, data TEXT);"
            "CREATE TABLE part (id TEXT, message_id TEXT, session_id TEXT, data TEXT)"
        )
        database.executemany(
            "INSERT INTO session VALUES (?, ?, ?)", [("ses_1", None, 1), ("ses_2", "ses_1", 2)]
        )
        for number, message in enumerate(session["messages"]):
            row = (f"m{number}", "ses_1", number, json.dumps(message["info"]))
            database.execute("INSERT INTO message VALUES (?, ?, ?, ?)", row)
            for place, part in enumerate(message["parts"]):
                row = (f"p{place}", f"m{number}", "ses_1", json.dumps(part))
                database.execute("INSERT INTO part VALUES (?, ?, ?, ?)", row)
    database.close()
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    [stored] = import_traces(path, detect_format(path), context)
    assert stored.trace is not None
    assert stored.trace.messages == exported.messages
    assert context.report.bad_count == 1, "the session without a message"


def test_a_view_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.formats.opencode._LOOKS", 20)
    path = tmp_path / "opencode.db"
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, i AS name FROM n"
    )
    with sqlite3.connect(path) as database:
        for name in ("message", "part"):
            database.execute(f"CREATE TABLE {name} (id, session_id, message_id, time_created, data)")
        database.execute("CREATE TABLE session (id, parent_id, time_created AS (id))")
        database.executemany("INSERT INTO session (id) VALUES (?)", [(number,) for number in range(100_000)])
    database.close()
    with pytest.raises(RecordError, match="not a readable database of OpenCode: interrupted"):
        read(path)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute(f"CREATE VIEW session AS {endless}")
        database.execute("CREATE TABLE message (id)")
        database.execute("CREATE TABLE part (id)")
    database.close()
    with pytest.raises(RecordError, match="not a database of OpenCode 1"):
        read(other)


def test_runs_of_mini_swe_agent(tmp_path: Path) -> None:
    path = DATA / "mini-swe-agent.traj.json"
    trace = one(path)
    assert calls(trace) == [("bash", True), ("bash", None)]
    assert trace.messages[2].tool_calls[0].arguments == '{"command": "python3 sum.py"}'
    assert (trace.problem_id, trace.finish_reason, trace.usage.calls) == ("sums__sum-1", "Submitted", 3)
    run = json.loads(path.read_text())
    code = {"returncode": 2, "raw_output": "SyntaxError", "exception_info": ""}
    answers = {
        "calls": (
            {"role": "assistant", "content": "I run it.", "tool_calls": [
                {"id": "c", "type": "function",
                 "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]},
            {"role": "tool", "tool_call_id": "c", "content": "no", "extra": code},
        ),
        "responses": (
            {"object": "response", "output": [
                {"type": "message", "role": "assistant",
                 "content": [{"type": "output_text", "text": "I run it."}]},
                {"type": "function_call", "call_id": "c", "name": "bash", "arguments": '{"command": "ls"}'}]},
            {"type": "function_call_output", "call_id": "c", "output": "no", "extra": code},
        ),
        "text": (
            {"role": "assistant", "content": "I run it.", "extra": {"actions": [{"command": "ls"}]}},
            {"role": "user", "content": "no", "extra": code},
        ),
    }  # fmt: skip
    for name, pair in answers.items():
        end = {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}}
        version_2 = run | {
            "messages": [*run["messages"][:2], *pair, end],
            "trajectory_format": "mini-swe-agent-1.1",
        }
        file = tmp_path / f"{name}.traj.json"
        file.write_text(json.dumps(version_2))
        trace = one(file)
        assert calls(trace) == [("bash", True)], name
        assert json.loads(trace.messages[2].tool_calls[0].arguments) == {"command": "ls"}
        assert texts(trace, "assistant") == ["I run it."]


def test_atif_in_a_wrapper_with_results_in_the_order_of_the_calls(tmp_path: Path) -> None:
    steps = [
        {"step_id": 1, "source": "user", "message": TASK},
        {"step_id": 2, "source": "agent", "message": "", "reasoning_content": "Run both.",
         "tool_calls": [
             {"tool_name": "bash", "arguments": {"keystrokes": key}} for key in ("ls", "python3 sum.py")],
         "observation": {"results": [
             {"content": json.dumps({"returncode": 0, "output": "sum.py"})},
             {"content": json.dumps({"returncode": 1, "output": "SyntaxError"})},
             {"content": "Your answer was cut off."}]}},
        {"step_id": 3, "source": "agent", "message": "", "reasoning_content": "Run both.",
         "tool_calls": [{"tool_call_id": "c", "function_name": "edit", "arguments": {}}],
         "observation": {"results": [{"source_call_id": "c", "content": "no"}]},
         "extra": {"tool_result_is_error": True}},
    ]  # fmt: skip
    trajectory = {"schema_version": "atif-converted-1.0", "agent": {"name": "mini"}, "steps": steps}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"reward": 1, "task_name": "sums", "trajectory": trajectory}, indent=1))
    [imported], left_out = read(path)
    assert imported.problem is not None
    assert imported.trace is not None
    assert (imported.problem.id, imported.trace.outcome) == ("sums", True)
    assert calls(imported.trace) == [("bash", False), ("bash", True), ("edit", True)]
    assert texts(imported.trace, "user") == [TASK, "Your answer was cut off."]
    assert left_out == {"reasoning that the turn before has, too": 1}
