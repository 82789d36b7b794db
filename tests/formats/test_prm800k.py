from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from surefoot.formats import read_prm800k, read_prm800k_steps
from surefoot.formats.rows import step_parts
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import StepLabel, Trace, content_id

DATA = Path(__file__).parents[2] / "../shared/data/prm800k"


def step(*rated: tuple[str, int | None], chosen: int | None = 0, human: object = None) -> dict:
    completions = [{"text": text, "rating": rating, "flagged": None} for text, rating in rated]
    return {"completions": completions or None, "human_completion": human, "chosen_completion": chosen}


def record(*steps: dict, finish: str = "solution", **question: object) -> dict:
    return {
        "labeler": "rater-1",
        "timestamp": "2022-07-30T23:23:32.118856",
        "generation": 6,
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {"problem": "q?", "ground_truth_answer": "29", **question},
        "label": {"steps": list(steps), "total_time": 1500, "finish_reason": finish},
    }


def read(tmp_path: Path, *records: object, report: ReadReport | None = None) -> list[LabelledTrace]:
    path = tmp_path / "raw.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in records))
    return list(read_prm800k(path, report=report))


def shape(item: LabelledTrace) -> tuple[str | None, list[tuple[int, float | None]]]:
    return item.trace.text, [(label.step, label.value) for label in item.labels]


def test_alternatives_branch_from_the_chosen_prefix_and_end_there(tmp_path: Path):
    items = read(
        tmp_path,
        record(
            step(("a", 1), ("A", -1)),
            step(("b", 0), ("B", 1), chosen=1),
            step(("c\n\n# Answer\n\n29", 1), ("C\n\n# Answer\n\n30", None)),
        ),
    )
    assert [shape(item) for item in items] == [
        ("a\nB\nc\n\n# Answer\n\n29", [(0, 1.0), (1, 1.0), (2, 1.0)]),
        ("A", [(0, -1.0)]),
        ("a\nb", [(1, 0.0)]),
        ("a\nB\nC\n\n# Answer\n\n30", [(2, None)]),
    ]
    assert [item.trace.meta["branch"] for item in items] == ["main"] + ["alternative"] * 3
    assert [item.trace.answer for item in items] == ["29", None, None, "30"]
    assert items[3].labels[0].reason == "not rated"
    assert len({item.trace.id for item in items}) == 4
    assert all(label.trace_id == item.trace.id for item in items for label in item.labels)


def test_who_when_and_why_are_kept(tmp_path: Path):
    (item,) = read(tmp_path, record(step(("a", 1)), pre_generated_verifier_score=0.25))
    label = item.labels[0]
    assert label.evidence.rater == "rater-1"
    assert label.created == datetime(2022, 7, 30, 23, 23, 32, 118856, tzinfo=UTC)
    assert (label.kind, label.source) == ("correctness", "human")
    assert item.trace.finish_reason == "solution"
    assert item.problem.answer == "29"
    expected = {"generation": 6, "pre_generated_verifier_score": 0.25, "total_time_ms": 1500.0}
    assert expected.items() <= item.trace.meta.items()


def test_found_error_with_nothing_chosen_ends_with_the_error(tmp_path: Path):
    steps = [step((text, 1)) for text in "ab"] + [step(("C", 1), ("c", -1), ("d", 1), chosen=None)]
    for question in ({"pre_generated_steps": ["a", "b", "c", "e"]}, {}):
        items = read(tmp_path, record(*steps, finish="found_error", **question))
        assert [shape(item) for item in items] == [
            ("a\nb\nc", [(0, 1.0), (1, 1.0), (2, -1.0)]),
            ("a\nb\nC", [(2, 1.0)]),
            ("a\nb\nd", [(2, 1.0)]),
        ]


def test_three_targets_up_to_an_error_at_step_three_of_six(tmp_path: Path):
    pre = list("abcdef")
    steps = [step(("a", 1)), step(("b", 1)), step(("c", -1), chosen=None)]
    (item,) = read(tmp_path, record(*steps, finish="found_error", pre_generated_steps=pre))
    assert [label.value for label in item.labels] == [1.0, 1.0, -1.0]
    assert len(item.trace.steps) == 3


@pytest.mark.parametrize(
    "human", [{"text": "mine", "rating": None, "source": "human", "flagged": False}, "mine"]
)
def test_the_labellers_own_step_continues_the_path_unrated(tmp_path: Path, human: object):
    items = read(tmp_path, record(step(("a", -1), ("b", -1), chosen=None, human=human), step(("c", 1))))
    assert [shape(item) for item in items] == [
        ("mine\nc", [(0, None), (1, 1.0)]),
        ("a", [(0, -1.0)]),
        ("b", [(0, -1.0)]),
    ]
    assert items[0].labels[0].reason == "written by the labeller, not rated"


