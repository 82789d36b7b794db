"""Generated rows and traces with odd texts: readers lose no label; writers restore rows or count losses."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.formats import FORMATS, WriteReport, read_source, write_labelled
from surefoot.formats.math_shepherd import TAG
from surefoot.formats.rows import joined_trace, step_parts
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace

ODD = ["", "\n", "\n\n", " ", "+", "-", TAG, f" {TAG}\n", "Step 1: ", "Step 2: x", "a\nStep 2: b", "Step 1:"]
ODD += [
    "# Answer\n\n3",
    "The answer is: 4",
    " lead",
    "trail ",
    "é𝛼",
    "\u2028",
    "\x1c",
    "a\r\nb",
    "\ufeff",
    '"\\',
]
TEXT = st.lists(st.sampled_from(ODD) | st.text(max_size=6), max_size=3).map("".join)
FULL = TEXT.filter(bool)
FLAG = st.booleans()
MORE = st.dictionaries(st.sampled_from(["more", "Note", "_x"]), st.none() | st.integers() | TEXT, max_size=2)
CASES = settings(max_examples=25, deadline=None)


def write(folder: Path, rows: Sequence[dict]) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def stored(item: LabelledTrace) -> LabelledTrace:
    return LabelledTrace(
        problem=Problem.model_validate_json(item.problem.model_dump_json()),
        trace=Trace.model_validate_json(item.trace.model_dump_json()),
        labels=tuple(StepLabel.model_validate_json(label.model_dump_json()) for label in item.labels),
    )


def written(name: str, items: Sequence[LabelledTrace], path: Path) -> tuple[list[dict], WriteReport]:
    report = write_labelled(name, items, path, neutral="drop")
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line], report


def labelled_rows(name: str, rows: list[dict]) -> tuple[list[LabelledTrace], list[dict]]:
    """The labelled traces, each equal after a round trip through JSON, and the rows that were read."""
    with tempfile.TemporaryDirectory() as folder:
        reading = ReadReport()
        items = list(read_source(name, write(Path(folder), rows), report=reading))
        bad = {number for number, _ in reading.bad}
    assert [stored(item) for item in items] == items
    assert name == "who-and-when" or len({item.trace.id for item in items}) == len(items)
    return items, [row for number, row in enumerate(rows, start=1) if number not in bad]


def assert_rows_come_back(name: str, rows: list[dict], fields: set[str]) -> None:
    """The known fields of all rows that the reader accepts are written back, in order."""
    items, good = labelled_rows(name, rows)
    with tempfile.TemporaryDirectory() as folder:
        back, report = written(name, items, Path(folder) / "out.jsonl")
    assert back == [{field: row[field] for field in row if field in fields} for row in good]
    assert report.summary() == f"{len(good)} rows written; dropped: nothing"


@st.composite
def first_error_row(draw: st.DrawFn, fields: dict[str, st.SearchStrategy], label: str, none: Any) -> dict:
    steps = draw(st.lists(TEXT, min_size=1, max_size=4))
    found = draw(st.sampled_from([none, *range(len(steps))]))
    return {**{name: draw(kind) for name, kind in fields.items()}, "steps": steps, label: found, **draw(MORE)}


PROCESSBENCH = {"id": FULL, "generator": TEXT, "problem": FULL, "final_answer_correct": FLAG}


@CASES
@given(st.lists(first_error_row(PROCESSBENCH, "label", -1), max_size=3))
def test_processbench_rows(rows: list[dict]):
    assert_rows_come_back("processbench", rows, {*PROCESSBENCH, "steps", "label"})


@st.composite
def stepwise_row(draw: st.DrawFn) -> dict:
    labels = draw(st.lists(FLAG, min_size=1, max_size=4))
    parts = draw(st.lists(TEXT, min_size=len(labels), max_size=len(labels)))
    return {"prompt": draw(FULL), "completions": parts, "labels": labels, **draw(MORE)}


@CASES
@given(st.lists(stepwise_row(), max_size=3))
def test_stepwise_rows(rows: list[dict]):
    assert_rows_come_back("stepwise", rows, {"prompt", "completions", "labels"})


@st.composite
def shepherd_row(draw: st.DrawFn) -> dict:
    """Any text with tags, most of it with the usual numbers, and sometimes without a question."""
    pieces = draw(st.lists(TEXT.filter(lambda text: TAG not in text), min_size=1, max_size=4))
    numbered = [
        f"\nStep {number}: {piece} " if draw(FLAG) else piece for number, piece in enumerate(pieces, 1)
    ]
    question = draw(TEXT.filter(lambda text: TAG not in text))
    signs = draw(st.lists(st.sampled_from("+-"), min_size=len(pieces), max_size=len(pieces)))
    end = draw(st.sampled_from(["", "\n", " "]))
    body = [f"{question} Step 1: {numbered[0]}", *numbered[1:]]
    return {
        "input": "".join(piece + TAG for piece in body) + end,
        "label": "".join(piece + sign for piece, sign in zip(body, signs, strict=True)),
        **({"task": draw(TEXT)} if draw(FLAG) else {}),
        **draw(MORE),
    }


@CASES
@given(st.lists(shepherd_row(), max_size=3))
def test_math_shepherd_rows(rows: list[dict]):
    """Each sign is a label, at the step that ends there, and no text is lost but white space."""
    items, rows = labelled_rows("math-shepherd", rows)
    for row, item in zip(rows, items, strict=True):
        text = row["input"].replace(TAG, "")
        assert "".join(f"{item.problem.text}{item.trace.text}".split()) == "".join(text.split())
        assert len(item.labels) == row["input"].count(TAG)
        assert len({label.step for label in item.labels}) == len(item.labels)


@st.composite
def step_row(draw: st.DrawFn) -> dict:
    return {
        "instruction": draw(st.sampled_from(["q", "other"])),
        "responses": draw(st.lists(st.sampled_from(["a", "", "b\n"]), max_size=3)),
        "next_response": draw(st.sampled_from(["a", "", "b\n"]) | TEXT),
        "answer": draw(st.none() | TEXT),
        **{f"is_{name}": draw(FLAG) for name in ("human_response", "solution", "preferred_response")},
        "rating": draw(st.sampled_from([-1, 0, 1, None])),
        **({"error_reason": draw(st.none() | TEXT)} if draw(FLAG) else {}),
        **draw(MORE),
    }


@CASES
@given(st.lists(step_row(), max_size=8))
def test_prm800k_step_rows(rows: list[dict]):
    items, good = labelled_rows("prm800k-steps", rows)
    ratings = Counter(
        (item.problem.text, *parts[: label.step + 1], label.value)
        for item in items
        for parts in [step_parts(item.trace)]
        for label in item.labels
    )
    assert ratings == Counter(
        (row["instruction"], *row["responses"], row["next_response"], row["rating"]) for row in good
    )


@st.composite
def session(draw: st.DrawFn) -> dict:
    def completion(**fields: object) -> dict:
        rating = {"rating": draw(st.sampled_from([-1, 0, 1, None]))} if draw(FLAG) else {}
        return {"text": draw(TEXT), **rating, **fields, **draw(MORE)}

    steps = []
    for _ in range(draw(st.integers(0, 3))):
        offered = [completion(flagged=draw(st.none() | FLAG)) for _ in range(draw(st.integers(0, 3)))]
        human = draw(st.sampled_from(["none", "text", "object"]))
        chosen = draw(st.none() | st.integers(0, 2))
        steps.append(
            {
                "completions": offered if draw(FLAG) or offered else None,
                "human_completion": {"none": None, "text": draw(TEXT), "object": completion(source="h")}[
                    human
                ],
                "chosen_completion": chosen,
            }
        )
    return {
        "labeler": draw(TEXT),
        "timestamp": "2022-07-30T23:23:32.118856",
        "generation": draw(st.none() | st.integers(-1, 9)),
        "question": {"problem": draw(TEXT), "ground_truth_answer": draw(st.none() | TEXT), **draw(MORE)},
        "label": {"steps": steps, "total_time": 3, "finish_reason": draw(st.none() | TEXT), **draw(MORE)},
        **draw(MORE),
    }


@CASES
@given(st.lists(session(), max_size=3))
def test_prm800k_records(rows: list[dict]):
    items, good = labelled_rows("prm800k", rows)
    ratings = Counter(
        (step_parts(item.trace)[label.step], label.value) for item in items for label in item.labels
    )
    completions = [
        completion
        for row in good
        for step in row["label"]["steps"]
        for completion in [*(step["completions"] or []), step["human_completion"]]
        if completion is not None
    ]
    rated = [{"text": each} if isinstance(each, str) else each for each in completions]
    assert ratings == Counter((each["text"], each.get("rating")) for each in rated)


@st.composite
def labelled(draw: st.DrawFn) -> LabelledTrace:
    """A trace that no reader of a public format made."""
    parts = draw(st.lists(TEXT, min_size=1, max_size=4))
    problem = Problem(text=draw(FULL), answer=draw(st.none() | TEXT))
    sample = draw(st.integers(0, 10**9))
    trace = joined_trace(problem, parts, "\n", outcome=draw(FLAG), sample=sample)
    kind = draw(st.sampled_from(["correctness", "value"]))
    values = [-1.0, 0.0, 1.0, None] if kind == "correctness" else [0.0, 0.5, 1.0, None]
    labels = tuple(
        StepLabel(trace_id=trace.id, step=index, kind=kind, value=value, reason="x", source="s")
        for index in range(len(parts))
        if (value := draw(st.sampled_from([*values, "absent"]))) != "absent"
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def signs(item: LabelledTrace) -> dict[int, bool]:
    """Sign of each step that has one: above 0, or not; neutral has none."""
    return {
        label.step: label.value > 0
        for label in item.labels
        if label.value is not None and not (label.kind == "correctness" and label.value == 0)
    }


@pytest.mark.parametrize("name", sorted(name for name, form in FORMATS.items() if form.write))
@CASES
@given(items=st.lists(labelled(), max_size=3))
def test_traces_from_elsewhere_are_written_whole_or_counted(name: str, items: list[LabelledTrace]):
    with tempfile.TemporaryDirectory() as folder:
        rows, report = written(name, items, Path(folder) / "out.jsonl")
        reading = ReadReport()
        back = list(read_source(name, Path(folder) / "out.jsonl", report=reading))
    assert reading.bad_count == 0
    lost = sum(count for reason, count in report.dropped.items() if reason.startswith("traces: "))
    assert report.written == len(rows)
    assert report.written + lost == len(items)
    if name == "processbench":
        kept = iter(items)
        for item in back:
            # in order: one that was dropped may have equal steps, and is passed over
            assert any(holds(one, item) for one in kept)


def holds(source: LabelledTrace, item: LabelledTrace) -> bool:
    """Did ``item`` come from ``source``, with the same text and steps and no sign that is not there?"""
    theirs = signs(source)
    same = item.problem.text == source.problem.text and step_parts(source.trace) == step_parts(item.trace)
    return same and all(theirs.get(step) == sign for step, sign in signs(item).items())


CALL = st.fixed_dictionaries(
    {
        "id": TEXT,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT}),
    }
)


@st.composite
def chat_message(draw: st.DrawFn) -> dict:
    """Usual and unusual: no content, flat calls, fields of its own, an order of its own."""
    row = {
        "role": draw(st.sampled_from(["user", "assistant", "tool", "system"])),
        "content": draw(TEXT | st.none()),
    }
    if draw(FLAG):
        row["tool_calls"] = draw(st.lists(CALL | st.just({"name": "f", "arguments": {"x": 1}}), max_size=2))
    if draw(FLAG):
        row |= {"name": draw(TEXT), "tool_call_id": draw(TEXT)}
    if draw(FLAG):
        del row["content"]
    names = draw(st.permutations(list(row)))
    return {**{name: row[name] for name in names}, **draw(MORE)}


TOOL = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {"name": TEXT},
            optional={"description": TEXT | st.none(), "parameters": st.just({"type": "object"})},
        ),
    }
)


@st.composite
def agent_row(draw: st.DrawFn) -> dict:
    messages = [*draw(st.lists(chat_message(), max_size=3)), {"role": "assistant", "content": draw(TEXT)}]
    said = [str(n) for n, message in enumerate(messages) if message["role"] == "assistant"]
    row = {
        "total_index": draw(st.none() | st.integers(0, 9)),
        "query_index": draw(st.integers(0, 2)),
        "sample_index": draw(st.integers(0, 2)),
        "question": draw(FULL),
        "data_source": draw(FULL),
        "ground_truth": draw(st.none() | TEXT | st.just({"target": ["a", "b"]})),
        "answer_text": draw(st.none() | TEXT),
        "messages": messages,
        "tool_metrics": draw(MORE),
        "tools": draw(st.none() | st.lists(TOOL, max_size=2)),
        "step_labels": {n: draw(st.sampled_from([-1, 0, 1, None])) for n in said if draw(FLAG)},
        "final_label": draw(st.sampled_from([-1, 0, 1])),
    }
    for name in ("total_index", "ground_truth", "tools"):
        if draw(FLAG):
            del row[name]
    return {**row, **draw(MORE)}


@CASES
@given(st.lists(agent_row(), max_size=3))
def test_agent_processbench_rows(rows: list[dict]):
    items, good = labelled_rows("agent-processbench", rows)
    for item, row in zip(items, good, strict=True):
        messages = {label.step: item.trace.steps[label.step].message for label in item.labels}
        signs = {str(messages[label.step]): label.value for label in item.labels}
        assert signs == row["step_labels"]
        texts = [message.content for message in item.trace.messages]
        assert texts == [message.get("content") for message in row["messages"]]


@st.composite
def blamed_row(draw: st.DrawFn) -> dict:
    turn = st.fixed_dictionaries(
        {
            "content": TEXT | st.none(),
            "role": st.sampled_from(["human", "user", "assistant", "Web (thought)"]) | TEXT,
        },
        optional={"name": TEXT | st.none(), "more": TEXT},
    )
    history = draw(st.lists(turn, min_size=1, max_size=4))
    step = draw(st.integers(0, len(history) - 1))
    return {
        "question": draw(FULL),
        "question_ID": draw(TEXT),
        **({"ground_truth": draw(TEXT | st.none())} if draw(FLAG) else {}),
        "history": history,
        "mistake_agent": draw(TEXT),
        "mistake_step": draw(st.sampled_from([step, str(step)])),
        "mistake_reason": draw(TEXT | st.none()),
        **draw(MORE),
    }


@CASES
@given(st.lists(blamed_row(), max_size=3))
def test_who_and_when_rows(rows: list[dict]):
    items, good = labelled_rows("who-and-when", rows)
    for item, row in zip(items, good, strict=True):
        assert [label.step for label in item.labels] == [int(row["mistake_step"])]
        assert [message.content for message in item.trace.messages] == [
            turn["content"] for turn in row["history"]
        ]
