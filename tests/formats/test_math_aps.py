from __future__ import annotations

import json
from pathlib import Path

from surefoot.formats import read_math_aps, write_math_aps
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def flat(*states: tuple[str, float | None], **fields: object) -> dict:
    entries = [{"solution_prefix": f"q{text}", "mc_value": value} for text, value in states]
    return {"question": "q", "final_answer": "2", "reasoning_steps": entries, "question_id": 7, **fields}


def shape(item: LabelledTrace) -> tuple[list[str], list[tuple[int, float | None]]]:
    steps = [item.trace.step_text(index) for index in range(len(item.trace.steps))]
    return steps, [(label.step, label.value) for label in item.labels]


ROW = flat(
    ("", 0.5), ("\n\na\n\nb", 1.0), ("\n\na", 0.25), ("\n\na\n\n c", None), ("\n\n\nd", 0.0), ("\n\na", 0.75)
)


def test_states_become_steps_and_each_value_is_one_label(tmp_path: Path):
    items = list(read_math_aps(lines(tmp_path / "m.jsonl", ROW)))
    assert [shape(item) for item in items] == [
        (["a", "\n\nb"], [(0, 0.25), (0, 0.75), (1, 1.0)]),
        (["a", "\n\n c"], [(1, None)]),
        (["d"], [(0, 0.0)]),
    ]
    assert items[1].labels[0].reason == "not estimated"
    assert [item.trace.meta["lead"] for item in items] == ["\n\n", "\n\n", "\n\n\n"]
    assert {label.kind for item in items for label in item.labels} == {"value"}
    assert (items[0].problem.answer, items[0].trace.meta["question_id"]) == ("2", 7)
    assert items[0].trace.meta["roots"][0]["value"] == 0.5


def test_a_state_that_ends_inside_a_number_is_no_step(tmp_path: Path):
    items = list(read_math_aps(lines(tmp_path / "m.jsonl", flat(("\n2", 0.5), ("\n20", 1), ("\n20 x", 1)))))
    assert [shape(item)[0] for item in items] == [["2"], ["20", " x"]]


def test_rows_come_back_from_any_order_of_traces(tmp_path: Path):
    rows = [ROW, {"note": 1, **flat(("\na", 1.0))}, ROW, flat(("a ", 1.0), question_id="x")]
    items = list(read_math_aps(lines(tmp_path / "m.jsonl", *rows)))
    assert len({item.trace.id for item in items}) == len(items)
    report = write_math_aps(items, tmp_path / "o.jsonl")
    assert rows_of(tmp_path / "o.jsonl") == rows
    assert report.summary() == "4 rows written; dropped: nothing"
    write_math_aps(items[2::-1], tmp_path / "o.jsonl")
    assert rows_of(tmp_path / "o.jsonl") == [ROW]


def test_trees(tmp_path: Path):
    def node(text: str, value: float, *children: dict) -> dict:
        return {"text": text, "mc_value": value, "children": list(children)}

    tree = node("q", 0.5, node("a", 0.25, node("b", 0.0), node("c", 1.0)), node("a", 1.0))
    items = list(read_math_aps(lines(tmp_path / "m.jsonl", flat(reasoning_steps=tree))))
    assert [shape(item) for item in items] == [
        (["a", "\n\nb"], [(0, 0.25), (1, 0.0)]),
        (["a", "\n\nc"], [(1, 1.0)]),
        (["a"], [(0, 1.0)]),
    ]
    assert write_math_aps(items, tmp_path / "o.jsonl").summary() == "1 rows written; dropped: nothing"
    (row,) = rows_of(tmp_path / "o.jsonl")
    assert [(entry["solution_prefix"], entry["mc_value"]) for entry in row["reasoning_steps"]] == [
        ("q\n\na", 0.25),
        ("q\n\na\n\nb", 0.0),
        ("q\n\na\n\nc", 1.0),
        ("q\n\na", 1.0),
        ("q", 0.5),
    ]


def test_bad_rows(tmp_path: Path):
    other = {**ROW, "question": "other"}
    bad = [flat(("", 0.5)), flat(("\na", 1.5)), other, flat(("\na", True)), flat()]
    report = ReadReport()
    assert list(read_math_aps(lines(tmp_path / "m.jsonl", *bad), report=report)) == []
    reasons = dict(report.bad)
    assert reasons[1] == "field 'reasoning_steps': no state has a solution"
    assert "mc_value" in reasons[2]
    assert reasons[3] == "field 'reasoning_steps.0.solution_prefix': does not begin with the question"
    assert report.bad_count == 5


def own(text: str, ends: list[int], *labels: tuple[int, str, float]) -> LabelledTrace:
    problem = Problem(text="p?", answer="1")
    spans = [{"start": start, "end": end} for start, end in zip([0, *ends], ends, strict=False)]
    trace = Trace.model_validate({"problem_id": problem.id, "text": text, "steps": spans})
    made = tuple(
        StepLabel(trace_id=trace.id, step=step, kind=kind, value=value, source="s")
        for step, kind, value in labels
    )
    return LabelledTrace(problem=problem, trace=trace, labels=made)


def test_traces_of_one_problem_share_a_row_and_losses_are_counted(tmp_path: Path):
    items = [
        own("a\nb\nc", [2, 4, 5], (0, "value", 0.5), (2, "value", 0.25)),
        own("a\nd", [2, 3], (1, "value", 1.0), (1, "correctness", 1.0)),
        own("ab", [1, 2], (0, "value", 1.0)),
        own("a\n\nb", [2, 3, 4], (0, "value", 1.0)),
    ]
    report = write_math_aps(items, tmp_path / "o.jsonl")
    assert report.written == 1
    assert report.dropped == {
        "steps: without a value label": 1,
        "labels: kind 'correctness'": 1,
        "traces: a step boundary that is not at white space": 2,
    }
    back = list(read_math_aps(tmp_path / "o.jsonl"))
    assert [shape(item) for item in back] == [
        (["a", "\nb\nc"], [(0, 0.5), (1, 0.25)]),
        (["a", "\nd"], [(1, 1.0)]),
    ]