def test_bad_records_are_counted(tmp_path: Path):
    bad = [
        record(finish="bad_problem"),
        record(step(("a", 2))),
        record(step(("a", 1), chosen=3)),
        record(step(("a", 1), chosen=None), step(("b", 1))),
        {**record(step(("a", 1))), "timestamp": "yesterday"},
        record(step(("a", 1)), problem=""),
    ]
    report = ReadReport()
    assert len(read(tmp_path, *bad, record(step(("a", 1))), report=report)) == 1
    reasons = [reason for _, reason in report.bad]
    assert reasons[0] == "field 'label.steps': no completion (finish_reason 'bad_problem')"
    assert reasons[1].startswith("field 'label.steps.0.completions.0.rating': a rating is -1, 0, 1 or null")
    assert reasons[2] == "field 'label.steps.0.chosen_completion': 3 is absent"
    assert reasons[3] == "field 'label.steps.0': nothing was chosen, but another step follows"
    assert reasons[4].startswith("field 'timestamp'")
    assert reasons[5].startswith("field 'text'")
    assert (report.good, report.bad_count) == (1, 6)


def test_what_is_made_without_validation_is_valid(tmp_path: Path):
    session = record(
        step(("a", 1), ("é 𝔸", 0), ("b", None)),
        step(("c", 1), ("d", -1), chosen=None, human="my own"),
        step(("e # Answer\n\n29", 1), ("f", -1)),
    )
    items = read(tmp_path, session)
    assert len(items) == 6
    for item in items:
        again = Trace.model_validate_json(item.trace.model_dump_json())
        assert again == item.trace
        for label in item.labels:
            assert StepLabel.model_validate_json(label.model_dump_json()) == label
    [where] = [item for item in items if item.trace.text == "a\nmy own\nf"]
    place = ("rater-1", "2022-07-30T23:23:32.118856", where.problem.id, [2, 1])
    assert where.trace.id == content_id("prm800k", "alternative", *place, ["a", "my own", "f"])


def test_traces_of_a_session_share_the_spans_of_their_prefix(tmp_path: Path):
    rows = [step((f"step {number}", 1), (f"other {number}", 0)) for number in range(40)]
    main, *others = read(tmp_path, record(*rows))
    for number, other in enumerate(others):
        assert len(other.trace.steps) == number + 1
        assert all(
            own is shared for own, shared in zip(other.trace.steps[:-1], main.trace.steps, strict=False)
        )


@pytest.mark.parametrize(
    ("where", "field"),
    [
        (lambda row: row, "extra"),
        (lambda row: row["label"]["steps"][0]["completions"][0], "label.steps.0.completions.0.extra"),
    ],
)
def test_a_number_that_is_none_is_refused_where_it_stands(tmp_path: Path, where, field: str):
    row = record(step(("a", 1)))
    where(row)["extra"] = {"deep": ["HUGE"]}
    path = tmp_path / "raw.jsonl"
    path.write_text(json.dumps(row).replace('"HUGE"', "1e999"))
    report = ReadReport()
    assert list(read_prm800k(path, report=report)) == []
    assert report.bad == [(1, f"field '{field}': contains NaN or an infinity")]


def row(prefix: str, text: str, rating: int | None, **flags: object) -> dict:
    return {
        "instruction": "q?",
        "responses": list(prefix),
        "next_response": text,
        "answer": None,
        "is_human_response": False,
        "is_solution": False,
        "is_preferred_response": False,
        "rating": rating,
        **flags,
    }


def read_steps(tmp_path: Path, *rows: dict) -> list[LabelledTrace]:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in rows))
    return list(read_prm800k_steps(path))


def test_step_rows_are_rebuilt_into_a_path_and_its_branches(tmp_path: Path):
    items = read_steps(
        tmp_path,
        row("", "a", 1, is_preferred_response=True),
        row("", "A", -1),
        row("", "A", -1),
        row("a", "b", None, is_preferred_response=True, is_human_response=True),
        row("ab", "c", -1),
        row("ab", "C", 1, is_preferred_response=True, is_solution=True, answer="7"),
        row("ab", "x", 0, answer="8", error_reason="why"),
    )
    assert [shape(item) for item in items] == [
        ("a\nb\nC", [(0, 1.0), (1, None), (2, 1.0)]),
        ("A", [(0, -1.0), (0, -1.0)]),
        ("a\nb\nc", [(2, -1.0)]),
        ("a\nb\nx", [(2, 0.0)]),
    ]
    assert [item.trace.answer for item in items] == ["7", None, None, "8"]
    assert items[0].trace.finish_reason == "solution"
    assert items[3].trace.meta["rows"][0]["error_reason"] == "why"
    assert [entry["row"] for entry in items[1].trace.meta["rows"]] == [2, 3]


