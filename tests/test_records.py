"""Records: frozen, versioned, validated, and known by the hash of their content."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from surefoot.io import ReadReport, read_records
from surefoot.records import (
    Evidence,
    Message,
    Problem,
    Reasoning,
    Step,
    StepLabel,
    StepScores,
    ToolCall,
    Trace,
    Usage,
    content_id,
    content_id_of,
    now,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
RUN = (
    Message(role="user", content="What is 2 + 2?"),
    Message(role="assistant", tool_calls=(ToolCall(id="c1", name="add", arguments='{"a": 2, "b": 2}'),)),
    Message(role="tool", content="4", tool_call_id="c1"),
    Message(role="assistant", content="It is 4."),
)


def label(**fields):
    return StepLabel(**({"trace_id": "t", "step": 0, "kind": "value", "value": 0.5, "source": "s"} | fields))


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (Problem(text="p"), "text"),
        (Trace(problem_id="p", text="t"), "text"),
        (label(), "value"),
        (StepScores(trace_id="t", scorer="s", scores=(0.5,)), "scores"),
    ],
)
def test_records_are_versioned_frozen_and_closed(record, field):
    assert record.model_dump()["schema_version"] == 2
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, field, getattr(record, field))
    with pytest.raises(ValidationError, match="extra"):
        type(record).model_validate(record.model_dump() | {"surprise": 1})
    for other in (1, 3):
        with pytest.raises(ValidationError, match="schema_version"):
            type(record).model_validate(record.model_dump() | {"schema_version": other})


def test_a_problem_is_known_by_its_text_and_answer():
    first = Problem(text="2 + 2", answer="4", source="one", meta={"level": 1})
    assert first.id == Problem(text="2 + 2", answer="4", source="two").id
    assert first.id != Problem(text="2 + 2", answer="5").id != Problem(text="2 + 2").id
    assert Problem(id="mine", text="2 + 2").id == "mine"
    with pytest.raises(ValidationError, match="text"):
        Problem(text="")


def test_a_trace_is_known_by_where_it_comes_from_and_what_it_says():
    fields = {"problem_id": "p", "policy": "m", "seed": 1, "sample": 0, "text": "one two"}
    same = Trace(**fields)
    assert same.id == Trace(**fields, steps=(Step(start=0, end=7),), outcome=True).id
    changes = ({"problem_id": "q"}, {"policy": "n"}, {"seed": 2}, {"sample": 1}, {"text": "one"})
    ids = [Trace(**(fields | change)).id for change in changes]
    assert len({same.id, *ids}) == 6
    assert Trace.model_validate_json(same.model_dump_json()) == same


def test_ids_do_not_run_parts_together():
    assert content_id("ab", "c") != content_id("a", "bc")
    for parts in ((), (1,), ("ab", {"c": "é\ud800"}, Problem(text="p"))):
        assert content_id_of(iter(parts)) == content_id(*parts)
    assert content_id(1) != content_id("1")
    assert len(content_id("\ud800")) == 16  # half a surrogate pair, as broken JSON can hold


def test_the_id_of_a_chat_trace_sees_the_tool_calls():
    other = (RUN[0], RUN[1].model_copy(update={"tool_calls": ()}), *RUN[2:])
    assert Trace(problem_id="p", messages=RUN).id != Trace(problem_id="p", messages=other).id


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([(0, 8)], r"steps\[0\] spans \[0, 8\) outside"),
        ([(3, 2)], r"steps\[0\] spans"),
        ([(0, 4), (3, 7)], r"steps\[1\] starts at 3, inside the step before"),
        ([(4, 7), (0, 4)], r"steps\[1\] starts at 0"),
        ([(0, 4, 0)], r"steps\[0\].message must be set for 'messages' and absent for 'text'"),
        ([(-1, 4)], "greater than or equal to 0"),
    ],
)
def test_broken_spans_of_a_text_are_refused(steps, message):
    made = [dict(zip(("start", "end", "message"), step, strict=False)) for step in steps]
    with pytest.raises(ValidationError, match=message):
        Trace.model_validate({"problem_id": "p", "text": "one two", "steps": made})


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([(0, 2, None)], r"steps\[0\].message must be set"),
        ([(0, 2, 4)], r"message=4, but there are 4 messages"),
        ([(0, 9, 3)], r"outside its text"),
        ([(0, 1, 1)], r"outside its text"),  # a message of tool calls alone has no text
        ([(0, 8, 3), (0, 1, 2)], r"steps\[1\] goes back to message 2"),
        ([(0, 2, -1)], "greater than or equal to 0"),
    ],
)
def test_broken_spans_of_a_chat_are_refused(steps, message):
    made = [{"start": start, "end": end, "message": where} for start, end, where in steps]
    with pytest.raises(ValidationError, match=message):
        Trace.model_validate({"problem_id": "p", "messages": RUN, "steps": made})


@pytest.mark.parametrize("content", [{}, {"text": "a", "messages": RUN}])
def test_a_trace_is_text_or_messages(content):
    with pytest.raises(ValidationError, match="not both and not neither"):
        Trace(problem_id="p", **content)


def test_step_texts_and_prefixes_of_a_text():
    trace = Trace(problem_id="p", text=" one\ntwo\n.", steps=(Step(start=1, end=5), Step(start=5, end=9)))
    assert [trace.step_text(index) for index in range(2)] == ["one\n", "two\n"]
    assert [trace.prefix(count) for count in range(3)] == [" ", " one\n", " one\ntwo\n"]
    assert Trace(problem_id="p", text="").prefix(0) == ""


def test_a_chat_trace_with_tool_calls_round_trips():
    steps = (
        Step(start=0, end=0, message=1),
        Step(start=0, end=2, message=3),
        Step(start=2, end=8, message=3),
    )
    trace = Trace(problem_id="p", messages=RUN, steps=steps)
    assert [trace.step_text(index) for index in range(3)] == ["", "It", " is 4."]
    assert Trace.model_validate_json(trace.model_dump_json()) == trace
    assert json.loads(trace.messages[1].tool_calls[0].arguments) == {"a": 2, "b": 2}
    with pytest.raises(ValueError, match="lack a text prefix"):
        trace.prefix(1)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("correctness", (-1, 0, 1), (0.5, 2, float("nan"))),
        ("value", (0, 0.3, 1), (-0.1, 1.1, float("nan"))),
        ("advantage", (-1, -0.2, 1), (-1.1, 1.1, float("inf"))),
    ],
)
def test_a_label_lies_in_the_range_of_its_kind(kind, good, bad):
    for value in good:
        assert label(kind=kind, value=value).value == value
    for value in bad:
        with pytest.raises(ValidationError, match=r"label|finite"):
            label(kind=kind, value=value)


def test_an_unknown_label_or_score_says_why():
    assert label(value=None, reason="the server was down").value is None
    for reason in (None, ""):
        with pytest.raises(ValidationError, match="needs a 'reason'"):
            label(value=None, reason=reason)
    assert StepScores(trace_id="t", scorer="s", scores=(None, 0.0), unscored_reason="too long").scores[1] == 0
    of_another_program = StepScores.model_validate_json('{"trace_id":"t","scorer":"s","scores":[0.5,null]}')
    assert of_another_program.unscored_reason == "no reason given"


@settings(deadline=None)
@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_meta_is_a_json_string_on_the_wire_and_a_mapping_inside(meta):
    problem = Problem(text="p", meta=meta)
    line = problem.model_dump_json()
    assert json.loads(json.loads(line)["meta"]) == meta
    assert problem.model_dump()["meta"] == meta
    assert Problem.model_validate_json(line) == problem
    with pytest.raises(ValidationError, match="meta"):
        Problem(text="p", meta="not JSON")


COUNTS = st.builds(Usage, **{name: st.integers(0, 10**9) for name in Usage.model_fields})


@settings(deadline=None)
@given(COUNTS, COUNTS)
def test_usage_adds_field_by_field(first, second):
    total = (first + second).model_dump()
    assert total == {name: getattr(first, name) + getattr(second, name) for name in Usage.model_fields}
    assert first + Usage() == first


def test_source_date_epoch_fixes_the_time(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    assert now() == datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)
    assert label().created == now()
    assert (
        label(evidence=Evidence(successes=1, trials=2)).model_dump_json()
        == label(evidence=Evidence(successes=1, trials=2)).model_dump_json()
    )
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert abs((datetime.now(UTC) - now()).total_seconds()) < 10
    assert now().microsecond == 0


@pytest.mark.parametrize(("number", "text"), [("7", "7"), ("-0.5", "-0.5"), ("true", "true")])
def test_an_answer_that_is_a_number_is_its_text(number, text):
    assert Problem.model_validate_json(f'{{"text": "q", "answer": {number}}}').answer == text
    row = f'{{"problem_id": "p", "text": "t", "answer": {number}}}'
    assert Trace.model_validate_json(row).answer == text
    assert Problem(text="q", answer=7).id == Problem(text="q", answer="7").id


def test_ids_of_chat_traces_hash_four_fields_of_plain_messages():
    parts = [{"role": m.role, "content": m.content} for m in RUN]
    for part, m in zip(parts, RUN, strict=True):
        part["tool_calls"] = [call.model_dump() for call in m.tool_calls]
        part["tool_call_id"] = m.tool_call_id
    assert Trace(problem_id="p", messages=RUN).id == content_id("trace", "p", None, None, 0, parts)
    thinking = (RUN[0], RUN[1].model_copy(update={"reasoning": Reasoning(text="hm")}), *RUN[2:])
    assert Trace(problem_id="p", messages=thinking).id != Trace(problem_id="p", messages=RUN).id


THOUGHT = Message(
    role="assistant",
    content="I add.",
    reasoning=Reasoning(text="2 and 2."),
    tool_calls=(ToolCall(id="a", name="add", arguments='{"a": 2}'), ToolCall(id="b", name="add")),
)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"part": "reasoning", "end": 9}], "outside its text"),
        ([{"part": "tool_call", "end": 2}], r"steps\[0\].call must be set"),
        ([{"part": "tool_call", "call": 2, "end": 2}], "call=2, but message 0 has 2 calls"),
        ([{"call": 0, "end": 2}], r"steps\[0\].call must be set"),
        ([{"end": 6}, {"part": "reasoning", "end": 2}], "goes back to the reasoning of message 0"),
        ([{"part": "tool_call", "call": 1, "end": 2}, {"part": "tool_call", "call": 0, "end": 2}], "call 0"),
        ([{"part": "message", "end": 6}, {"start": 0, "end": 6}], "inside the step before"),
        (
            [{"part": "message", "end": 6}, {"part": "tool_call", "call": 0, "end": 2}],
            "inside the step before",
        ),
    ],
)
def test_broken_spans_of_parts_are_refused(steps, message):
    made = [{"start": 0, "message": 0, **step} for step in steps]
    with pytest.raises(ValidationError, match=message):
        Trace.model_validate({"problem_id": "p", "messages": [THOUGHT], "steps": made})


def test_a_step_says_what_it_is_a_part_of():
    steps = (
        Step(start=0, end=5, message=0, part="reasoning"),
        Step(start=5, end=8, message=0, part="reasoning"),
        Step(start=2, end=6, message=0),
        Step(start=0, end=8, message=0, part="tool_call", call=0),
        Step(start=0, end=2, message=0, part="tool_call", call=1),
    )
    trace = Trace(problem_id="p", messages=(THOUGHT,), steps=steps)
    said = [trace.step_text(index) for index in range(5)]
    assert said == ["2 and", " 2.", "add.", 'add({"a": 2})', "add({})"]
    assert [len(trace.calls_of(index)) for index in range(5)] == [0, 0, 0, 1, 1]
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


def test_reasoning_is_what_the_provider_shows():
    assert Message(role="assistant", reasoning=Reasoning(text="a")).readable_reasoning == "a"
    hidden = Reasoning(text="gAAAA", visibility="encrypted")
    assert Message(role="assistant", reasoning=hidden).readable_reasoning == ""
    with pytest.raises(ValidationError, match="withheld reasoning has no 'text'"):
        Reasoning(text="a", visibility="withheld")
    with pytest.raises(ValidationError, match="each message has its own"):
        Trace(problem_id="p", messages=RUN, reasoning=Reasoning(tokens=3, visibility="withheld"))
    assert str(Reasoning(visibility="withheld", tokens=40)) == "reasoning (withheld, 40 tokens)"


def test_messages_in_openais_own_shape_are_records():
    image_part = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    call_of = {"name": "look", "arguments": '{"x": 1}'}
    rows = [
        {"role": "user", "content": [{"type": "text", "text": "What is "}, image_part, "?"]},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "reasoning_content": "Let me look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": call_of}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]
    trace = Trace.model_validate_json(json.dumps({"problem_id": "p", "messages": rows}))
    question, call, result = trace.messages
    assert question.content == "What is ?"
    [image] = question.attachments
    assert (image.kind, image.uri, image.at) == ("image", "http://x/y.png", 8)
    assert call.tool_calls == (ToolCall(id="c1", name="look", arguments='{"x": 1}'),)
    assert call.reasoning == Reasoning(text="Let me look.")
    assert (result.role, result.tool_call_id) == ("tool", "c1")
    assert Trace.model_validate_json(trace.model_dump_json()) == trace
    with pytest.raises(ValidationError, match="odd"):
        Message.model_validate({"role": "user", "content": "a", "odd": 1})
    for wrong in ({"role": ["user"]}, {"role": "user", "content": [3]}, {"role": "user", "tool_calls": 3}):
        with pytest.raises(ValidationError):
            Message.model_validate(wrong)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf"), True])
def test_a_score_is_a_finite_number(score):
    with pytest.raises(ValueError, match=r"scores\.1"):
        StepScores(trace_id="t", scorer="s", scores=(0.5, score))


@pytest.mark.parametrize("text", ["1e999", "NaN", "-Infinity", "true"])
def test_a_score_in_a_file_is_a_finite_number_and_the_field_is_named(text, tmp_path):
    path = tmp_path / "scores.jsonl"
    good = '{"trace_id": "t", "scorer": "s", "scores": [0.5, 0.5]}\n'
    path.write_text(good + good.replace("0.5]", f"{text}]"))
    report = ReadReport()
    assert len(list(read_records(path, StepScores, report=report))) == 1
    [(line, reason)] = report.bad
    assert line == 2
    assert "scores.1" in reason


@pytest.mark.parametrize("text", ["1e999", "NaN"])
def test_a_label_and_free_form_data_hold_finite_numbers(text):
    label = f'{{"trace_id": "t", "step": 0, "kind": "advantage", "value": {text}, "source": "s"}}'
    with pytest.raises(ValueError, match="value"):
        StepLabel.model_validate_json(label)
    with pytest.raises(ValueError, match="meta"):
        Problem.model_validate_json(f'{{"text": "p", "meta": {{"depth": {text}}}}}')
    with pytest.raises(ValueError, match="meta"):
        Problem.model_validate_json(json.dumps({"text": "p", "meta": f'{{"depth": {text}}}'}))


def test_scores_of_a_model_that_are_not_finite_are_missing_and_counted():
    made = StepScores.of_model(trace_id="t", scorer="s", scores=[0.5, math.nan, None, math.inf])
    assert made.scores == (0.5, None, None, None)
    assert made.unscored_reason == "2 of 4 scores were not finite (NaN or infinity)"
    both = StepScores.of_model(trace_id="t", scorer="s", scores=[math.nan], unscored_reason="cut off")
    assert both.unscored_reason.startswith("cut off; 1 of 1")


@given(st.lists(JSON_VALUES, max_size=4))
@example(["\ud800"])
@example([{"a": "\ud800"}, 1e16])
@example([{"1": 1}, "\u2028\x7f\x1f"])
@example([{1: 1}, None])
def test_content_id_hashes_the_json_of_any_parts(parts):
    expected = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    assert content_id(*parts) == hashlib.blake2b(expected, digest_size=8).hexdigest()
