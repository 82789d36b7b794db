"""One's own traces: every format is known by its content, read whole, and written back with labels."""

from __future__ import annotations

import csv
import json
import random
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from surefoot.cli import app
from surefoot.errors import RecordError
from surefoot.formats import ImportContext, ImportSettings, detect_format, import_traces
from surefoot.io import ReadReport, write_records
from surefoot.records import ToolCall, Trace
from surefoot.segment import segment_trace

DATA = Path(__file__).parents[1] / "data"
AGENT = ["inspect.eval", "genai.jsonl", "genai-otlp.json", "openinference.jsonl", "atif.json"]


def read(path, **settings):
    """Problems and traces, and the context with what was said and skipped."""
    context = ImportContext(settings=ImportSettings(**settings), report=ReadReport(), say=lambda text: None)
    found = list(import_traces(path, detect_format(path, context.settings), context))
    return found, context


def rows(tmp_path, *lines, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", AGENT)
def test_an_agents_run_is_the_same_from_every_log(name):
    """The logs are of one run, written by the libraries of their formats."""
    found, _ = read(DATA / name)
    problem, trace = found[0].problem, found[0].trace
    assert problem.text == "What is 2 + 2?"
    said = [message for message in trace.messages if message.role != "system"]
    assert [message.role for message in said] == ["user", "assistant", "tool", "assistant"]
    [call] = said[1].tool_calls
    assert (call.name, json.loads(call.arguments)) == ("add", {"x": 2, "y": 2})
    assert (said[1].content, said[2].content, said[3].content) == ("Let me add.", "4", "The answer is 4.")
    assert said[2].tool_call_id == call.id
    assert [tool.name for tool in trace.tools] == ["add"]
    kinds = [step.kind for step in segment_trace(trace).steps]
    reasoned = ["reasoning"] if name != "openinference.jsonl" else []
    assert kinds == [*reasoned, "thought", "tool_call", "final_answer"]
    assert trace.usage.completion_tokens > 0


def test_an_inspect_log_has_outcomes_answers_and_images():
    stored = {}

    def keep(content, media_type):
        stored[media_type] = content
        return "kept.png"

    context = ImportContext(settings=ImportSettings(), report=ReadReport(), keep=keep)
    first, second = import_traces(DATA / "inspect.eval", "inspect", context)
    assert (first.problem.id, first.problem.answer, first.trace.outcome) == ("1", "4", True)
    assert (second.problem.id, second.problem.answer, second.trace.outcome) == ("two", "5", False)
    [image] = second.trace.messages[1].attachments
    assert (image.kind, image.uri, image.at) == ("image", "kept.png", len("How many pixels? "))
    assert stored["image/png"].startswith(b"\x89PNG")


def inspect_json(tmp_path):
    """The archived log as one JSON file."""
    from surefoot.formats.inspect_log import _content

    with zipfile.ZipFile(DATA / "inspect.eval") as archive:
        names = [entry for entry in archive.infolist() if entry.filename.startswith("samples/")]
        samples = [json.loads(_content(archive, entry)) for entry in names]
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"version": 2, "eval": {}, "samples": samples}, indent=2))
    return path


def test_an_inspect_log_in_json_reads_like_the_archive(tmp_path):
    path = inspect_json(tmp_path)
    assert detect_format(path) == "inspect"
    archived, _ = read(DATA / "inspect.eval")
    assert [one.trace for one in read(path)[0]] == [one.trace for one in archived]


def test_spans_say_what_reasoning_cost_and_who_wrote_what():
    [one], _ = read(DATA / "genai.jsonl")
    reasoning = one.trace.messages[2].reasoning
    assert (reasoning.text, reasoning.tokens) == ("I should add.", 3)
    [enveloped], _ = read(DATA / "genai-otlp.json")
    assert enveloped.trace.messages == one.trace.messages
    assert enveloped.trace.id == one.trace.id


def test_spans_without_messages_say_what_to_switch_on(tmp_path):
    span = {"context": {"trace_id": "0x1", "span_id": "0x2"}, "attributes": {"gen_ai.operation.name": "chat"}}
    found, context = read(rows(tmp_path, span))
    assert found == []
    assert "none of 1 spans has messages" in context.report.bad[0][1]