def test_several_paths_share_their_prefix_but_not_its_labels(tmp_path: Path):
    items = read_steps(
        tmp_path, row("", "a", 1), row("a", "b", 1), row("a", "c", 0), row("ab", "d", -1), row("ac", "e", 1)
    )
    assert [shape(item) for item in items] == [
        ("a\nb\nd", [(0, 1.0), (1, 1.0), (2, -1.0)]),
        ("a\nc\ne", [(1, 0.0), (2, 1.0)]),
    ]


def test_contradicting_ratings_stay_side_by_side(tmp_path: Path):
    (item,) = read_steps(tmp_path, row("", "a", 1), row("", "a", -1))
    assert [label.value for label in item.labels] == [1.0, -1.0]


def test_a_prefix_that_no_row_rates_is_taken_as_given(tmp_path: Path):
    (item,) = read_steps(tmp_path, row("ab", "c", 1))
    assert shape(item) == ("a\nb\nc", [(2, 1.0)])


def test_a_row_on_the_way_of_a_path_with_a_gap_is_one_label(tmp_path: Path):
    items = read_steps(tmp_path, row("", "a", 1), row("", "b", -1), row("ac", "d", 1), row("bc", "d", 0))
    assert [shape(item) for item in items] == [
        ("b", [(0, -1.0)]),
        ("a\nc\nd", [(0, 1.0), (2, 1.0)]),
        ("b\nc\nd", [(2, 0.0)]),
    ]


def as_value(rating: int | None) -> float | None:
    return None if rating is None else float(rating)


def rated(items: list[LabelledTrace]) -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """Problem, prefix, step and rating of each label."""
    for item in items:
        parts = step_parts(item.trace)
        for label in item.labels:
            yield item.problem.text, tuple(parts[: label.step]), parts[label.step], repr(label.value)


@pytest.mark.skipif(not DATA.exists(), reason="the shared data set is not here")
def test_real_step_rows_are_each_one_label():
    path = DATA / "phase1_test.jsonl.gz"
    report = ReadReport()
    items = list(read_prm800k_steps(path, report=report))
    assert (report.good, report.bad_count) == (5449, 0)
    assert sum(len(item.labels) for item in items) == 5449
    assert sum(item.trace.meta["branch"] == "main" for item in items) == 101
    assert len({item.problem.id for item in items}) == 101
    assert len({item.trace.id for item in items}) == len(items)
    with gzip.open(path) as stream:
        rows = [json.loads(line) for line in stream]
    assert sorted(rated(items)) == sorted(
        (item["instruction"], tuple(item["responses"]), item["next_response"], repr(as_value(item["rating"])))
        for item in rows
    )
    given = {(item["instruction"], *item["responses"], item["next_response"]) for item in rows}
    for item in items:
        parts = step_parts(item.trace)
        assert all((item.problem.text, *parts[: end + 1]) in given for end in range(len(parts)))


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the shared data set is not here")
def test_real_training_rows_are_each_one_label():
    report = ReadReport()
    items = list(read_prm800k_steps(DATA / "phase1_test.jsonl.gz", report=report))
    assert (report.good, report.bad_count) == (5449, 0)
    assert sum(len(item.labels) for item in items) == 5449
    assert sum(item.trace.meta["branch"] == "main" for item in items) == 101  # one a problem


@pytest.mark.skipif(not DATA.exists(), reason="the shared data set is not here")
def test_real_raw_records():
    path = DATA / "openr_samples_prm800k.jsonl.gz"
    with gzip.open(path) as stream:
        records = [json.loads(line) for line in stream]
    completions = sum(
        len(step["completions"] or []) + (step["human_completion"] is not None)
        for record in records
        for step in record["label"]["steps"]
    )
    items = list(read_prm800k(path))
    assert sum(len(item.labels) for item in items) == completions
    main = [item for item in items if item.trace.meta["branch"] == "main"]
    assert len(main) == len(records) == 6
    assert [label.value for label in main[1].labels] == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, -1.0]
    assert main[0].trace.answer == "29"
