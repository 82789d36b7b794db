from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from surefoot.errors import RecordError
from surefoot.formats import read_processbench, write_processbench
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Message, Problem, StepLabel, Trace

DATA = Path(__file__).parents[2] / "../shared/data/processbench"

ROW = {
    "id": "gsm8k-7",
    "generator": "some-model",
    "problem": "2+2?",
    "steps": ["first\n\nwith a gap", "", "third ", "\nlast"],
    "final_answer_correct": True,
    "label": 1,
}


def file(path: Path, *rows: object) -> Path:
    path.write_text(json.dumps(rows, indent=2))
    return path


def values(item: LabelledTrace) -> list[float | None]:
    return [label.value for label in item.labels]


def test_labels_up_to_the_first_error(tmp_path: Path):
    (item,) = read_processbench(file(tmp_path / "p.json", ROW))
    assert values(item) == [1.0, -1.0, None, None]
    assert [label.reason for label in item.labels] == [
        None,
        None,
        "after the first error",
        "after the first error",
    ]
    assert {(label.kind, label.source, label.trace_id) for label in item.labels} == {
        ("correctness", "human", "gsm8k-7")
    }
    assert (item.trace.policy, item.trace.id, item.trace.meta["id"]) == ("some-model", "gsm8k-7", "gsm8k-7")
    assert item.trace.outcome is True
    assert item.trace.text == "\n\n".join(ROW["steps"])
    assert "".join(item.trace.step_text(index) for index in range(4)) == item.trace.text


@pytest.mark.parametrize(
    ("label", "expected"),
    [(-1, [1.0] * 4), (0, [-1.0, None, None, None]), (3, [1.0, 1.0, 1.0, -1.0])],
)
def test_no_error_first_and_last(tmp_path: Path, label: int, expected: list[float | None]):
    (item,) = read_processbench(file(tmp_path / "p.json", {**ROW, "label": label}))
    assert values(item) == expected


def test_bad_rows(tmp_path: Path):
    bad = [{**ROW, "label": 4}, {**ROW, "label": -2}, {**ROW, "steps": []}, {**ROW, "label": "1"}]
    report = ReadReport()
    assert len(list(read_processbench(file(tmp_path / "p.json", *bad, ROW), report=report))) == 1
    reasons = dict(report.bad)
    assert reasons[1] == "field 'label': 4, but there are 4 steps"
    assert reasons[3] == "field 'steps': empty"
    assert reasons[4].startswith("field 'label': ")
    assert report.bad_count == 4


@pytest.mark.parametrize("name", ["out.json", "out.jsonl", "out.json.gz", "out.jsonl.gz"])
def test_round_trip_of_hard_steps(tmp_path: Path, name: str):
    rows = [ROW, {**ROW, "label": -1, "final_answer_correct": False, "steps": ["\n\n", "a\n\n", "b"]}]
    report = write_processbench(
        read_processbench(file(tmp_path / "p.json", *rows)), tmp_path / name, neutral="drop"
    )
    assert (report.written, report.summary()) == (2, "2 rows written; dropped: nothing")
    raw = (tmp_path / name).read_bytes()
    text = (gzip.decompress(raw) if name.endswith("gz") else raw).decode()
    back = [json.loads(line) for line in text.splitlines()] if ".jsonl" in name else json.loads(text)
    assert back == rows
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["p.json", name])


def test_an_id_that_comes_again_is_a_trace_of_its_own(tmp_path: Path):
    rows = [ROW, {**ROW, "label": -1, "extra": [1]}, {"label": 0, **ROW}]
    items = list(read_processbench(file(tmp_path / "p.json", *rows)))
    assert [item.trace.id for item in items] == ["gsm8k-7", "gsm8k-7#1", "gsm8k-7#2"]
    write_processbench(items, tmp_path / "o.json", neutral="drop")
    back = json.loads((tmp_path / "o.json").read_text())
    assert back == [{name: row[name] for name in ROW} for row in rows]