def test_two_conversations_of_one_trace_stay_apart(tmp_path):
    def span(number, said, answer):
        messages = [
            json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
            for role, text in (("user", said), ("assistant", answer))
        ]
        attributes = {"gen_ai.input.messages": messages[0], "gen_ai.output.messages": messages[1]}
        context = {"trace_id": "0xab", "span_id": f"0x{number}"}
        return {"context": context, "start_time": f"2026-01-01T00:00:0{number}Z", "attributes": attributes}

    found, _ = read(rows(tmp_path, span(1, "What?", "That."), span(2, "Who?", "She.")))
    assert [(one.problem.text, one.trace.id) for one in found] == [("What?", "ab-0"), ("Who?", "ab-1")]


def test_empty_reasoning_of_a_saved_response_is_withheld_whether_or_not_it_was_billed(tmp_path):
    answer = {"type": "message", "content": [{"type": "output_text", "text": "It is 4."}]}
    response = {"object": "response", "model": "o", "status": "completed", "usage": {}}
    hidden = response | {"output": [{"type": "reasoning", "summary": []}, answer]}
    (first, second), _ = read(rows(tmp_path, hidden, response | {"output": [answer]}))
    [message] = first.trace.messages
    assert (message.reasoning.visibility, message.reasoning.tokens) == ("withheld", None)
    assert message.content == "It is 4."
    assert second.trace.messages[0].reasoning is None


