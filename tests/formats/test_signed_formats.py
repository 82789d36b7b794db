from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from surefoot.formats import read_math_shepherd, read_stepwise, write_stepwise
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Message, Problem, StepLabel, Trace

DATA = Path(__file__).parents[2] / "../shared/data/prm800k"

SHEPHERD = {
    "input": "What is 1 + 1 - 1? Step 1: 1 + 1 = 2 ки\nStep 2: 2 - 1 + 0 = 1 The answer is: 1 ки",
    "label": "What is 1 + 1 - 1? Step 1: 1 + 1 = 2 +\nStep 2: 2 - 1 + 0 = 1 The answer is: 1 -",
    "task": "GSM8K",
}


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled(*values: float | None, text: str = "s", kind: str = "correctness") -> LabelledTrace:
    problem = Problem(text="q")
    whole = "\n".join(f"{text}{number}" for number in range(len(values)))
    width = len(text) + 2
    spans = [{"start": width * i, "end": min(width * (i + 1), len(whole))} for i in range(len(values))]
    trace = Trace.model_validate({"problem_id": problem.id, "text": whole, "steps": spans})
    labels = tuple(
        StepLabel(
            trace_id=trace.id, step=i, kind=kind, value=v, reason="x" if v is None else None, source="s"
        )
        for i, v in enumerate(values)
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def chat() -> LabelledTrace:
    trace = Trace(problem_id="p", messages=(Message(role="user", content="x"),))
    return LabelledTrace(problem=Problem(text="q"), trace=trace, labels=())


def as_row(item: LabelledTrace) -> dict:
    """The row that a trace was read from, if it has the usual white space."""
    steps = [item.trace.step_text(index).strip() for index in range(len(item.trace.steps))]
    marks = {label.step: "+" if label.value else "-" for label in item.labels}

    def text(tags: dict[int, str]) -> str:
        body = (f"{step} {tags[index]}" if index in tags else step for index, step in enumerate(steps))
        return f"{item.problem.text} " + "\n".join(body)

    return {
        "input": text(dict.fromkeys(marks, "ки")),
        "label": text(marks),
        "task": item.trace.meta["task"],
    }


def test_math_shepherd_signs_are_found_by_position(tmp_path: Path):
    (item,) = read_math_shepherd(lines(tmp_path / "m.jsonl", SHEPHERD))
    assert item.problem.text == "What is 1 + 1 - 1?"
    assert item.trace.text == "Step 1: 1 + 1 = 2\nStep 2: 2 - 1 + 0 = 1 The answer is: 1"
    assert [(label.kind, label.value) for label in item.labels] == [("value", 1.0), ("value", 0.0)]
    assert item.trace.answer == "1"


def test_math_shepherd_bad_rows(tmp_path: Path):
    good = SHEPHERD["label"]
    bad = [
        {**SHEPHERD, "label": good.replace("What", "That")},
        {**SHEPHERD, "label": good.replace("2 +\n", "2 ?\n")},
        {**SHEPHERD, "label": good + " more"},
        {"input": "no tag", "label": "no tag"},
        {"input": "no first step ки", "label": "no first step +"},
    ]
    report = ReadReport()
    assert list(read_math_shepherd(lines(tmp_path / "m.jsonl", *bad), report=report)) == []
    reasons = dict(report.bad)
    assert reasons[1].startswith("field 'label': does not follow 'input' near character")
    assert reasons[2].startswith("field 'label'")
    assert reasons[3].startswith("field 'input'")
    assert reasons[4].endswith("does not end with the tag 'ки'")
    assert reasons[5] == "field 'input': no question before 'Step 1:'"


def test_math_shepherd_rows_of_odd_form_keep_steps_and_signs(tmp_path: Path):
    rows = [
        {"input": " q?\n\nStep 1: a  ки Step 2: bки\n", "label": " q?\n\nStep 1: a  + Step 2: b-\n "},
        {**SHEPHERD, "extra": None},
        SHEPHERD,
        {**SHEPHERD, "label": SHEPHERD["label"].replace("2 +", "2 -")},
        {"input": "q Step 1: \nStep 2:ки", "label": "q Step 1: \nStep 2:+", "task": "x"},
    ]
    items = list(read_math_shepherd(lines(tmp_path / "m.jsonl", *rows)))
    assert len({item.trace.id for item in items}) == 5
    assert len(items[4].trace.steps) == 2
    assert [item.trace.text for item in items[:2]] == ["Step 1: a\nStep 2: b", items[2].trace.text]
    assert [label.value for label in items[0].labels] == [1.0, 0.0]
    assert as_row(items[2]) == SHEPHERD
    unsigned = {"input": "q Step 1: a\nStep 2: b ки", "label": "q Step 1: a\nStep 2: b -", "task": "x"}
    [item] = read_math_shepherd(lines(tmp_path / "u.jsonl", unsigned))
    assert [(label.step, label.value) for label in item.labels] == [(1, 0.0)]
    assert as_row(item) == unsigned


def test_stepwise_round_trip(tmp_path: Path):
    rows = [{"prompt": "q", "completions": ["a ", "", "b\nc"], "labels": [True, False, True]}]
    items = list(read_stepwise(lines(tmp_path / "s.jsonl", *rows)))
    assert [label.value for label in items[0].labels] == [1.0, -1.0, 1.0]
    assert items[0].trace.text == "a \n\nb\nc"
    assert items[0].labels[0].source == "stepwise"
    report = write_stepwise(items, tmp_path / "out.jsonl", neutral="drop")
    assert rows_of(tmp_path / "out.jsonl") == rows
    assert report.summary() == "1 rows written; dropped: nothing"


def test_stepwise_bad_rows(tmp_path: Path):
    bad = [
        {"prompt": "q", "completions": ["a"], "labels": [0.5]},
        {"prompt": "q", "completions": ["a"], "labels": []},
        {"prompt": "q", "completions": [], "labels": []},
        {"prompt": "", "completions": ["a"], "labels": [True]},
    ]
    report = ReadReport()
    assert list(read_stepwise(lines(tmp_path / "s.jsonl", *bad), report=report)) == []
    assert report.bad_count == 4
    assert dict(report.bad)[2] == "field 'labels': 0 for 1 completions"


@pytest.mark.parametrize(
    ("neutral", "labels"),
    [("good", [True, True, False]), ("bad", [True, False, False]), ("drop", [True])],
)
def test_stepwise_neutral_policy(tmp_path: Path, neutral: str, labels: list[bool]):
    report = write_stepwise([labelled(1, 0, -1)], tmp_path / "out.jsonl", neutral=neutral)
    assert rows_of(tmp_path / "out.jsonl")[0]["labels"] == labels
    lost = {"steps: from one without a sign on (neutral)": 2} if neutral == "drop" else {}
    assert report.dropped == lost


def test_stepwise_puts_an_unlabelled_prefix_into_the_prompt(tmp_path: Path):
    whole = labelled(1, 1, -1)
    alternative = LabelledTrace(problem=whole.problem, trace=whole.trace, labels=whole.labels[2:])
    report = write_stepwise([alternative, labelled(None), chat()], tmp_path / "out.jsonl", neutral="drop")
    assert rows_of(tmp_path / "out.jsonl") == [
        {"prompt": "q\ns0\ns1", "completions": ["s2"], "labels": [False]}
    ]
    assert report.dropped == {"traces: no step has a sign": 1, "traces: chat trace": 1}


@pytest.mark.skipif(not DATA.exists(), reason="the shared data set is not here")
def test_real_math_shepherd_rows_come_back_exactly(tmp_path: Path):
    path = DATA / "openr_samples_math-shepherd.jsonl.gz"
    report = ReadReport()
    items = list(read_math_shepherd(path, report=report))
    assert (report.good, report.bad_count) == (7, 0)
    with gzip.open(path) as stream:
        assert list(map(as_row, items)) == [json.loads(line) for line in stream]