def labelled(*steps: float | None, outcome: bool | None = True, kind: str = "correctness") -> LabelledTrace:
    problem = Problem(text="q")
    text = "\n".join("s" for _ in steps)
    spans = [{"start": 2 * i, "end": min(2 * i + 2, len(text))} for i in range(len(steps))]
    trace = Trace.model_validate({"problem_id": problem.id, "text": text, "steps": spans, "outcome": outcome})
    labels = tuple(
        StepLabel(
            trace_id=trace.id, step=i, kind=kind, value=v, reason="x" if v is None else None, source="s"
        )
        for i, v in enumerate(steps)
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


@pytest.mark.parametrize(("neutral", "expected"), [("good", 2), ("bad", 1), ("drop", None)])
def test_neutral_policy(tmp_path: Path, neutral: str, expected: int | None):
    path = tmp_path / "o.json"
    report = write_processbench([labelled(1, 0, -1)], path, neutral=neutral)
    assert [row["label"] for row in json.loads(path.read_text())] == ([] if expected is None else [expected])
    assert (
        report.dropped
        == {
            "good": {},
            "bad": {"signs: after the first error": 1},
            "drop": {"traces: no sign before the first error (neutral)": 1},
        }[neutral]
    )


def test_what_has_no_place_is_counted(tmp_path: Path):
    chat = Trace(problem_id="p", messages=(Message(role="user", content="x"),), outcome=True)
    mixed = labelled(1, 1)
    contrary = mixed.labels[1].model_copy(update={"value": -1.0})
    items = [
        labelled(1, None, -1),
        labelled(1, -1, None),
        labelled(outcome=True),
        labelled(1, outcome=None),
        labelled(0.5, 0.0, kind="value"),
        LabelledTrace(problem=Problem(text="q"), trace=chat, labels=()),
        LabelledTrace(problem=mixed.problem, trace=mixed.trace, labels=(*mixed.labels, contrary)),
        LabelledTrace(problem=mixed.problem, trace=mixed.trace, labels=mixed.labels[1:]),
    ]
    report = write_processbench(items, tmp_path / "o.jsonl", neutral="drop")
    assert report.written == 1
    assert json.loads((tmp_path / "o.jsonl").read_text())["steps"] == ["s", "s", "s"]
    assert report.dropped == {
        "traces: no sign before the first error (label without a value)": 1,
        "traces: no steps": 1,
        "traces: outcome unknown": 1,
        "traces: no sign before the first error (label of kind 'value')": 1,
        "traces: chat trace": 1,
        "traces: no sign before the first error (labels disagree)": 1,
        "traces: no sign before the first error (no label)": 1,
    }
    report = write_processbench(items[4:5], tmp_path / "o.jsonl", neutral="drop", threshold=0.0)
    assert json.loads((tmp_path / "o.jsonl").read_text())["label"] == 1


@pytest.mark.skipif(not DATA.exists(), reason="the shared data set is not here")
@pytest.mark.parametrize(
    ("name", "errors", "correct"), [("gsm8k.json.gz", 207, 193), ("math.fixed.json.gz", 594, 406)]
)
def test_real_records_come_back_exactly(tmp_path: Path, name: str, errors: int, correct: int):
    report = ReadReport()
    items = list(read_processbench(DATA / name, report=report))
    assert Counter(-1.0 in values(item) for item in items) == {True: errors, False: correct}
    assert (report.good, report.bad_count) == (errors + correct, 0)
    write_processbench(items, tmp_path / "out.json", neutral="drop")
    with gzip.open(DATA / name) as stream:
        assert json.loads((tmp_path / "out.json").read_text()) == json.load(stream)


def test_a_pattern_names_several_files(tmp_path: Path):
    for number in range(2):
        file(tmp_path / f"part-{number}.json", ROW | {"id": f"gsm8k-{number}"})
    found = read_processbench(f"{tmp_path}/part-*.json")
    assert [item.trace.id for item in found] == ["gsm8k-0", "gsm8k-1"]
    with pytest.raises(RecordError, match="no file matches"):
        list(read_processbench(f"{tmp_path}/gone-*.json"))
