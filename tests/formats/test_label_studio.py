"""Label Studio tasks: records come back, people's changes become labels, odd tasks are refused or counted."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import RecordError
from surefoot.formats import read_label_studio, write_label_studio
from surefoot.formats.label_studio import LABELLING_CONFIG
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, LabelKind, Message, Problem, Step, StepLabel, ToolCall, Trace

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
FULL = TEXT.filter(bool)
KINDS: tuple[LabelKind, ...] = ("correctness", "value", "advantage")


def read(folder: Path, tasks: list[dict[str, Any]]) -> list[LabelledTrace]:
    path = folder / "tasks.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    return list(read_label_studio(path))


def tasks_of(folder: Path, *items: LabelledTrace) -> list[dict[str, Any]]:
    write_label_studio(items, folder / "out.json")
    written: list[dict[str, Any]] = json.loads((folder / "out.json").read_text("utf-8"))
    return written


def example(*labels: StepLabel) -> LabelledTrace:
    problem = Problem(id="p", text="1+1, then doubled?", answer="4")
    trace = Trace(
        id="t", problem_id="p", text="😀 1+1=2\n2*2=5", steps=(Step(start=0, end=8), Step(start=8, end=13))
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def label(step: int, value: float | None, **more: Any) -> StepLabel:
    fields = {"trace_id": "t", "kind": "correctness", "source": "human", "created": NOON}
    return StepLabel(step=step, value=value, **{**fields, **more})


def region(start: object, end: object, names: list[str], **more: Any) -> dict[str, Any]:
    value = {"start": start, "end": end, "startOffset": 0, "endOffset": 3, "paragraphlabels": names}
    return {"id": "r", "from_name": "x", "to_name": "y", "type": "paragraphlabels", "value": value, **more}


def foreign(**answers: Any) -> dict[str, Any]:
    return {"id": 7, "data": {"question": "q", "steps": [{"text": "a"}, {"text": "b"}, "c"]}, **answers}


@st.composite
def labelled(draw: st.DrawFn) -> LabelledTrace:
    """A text trace or an agent run, with labels of every kind, source and evidence."""
    problem = Problem(text=draw(FULL), answer=draw(st.none() | FULL), meta={"k": draw(TEXT)})
    parts = draw(st.lists(TEXT, min_size=1, max_size=4))
    if draw(st.booleans()):
        ends = [sum(map(len, parts[: number + 1])) for number in range(len(parts))]
        steps = tuple(Step(start=end - len(part), end=end) for part, end in zip(parts, ends, strict=True))
        trace = Trace(problem_id=problem.id, text="".join(parts), steps=steps, outcome=draw(st.booleans()))
    else:
        calls = (ToolCall(name="f", arguments=draw(TEXT)),)
        messages = tuple(Message(role="assistant", content=part, tool_calls=calls) for part in parts)
        steps = tuple(Step(start=0, end=len(part), message=number) for number, part in enumerate(parts))
        trace = Trace(problem_id=problem.id, messages=messages, steps=steps)
    low = {"correctness": st.sampled_from([-1.0, 0.0, 1.0]), "value": st.floats(0, 1)}
    labels = []
    for step in draw(st.lists(st.integers(0, len(parts) - 1), max_size=6)):
        kind = draw(st.sampled_from(KINDS))
        labels.append(
            StepLabel(
                trace_id=trace.id,
                step=step,
                kind=kind,
                value=draw(st.none() | low.get(kind, st.floats(-1, 1))),
                reason=draw(FULL),
                source=draw(st.sampled_from(["human", "judge", "monte-carlo"])),
                evidence=Evidence(
                    rater=draw(st.none() | FULL),
                    message=draw(st.none() | TEXT),
                    successes=draw(st.none() | st.just(3)),
                ),
                created=NOON + timedelta(seconds=draw(st.integers(0, 9))),
            )
        )
    return LabelledTrace(problem=problem, trace=trace, labels=tuple(labels))


@settings(max_examples=60, deadline=None)
@given(st.lists(labelled(), max_size=3), st.sampled_from(["o.json", "o.jsonl", "o.json.gz"]))
def test_records_come_back_whole(items: list[LabelledTrace], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = write_label_studio(items, Path(folder) / name)
        back = list(read_label_studio(Path(folder) / name))
    assert report.summary() == f"{len(items)} rows written; dropped: nothing"
    assert [(one.problem, one.trace) for one in back] == [(one.problem, one.trace) for one in items]
    for one, other in zip(items, back, strict=True):
        assert sorted(one.labels, key=repr) == sorted(other.labels, key=repr)


@settings(max_examples=25, deadline=None)
@given(st.lists(labelled(), max_size=2))
def test_tasks_read_and_written_again_stay_as_they_are(items: list[LabelledTrace]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        once = tasks_of(Path(folder), *items)
        write_label_studio(read(Path(folder), once), Path(folder) / "again.json")
        again = json.loads((Path(folder) / "again.json").read_text("utf-8"))
    for one, other in zip(once, again, strict=True):
        assert one["data"] == other["data"]
        assert [len(part["result"]) for part in one["annotations"]] == [
            len(part["result"]) for part in other["annotations"]
        ]


def test_people_annotate_and_models_predict(tmp_path: Path) -> None:
    judged = label(1, -1, source="judge", evidence=Evidence(rater="j-1", message="2*2 is 4"))
    measured = label(1, 0.25, kind="value", source="monte-carlo")
    people = [label(0, 1, evidence=Evidence(rater=name)) for name in ("r-1", "r-2")]
    (task,) = tasks_of(tmp_path, example(*people, judged, measured))
    assert [len(one["result"]) for one in task["annotations"]] == [1, 1]
    assert "completed_by" not in task["annotations"][0]
    assert [one["model_version"] for one in task["predictions"]] == ["judge: j-1", "monte-carlo"]
    first = task["predictions"][0]["result"][0]
    assert first["value"]["paragraphlabels"] == ["wrong"]
    assert first["meta"]["text"] == ["2*2 is 4"]
    value, number = task["predictions"][1]["result"]
    assert (value["id"], value["value"]["paragraphlabels"]) == (number["id"], ["value"])
    assert (number["type"], number["value"]["number"]) == ("number", 0.25)


def test_offsets_are_those_of_a_browser(tmp_path: Path) -> None:
    (task,) = tasks_of(tmp_path, example(label(0, 1)))
    place = task["annotations"][0]["result"][0]["value"]
    assert (place["start"], place["end"], place["startOffset"]) == ("0", "0", 0)
    assert place["endOffset"] == len("😀 1+1=2\n") + 1
    assert "".join(step["text"] for step in task["data"]["steps"]) == example().trace.text


def test_a_label_changed_there_is_a_persons(tmp_path: Path) -> None:
    (task,) = tasks_of(tmp_path, example(label(1, -1, source="judge", evidence=Evidence(message="why"))))
    (prediction,) = task["predictions"]
    prediction["result"][0]["value"]["paragraphlabels"] = ["correct"]
    exported = {
        **task,
        "id": 3,
        "predictions": [],
        "annotations": [
            {
                "id": 9,
                "completed_by": {"id": 4, "email": "a@b.c"},
                "created_at": "2024-05-01T14:00:00.5Z",
                "lead_time": 3.5,
                "result": prediction["result"],
            }
        ],
    }
    (found,) = read(tmp_path, [exported])[0].labels
    assert (found.step, found.value, found.source, found.evidence.rater) == (
        1,
        1.0,
        "human",
        "label-studio-4",
    )
    assert found.created == datetime(2024, 5, 1, 14, 0, 0, 500_000, tzinfo=UTC)
    assert found.evidence.message is None
    assert "a@b.c" not in found.model_dump_json()


def test_a_task_made_elsewhere(tmp_path: Path) -> None:
    answers = {
        "completed_by": 5,
        "created_at": "2024-05-01T12:00:00Z",
        "result": [
            region("0", "1", ["Good"]),
            region(2, 2, [" Incorrect "], meta={"text": ["does not follow"]}),
            region("0", "0", ["unknown"], meta={"text": ["cannot read"]}),
        ],
    }
    (item,) = read(tmp_path, [foreign(annotations=[answers])])
    assert item.problem.text == "q"
    assert [item.trace.step_text(index) for index in range(3)] == ["a\n", "b\n", "c"]
    assert [(one.step, one.value) for one in item.labels] == [(0, 1), (1, 1), (2, -1), (0, None)]
    assert item.labels[2].evidence == Evidence(rater="label-studio-5", message="does not follow")
    assert item.labels[3].reason == "cannot read"
    assert "ignored" not in item.trace.meta


def test_predictions_carry_the_models_name_and_number(tmp_path: Path) -> None:
    number = {"id": "r", "type": "number", "value": {"number": 0.5}}
    predictions = [{"model_version": "m-1", "result": [region("1", "1", ["value"]), number]}]
    (item,) = read(tmp_path, [foreign(predictions=predictions)])
    (found,) = item.labels
    assert (found.kind, found.value, found.source) == ("value", 0.5, "m-1")


def test_what_means_nothing_here_is_counted(tmp_path: Path) -> None:
    odd = [
        region("0", "0", ["Recipe"]),
        region("0", "9", ["correct"]),
        region("x", "0", ["correct"]),
        region("0", "0", ["value"]),
        {"type": "choices", "value": {"choices": ["yes"]}},
    ]
    skipped = {"was_cancelled": True, "result": [region("0", "0", ["correct"])]}
    (item,) = read(tmp_path, [foreign(annotations=[{"result": odd}, skipped])])
    assert item.labels == ()
    assert item.trace.meta["ignored"] == 6


def test_equal_solutions_stay_two_traces(tmp_path: Path) -> None:
    first, second = read(tmp_path, [foreign(), foreign()])
    assert first.problem == second.problem
    assert first.trace.id != second.trace.id


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "data.steps"),
        ({"steps": "a"}, "data.steps"),
        ({"steps": [1]}, "data.steps.0"),
        ({"steps": ["a"]}, "data.problem"),
        ({"steps": ["a"], "problem": ""}, "data.problem"),
    ],
)
def test_a_task_without_problem_or_steps_is_refused(tmp_path: Path, data: dict[str, Any], field: str) -> None:
    with pytest.raises(RecordError, match=f"line 1: field '{field}'"):
        read(tmp_path, [{"data": data}])


def test_steps_changed_beside_their_trace_are_refused_and_counted(tmp_path: Path) -> None:
    (task,) = tasks_of(tmp_path, example())
    task["data"]["steps"][0]["text"] = "other"
    (tmp_path / "x.json").write_text(json.dumps([task, foreign()]))
    report = ReadReport()
    assert len(list(read_label_studio(tmp_path / "x.json", report=report))) == 1
    assert report.bad_count == 1
    assert "field 'data.steps': not the steps" in report.summary()


def test_a_label_of_a_step_that_is_not_there_is_counted(tmp_path: Path) -> None:
    report = write_label_studio([example(label(5, 1))], tmp_path / "o.json")
    assert report.summary() == "1 rows written; dropped: 1 labels: no such step"


def test_the_labelling_interface_names_what_the_tasks_use(tmp_path: Path) -> None:
    view = ElementTree.fromstring(LABELLING_CONFIG)  # noqa: S314 - our own text
    (task,) = tasks_of(tmp_path, example(label(0, 1), label(1, 0.5, kind="value")))
    names = {one.get("name"): one for one in view if one.get("name")}
    assert {one.get("toName") for one in names.values()} == {None, "steps"}
    for answers in (*task["annotations"], *task["predictions"]):
        for entry in answers["result"]:
            assert names[entry["from_name"]].tag.lower() == entry["type"]
            shown = {one.get("value") for one in names[entry["from_name"]]}
            assert set(entry["value"].get("paragraphlabels", [])) <= shown
    assert {"problem", "steps"} <= set(task["data"])