def test_batches_have_withheld_reasoning_and_failures(tmp_path):
    body = {
        "object": "chat.completion",
        "model": "m",
        "choices": [{"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 40}},
    }
    response = {
        "object": "response",
        "model": "o",
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Adding."}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"x": 2}'},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
            {"type": "message", "content": [{"type": "output_text", "text": "It is 4."}]},
        ],
        "usage": {"output_tokens_details": {"reasoning_tokens": 7}},
    }
    output = rows(
        tmp_path,
        {"custom_id": "a", "response": {"status_code": 200, "body": body}, "error": None},
        {"custom_id": "b", "response": {"status_code": 200, "body": response}},
        {"custom_id": "c", "response": None, "error": {"message": "too long"}},
    )
    asked = {"messages": [{"role": "user", "content": "2 + 2?"}]}
    requests = rows(
        tmp_path,
        {"custom_id": "a", "body": asked},
        {"custom_id": "b", "body": {"input": "2 + 2?", "instructions": "Be brief."}},
        name="requests.jsonl",
    )
    (first, second), context = read(output, requests=str(requests))
    assert context.report.bad == [(3, "the request failed: too long")]
    assert (first.problem.id, first.problem.text) == ("a", "2 + 2?")
    hidden = first.trace.messages[1].reasoning
    assert (hidden.visibility, hidden.tokens, hidden.text) == ("withheld", 40, "")
    roles = [message.role for message in second.trace.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    shown = second.trace.messages[2]
    assert (shown.reasoning.text, shown.reasoning.visibility, shown.reasoning.tokens) == (
        "Adding.",
        "summarised",
        7,
    )
    assert shown.tool_calls == (ToolCall(id="c", name="add", arguments='{"x": 2}'),)
    without, _ = read(output)
    assert [one.problem for one in without] == [None, None]
    assert [one.trace.problem_id for one in without] == ["a", "b"]


PLAIN = [
    {
        "id": 7,
        "question": "What is 2 + 2?",
        "response": "2 + 2 = 4",
        "gold": 4,
        "correct": True,
        "model": "m",
    },
    {
        "id": 8,
        "question": "What is 2 + 3?",
        "response": "2 + 3 = 6",
        "gold": 5,
        "correct": False,
        "model": "m",
    },
]


def test_the_same_rows_in_every_kind_of_file(tmp_path):
    datasets = pytest.importorskip("datasets")
    lines = rows(tmp_path, *PLAIN)
    (tmp_path / "array.json").write_text(json.dumps(PLAIN, indent=1))
    pq.write_table(pa.Table.from_pylist(PLAIN), tmp_path / "rows.parquet")
    with (tmp_path / "rows.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, PLAIN[0])
        writer.writeheader()
        writer.writerows(PLAIN)
    datasets.Dataset.from_list(PLAIN).save_to_disk(str(tmp_path / "set"))
    expected, _ = read(lines)
    assert [(one.problem.text, one.problem.answer, one.trace.text) for one in expected] == [
        ("What is 2 + 2?", "4", "2 + 2 = 4"),
        ("What is 2 + 3?", "5", "2 + 3 = 6"),
    ]
    assert [(one.trace.id, one.trace.outcome, one.trace.policy) for one in expected] == [
        ("7", True, "m"),
        ("8", False, "m"),
    ]
    for name in ("array.json", "rows.parquet", "rows.csv", "set"):
        found, _ = read(tmp_path / name)
        assert [one.problem for one in found] == [one.problem for one in expected], name
        for one, same in zip(found, expected, strict=True):
            assert one.trace.model_copy(update={"meta": {}}) == same.trace.model_copy(update={"meta": {}}), (
                name
            )


def test_columns_are_named_or_guessed_and_the_guess_is_said(tmp_path):
    path = rows(tmp_path, {"q": {"en": "What?"}, "reply": "That.", "text": "no"})
    said = []
    settings = ImportSettings(text_field="reply", problem_field="q.en")
    context = ImportContext(settings=settings, report=ReadReport(), say=said.append)
    [one] = import_traces(path, "rows", context)
    assert (one.problem.text, one.trace.text) == ("What?", "That.")
    assert said == ["columns: text = reply, problem = q.en"]
    _, wrong = read(path, text_field="answers")
    assert "--text-field answers: the column does not exist; there are q, reply" in wrong.report.bad[0][1]
    _, none = read(rows(tmp_path, {"a": "x", "b": "y"}))
    assert (
        none.report.bad[0][1]
        == "no solution: name its column with --text-field or --messages-field; the columns are 'a', 'b'"
    )


def test_messages_samples_steps_and_problems_alone(tmp_path):
    asked, said = {"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}
    [chat], _ = read(rows(tmp_path, {"messages": [asked, said], "answer": 7}))
    assert (chat.problem.text, chat.problem.answer, chat.trace.messages[1].content) == ("What?", "7", "That.")
    [trl], _ = read(rows(tmp_path, {"prompt": [asked], "completion": [said]}))
    assert trl.trace.messages == chat.trace.messages
    share = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "That."}]
    [shared], _ = read(rows(tmp_path, {"conversations": share}))
    assert shared.trace.messages == chat.trace.messages
    several, _ = read(rows(tmp_path, {"id": "x", "problem": "What?", "responses": ["a", "b"]}))
    assert [(one.trace.id, one.trace.sample, one.trace.text) for one in several] == [
        ("x-0", 0, "a"),
        ("x-1", 1, "b"),
    ]
    [stepped], _ = read(rows(tmp_path, {"problem": "What?", "steps": ["one", "two"]}))
    assert [stepped.trace.step_text(0), stepped.trace.step_text(1)] == ["one\n\n", "two"]
    [alone], _ = read(rows(tmp_path, {"question": "What?", "answer": 7}))
    assert (alone.trace, alone.problem.answer) == (None, "7")
    twice, _ = read(
        rows(tmp_path, {"problem": "What?", "response": "a"}, {"problem": "What?", "response": "a"})
    )
    assert len({one.trace.id for one in twice}) == 2


def test_a_column_that_the_first_row_leaves_empty_is_known_from_the_next(tmp_path):
    first, second = {"Problem": "p1", "Response": "a"}, {"Problem": "p2", "Response": "b", "Answer": 3}
    for path in (rows(tmp_path, first, second), tmp_path / "rows.csv"):
        if path.suffix == ".csv":
            path.write_text("Problem,Response,Answer\np1,a,\np2,b,3\n")
        found, _ = read(path, text_field="Response")
        assert [one.problem.answer for one in found] == [None, "3"], path
    empty = tmp_path / "empty-first.csv"
    empty.write_text("q,reply\np1,\np2,b\n")
    found, context = read(empty, text_field="reply", problem_field="q")
    assert [one.trace.text for one in found] == ["b"]
    assert context.report.bad == [(2, "no solution: column 'reply' is empty; name another with --text-field")]


def test_every_sample_of_a_row_counts_the_empty_ones_too(tmp_path):
    """An empty completion is a sample that failed; without it pass@N would be too high."""
    line = {"problem": "p", "responses": ["4", "", None], "correct": [True, False, False]}
    found, _ = read(rows(tmp_path, line))
    assert [(one.trace.text, one.trace.outcome, one.trace.error is None) for one in found] == [
        ("4", True, True),
        ("", False, True),
        ("", False, False),
    ]


@pytest.mark.parametrize(("name", "ending"), [("completion", ""), ("response", " \n")])
def test_an_empty_completion_is_a_wrong_sample(tmp_path, name, ending):
    lines = [{"prompt": "Write f.", name: text} for text in ("x = 1", ending)]
    found, context = read(rows(tmp_path, *lines))
    assert [(one.trace.text, one.trace.outcome) for one in found] == [("x = 1", None), (ending, False)]
    assert context.report.bad_count == 0


def test_solutions_inside_objects_are_reached_by_a_name_with_dots(tmp_path):
    line = {"problem": "p", "candidates": [{"text": "a", "score": 1}, {"text": "b", "score": 2}]}
    found, _ = read(rows(tmp_path, line), text_field="candidates.text")
    assert [one.trace.text for one in found] == ["a", "b"]
    _, context = read(rows(tmp_path, line), text_field="candidates")
    assert context.report.bad[0][1].endswith("name one of these, as --text-field candidates.text")


def test_an_object_is_no_reference_answer(tmp_path):
    """Compared as its JSON text, it would make every answer wrong."""
    line = {"problem": "p", "response": "Paris", "ground_truth": {"target": ["Paris"]}}
    found, _ = read(rows(tmp_path, line))
    assert found[0].problem.answer is None
    found, _ = read(rows(tmp_path, line), answer_field="ground_truth.target")
    assert found[0].problem.answer == "Paris"


def test_the_one_column_of_messages_is_found_whatever_its_name(tmp_path):
    chat = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    found, _ = read(rows(tmp_path, {"task_id": 0, "traj": chat}))
    assert [message.content for message in found[0].trace.messages] == ["2+2?", "4"]


def test_what_a_tool_says_of_its_failure_is_kept(tmp_path):
    """AgentDojo and SHADE-Arena give words, LangChain a status, Anthropic blocks with a flag."""
    chat = [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": f"c{i}", "name": "look", "input": {}} for i in range(4)],
        },
        {"role": "tool", "tool_call_id": "c0", "content": None, "error": "ValueError: nothing there"},
        {"role": "tool", "tool_call_id": "c1", "content": "no", "status": "error"},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c2", "content": "bad", "is_error": True},
                {"type": "tool_result", "tool_use_id": "c3", "content": [{"type": "text", "text": "ok"}]},
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "assistant", "content": "Done."},
    ]
    found, _ = read(rows(tmp_path, {"messages": chat}))
    said = found[0].trace.messages[2:]
    assert [(one.role, one.tool_call_id, one.content, one.error) for one in said] == [
        ("tool", "c0", "ValueError: nothing there", True),
        ("tool", "c1", "no", True),
        ("tool", "c2", "bad", True),
        ("tool", "c3", "ok", None),
        ("user", None, "Go on.", None),
        ("assistant", None, "Done.", None),
    ]


