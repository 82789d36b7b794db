from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.readers.math_aps import read_math_aps
from surefoot.io import ReadReport
from surefoot.io.files import lower_limits
from surefoot.protocols import LabelledTrace


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


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
    assert [item.trace.text for item in items] == ["a\n\nb", "a\n\n c", "d"]
    assert {label.kind for item in items for label in item.labels} == {"value"}
    assert (items[0].problem.answer, items[0].trace.meta["question_id"]) == ("2", 7)
    assert items[0].trace.meta["roots"][0]["value"] == 0.5


def test_a_state_that_ends_inside_a_number_is_no_step(tmp_path: Path):
    items = list(read_math_aps(lines(tmp_path / "m.jsonl", flat(("\n2", 0.5), ("\n20", 1), ("\n20 x", 1)))))
    assert [shape(item)[0] for item in items] == [["2"], ["20", " x"]]


def test_equal_rows_stay_apart(tmp_path: Path):
    rows = [ROW, {"note": 1, **flat(("\na", 1.0))}, ROW, flat(("a ", 1.0), question_id="x")]
    items = list(read_math_aps(lines(tmp_path / "m.jsonl", *rows)))
    assert len({item.trace.id for item in items}) == len(items) == 8
    assert [item.trace.meta["row"] for item in items] == [1, 1, 1, 2, 3, 3, 3, 4]
    assert [shape(item) for item in items[:3]] == [shape(item) for item in items[4:7]]
    assert items[7].trace.meta["question_id"] == "x"


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
    assert items[0].trace.meta["roots"] == [{"text": "", "value": 0.5}]


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


def aps_tree(leaves: int, length: int) -> dict[str, Any]:
    def node(text: str, *below: dict[str, Any]) -> dict[str, Any]:
        return {"text": text, "mc_value": 0.5, "children": below}

    tree = node("q", node("x" * length, *(node(f"{number}") for number in range(leaves))))
    return {"question": "q", "reasoning_steps": tree}


def test_a_tree_that_becomes_large_is_refused(tmp_path: Path):
    path, report = lines(tmp_path / "in.jsonl", aps_tree(2_000, 5_000)), ReadReport()
    with lower_limits(max_piece_bytes=2**22):
        assert list(read_math_aps(path, report=report)) == []
    assert "the row becomes more than 4,194,304 bytes" in report.bad[0][1]


ODD = [
    "",
    "\n",
    "\n\n",
    " ",
    "+",
    "- ",
    "Step 1: ",
    " lead",
    "trail ",
    "é𝛼",
    "\u2028",
    "a\r\nb",
    "\ufeff",
    '"\\',
]
TEXT = st.lists(st.sampled_from(ODD) | st.text(max_size=6), max_size=3).map("".join)
FULL = TEXT.filter(bool)
MORE = st.dictionaries(st.sampled_from(["more", "Note", "_x"]), st.none() | st.integers() | TEXT, max_size=2)


@st.composite
def aps_row(draw: st.DrawFn) -> dict:
    question = draw(FULL)
    states = [""]
    for _ in range(draw(st.integers(1, 5))):
        states.append(draw(st.sampled_from(states)) + draw(TEXT))
    value = st.none() | st.floats(0, 1)
    entries = [
        {"solution_prefix": question + state, "mc_value": draw(value), **draw(MORE)}
        for state in draw(st.permutations(states))
    ]
    return {
        "question": question,
        "final_answer": draw(st.none() | TEXT),
        "reasoning_steps": entries,
        **draw(MORE),
    }


@settings(max_examples=25, deadline=None)
@given(st.lists(aps_row(), max_size=3))
def test_math_aps_rows(rows: list[dict]):
    with tempfile.TemporaryDirectory() as folder:
        report = ReadReport()
        items = list(read_math_aps(lines(Path(folder) / "m.jsonl", *rows), report=report))
        bad = {number for number, _ in report.bad}
    good = [row for number, row in enumerate(rows, start=1) if number not in bad]
    assert len({item.trace.id for item in items}) == len(items)
    values = [label.value for item in items for label in item.labels]
    roots = {item.trace.meta["row"]: [root["value"] for root in item.trace.meta["roots"]] for item in items}
    values += [value for row in roots.values() for value in row]
    assert Counter(values) == Counter(entry["mc_value"] for row in good for entry in row["reasoning_steps"])