def test_a_chat_in_which_no_assistant_speaks_is_refused(tmp_path):
    found, context = read(rows(tmp_path, {"messages": [{"role": "user", "content": "What?"}]}))
    assert found == []
    assert context.report.bad[0][1] == "no message is from the assistant (roles: user)"


def test_files_that_are_none(tmp_path):
    with pytest.raises(RecordError, match="file not found"):
        detect_format(tmp_path / "no.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(RecordError, match="empty"):
        detect_format(tmp_path / "empty.jsonl")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(RecordError, match="not an Inspect log"):
        detect_format(tmp_path / "x.zip")
    (tmp_path / "cut.eval").write_bytes((DATA / "inspect.eval").read_bytes()[:500])
    with pytest.raises(RecordError, match="not a zip archive"):
        detect_format(tmp_path / "cut.eval")
    (tmp_path / "latin.csv").write_bytes("frage,antwort\nWo?,D\xe4\n".encode("latin-1"))
    with pytest.raises(RecordError, match=r"latin\.csv: not a readable table"):
        detect_format(tmp_path / "latin.csv")
    (tmp_path / "cut.json").write_text('{"a": [1,\n')
    with pytest.raises(RecordError, match="neither JSON Lines"):
        detect_format(tmp_path / "cut.json")


JUNK = [None, 1, -1.5, "x", [], {}, [1], [None], {"a": 1}, True, "[{", "{}"]


def spoilt(value, chance):
    """The value with some of its parts replaced or taken away."""
    if chance.random() < 0.04:
        return chance.choice(JUNK)
    if isinstance(value, dict):
        return {key: spoilt(one, chance) for key, one in value.items() if chance.random() > 0.02}
    return [spoilt(one, chance) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("genai.jsonl", "otel"),
        ("genai-otlp.json", "otel"),
        ("openinference.jsonl", "otel"),
        ("atif.json", "atif"),
    ],
)
def test_spoilt_files_are_counted_and_never_crash(name, form, tmp_path):
    chance = random.Random(0)
    text = (DATA / name).read_text()
    parts = [text] if name.endswith(".json") else text.splitlines()
    refused = 0
    for _ in range(60):
        path = rows(tmp_path, *(spoilt(json.loads(part), chance) for part in parts))
        context = ImportContext(settings=ImportSettings(), report=ReadReport())
        list(import_traces(path, form, context))
        refused += context.report.bad_count
    assert refused


def test_records_need_no_import(tmp_path):
    path = tmp_path / "traces.jsonl"
    write_records(path, [Trace(problem_id="p", text="a")])
    with pytest.raises(RecordError, match="already holds records of this package"):
        read(path)


def test_one_broken_log_of_several_is_named_and_the_others_are_read(tmp_path):
    whole = (DATA / "inspect.eval").read_bytes()
    for name, content in (("a.eval", whole[:500]), ("b.eval", whole), ("c.eval", whole[:-200])):
        (tmp_path / name).write_bytes(content)
    command = ["import", str(tmp_path / "*.eval"), "--out", str(tmp_path / "mine")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, "something was read"
    _, _, listed = result.stderr.partition("files that could not be read: 2\n")
    names, _, reason = listed.partition(": ")
    assert [Path(name).name for name in names.split(", ")] == ["a.eval", "c.eval"]
    assert "not a zip archive" in reason
    assert len((tmp_path / "mine" / "traces.jsonl").read_text().splitlines()) == 2
    (tmp_path / "b.eval").unlink()
    with pytest.raises(RecordError, match=r"c\.eval"):
        read(str(tmp_path / "*.eval"))


def as_phoenix(spans):
    """A page in the schema of Phoenix's client (``SpansResponseBody`` of arize-phoenix-client 3.5)."""
    fields = ("name", "context", "parent_id", "start_time", "end_time", "attributes", "events")
    rows = [{name: span[name] for name in fields if name in span} for span in spans]
    return {"data": [row | {"span_kind": "LLM", "status_code": "OK"} for row in rows], "next_cursor": None}


@pytest.mark.parametrize("name", ["langfuse.jsonl", "langsmith.jsonl", "phoenix.json"])
def test_exports_of_observability_platforms_are_read_as_runs(tmp_path, name):
    """Langfuse's rows were written by the classes of langfuse 5.0, LangSmith's by LangChain's tracer and
    langsmith 0.15."""
    if name == "phoenix.json":
        spans = [json.loads(line) for line in (DATA / "openinference.jsonl").read_text().splitlines()]
        path = tmp_path / name
        path.write_text(json.dumps(as_phoenix(spans)))
    else:
        path = DATA / name
    [one], context = read(path)
    assert context.report.bad_count == 0
    assert one.problem.text == "What is 2 + 2?"
    said = [message for message in one.trace.messages if message.role != "system"]
    assert [message.role for message in said] == ["user", "assistant", "tool", "assistant"]
    [call] = said[1].tool_calls
    assert (call.name, json.loads(call.arguments)) == ("add", {"x": 2, "y": 2})
    assert [message.content for message in said[1:]] == ["Let me add.", "4", "The answer is 4."]
    assert said[2].tool_call_id == call.id
    assert [step.kind for step in segment_trace(one.trace).steps] == ["thought", "tool_call", "final_answer"]
    if name == "langfuse.jsonl":
        assert (one.trace.policy, one.trace.usage.completion_tokens, len(one.trace.tools)) == ("gpt-x", 11, 1)


def test_observations_of_other_servers_are_read(tmp_path):
    """Items of OpenAI's Responses API, Anthropic's blocks, and Gemini's contents, as Langfuse stores them."""
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"x": 2}'}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Adding."}]}
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me add."}],
    }
    blocks = [
        {"type": "thinking", "thinking": "Adding."},
        {"type": "text", "text": "Let me add."},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {"x": 2}},
    ]
    parts = [
        {"text": "Adding.", "thought": True},
        {"text": "Let me add."},
        {"functionCall": {"id": "c1", "name": "add", "args": {"x": 2}}},
    ]
    outputs = [
        ("What is 2 + 2?", [thought, said, call]),
        ([{"role": "user", "content": "What is 2 + 2?"}], {"role": "assistant", "content": blocks}),
        (
            {"contents": [{"role": "user", "parts": [{"text": "What is 2 + 2?"}]}]},
            {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]},
        ),
    ]
    for asked, answer in outputs:
        row = {"id": "o", "traceId": "t", "type": "GENERATION", "input": asked, "output": answer}
        [one], _ = read(rows(tmp_path, row))
        user, message = one.trace.messages
        assert (user.content, message.content, message.reasoning.text) == (
            "What is 2 + 2?",
            "Let me add.",
            "Adding.",
        )
        assert [(each.id, each.name, each.arguments) for each in message.tool_calls] == [
            ("c1", "add", '{"x": 2}')
        ]


def test_times_without_an_offset_are_utc(tmp_path, monkeypatch):
    rows_of_two = []
    for number, start in enumerate(["2026-07-08T10:00:00", "2026-07-08T10:10:00+00:00"]):
        said = [{"role": "user", "content": "Plan."}, {"role": "assistant", "content": "Which day?"}]
        asked = [said[0], *([said[1], {"role": "user", "content": "Monday."}] if number else [])]
        answer = {"role": "assistant", "content": "Take the train." if number else "Which day?"}
        run = {"id": f"r{number}", "trace_id": "t", "run_type": "llm", "start_time": start}
        rows_of_two.append(run | {"inputs": {"messages": asked}, "outputs": answer})
    for zone in ("UTC", "America/New_York", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        found, _ = read(rows(tmp_path, *rows_of_two))
        assert [len(one.trace.messages) for one in found] == [4]
    monkeypatch.undo()
    time.tzset()


def test_messages_that_were_cut_are_refused(tmp_path):
    cut = '[{"role": "user", "content": "Cancel order 8812."}, {"role": "assistant", "tool_ca'
    row = {
        "id": "o",
        "traceId": "t",
        "type": "GENERATION",
        "output": {"role": "assistant", "content": "Done."},
    }
    found, context = read(
        rows(tmp_path, row | {"input": cut}, row | {"traceId": "u", "input": '{"a": [1, 2'})
    )
    assert [one.problem.text for one in found] == ['{"a": [1, 2']
    assert "were cut" in context.report.bad[0][1]


def test_a_sample_that_ended_with_an_error_is_a_failed_one(tmp_path):
    samples = [
        {"id": 1, "messages": [{"role": "user", "content": "2+3?"}], "error": {"message": "RateLimitError"}},
        {"id": 2, "messages": [{"role": "user", "content": "2+3?"}]},
    ]
    found, context = read(rows(tmp_path, {"eval": {}, "samples": samples}, name="log.json"))
    assert [(one.trace.outcome, one.trace.error) for one in found] == [(False, "RateLimitError")]
    assert "no message is from the assistant" in context.report.bad[0][1]


def test_exports_in_pages_and_trees_and_with_failed_calls(tmp_path):
    observations = [json.loads(line) for line in (DATA / "langfuse.jsonl").read_text().splitlines()]
    observations[-1] |= {"level": "ERROR", "statusMessage": "time-out"}
    traces = [
        [one] for one in ({"data": observations, "meta": {}}, {"id": "t1", "observations": observations})
    ]
    for number, rows_of_file in enumerate(traces):
        [one], _ = read(rows(tmp_path, *rows_of_file, name=f"{number}.jsonl"))
        assert (one.trace.error, len(one.trace.messages)) == ("time-out", 4)
    root, *runs = [json.loads(line) for line in (DATA / "langsmith.jsonl").read_text().splitlines()]
    [one], _ = read(rows(tmp_path, root | {"child_runs": runs[:2]}, name="tree.jsonl"))
    assert [message.role for message in one.trace.messages] == ["user", "assistant", "tool"]
    completion = {"choices": [{"message": {"role": "assistant", "content": "4"}}], "usage": {}}
    run = {
        "id": "a",
        "trace_id": "b",
        "run_type": "llm",
        "inputs": {"messages": [{"role": "user", "content": "2+2?"}]},
    }
    [one], _ = read(rows(tmp_path, run | {"outputs": json.dumps(completion)}, name="openai.jsonl"))
    assert [message.content for message in one.trace.messages] == ["2+2?", "4"]
