"""The log: a round trip, the curves it writes, rollouts for reading, samples to an accuracy."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rl_logs import evaluation_row, healthy_log, update_row

from surefoot.errors import RecordError
from surefoot.io import read_records
from surefoot.records import Problem, Step, Trace, Usage
from surefoot.rl.log import Guards, RLLog, SampleRow, UpdateRow, samples_to, scalars, watch
from surefoot.stats.intervals import Interval


def test_the_log_survives_json():
    log = healthy_log()
    log.updates += [update_row(21, tokens=100, entropy=None), UpdateRow(update=22, samples=176)]
    log.evaluations += [evaluation_row(30, 0.1), evaluation_row(35, 0.1)]
    log.alarms = watch(log.evaluations, Guards())
    log.stopped = "alarm"
    assert log.alarms
    assert RLLog.model_validate_json(log.model_dump_json()) == log
    assert RLLog.model_validate(json.loads(json.dumps(log.model_dump(mode="json")))) == log


def test_best_is_the_first_of_the_highest():
    log = RLLog(evaluations=[evaluation_row(0, 0.2), evaluation_row(5, 0.6), evaluation_row(9, 0.6)])
    assert log.best == log.evaluations[1]
    assert RLLog().best is None


def test_usage_is_of_training_and_evaluation():
    row = evaluation_row(0, 0.5).model_copy(update={"usage": Usage(completion_tokens=5)})
    update = update_row(1).model_copy(update={"usage": Usage(completion_tokens=2, verifier_tokens=3)})
    assert RLLog(updates=[update], evaluations=[row]).usage == Usage(completion_tokens=7, verifier_tokens=3)


def test_curves_are_flat_rows_in_order_of_time(tmp_path):
    log = healthy_log()
    path = tmp_path / "new" / "curves.jsonl"
    log.write_curves(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == len(log.updates) + len(log.evaluations)
    assert [(row["kind"], row["update"]) for row in rows[:7]] == [
        ("evaluation", 0), *(("update", n) for n in range(1, 6)), ("evaluation", 5)
    ]  # fmt: skip
    assert rows[0]["accuracy_low"] == log.evaluations[0].accuracy.low
    assert rows[1]["shape_tokens"] == log.updates[0].shape.tokens
    assert rows[1]["seconds_generation"] == 2.0
    assert all(not isinstance(value, dict | list) for row in rows for value in row.values())
    assert [one.name for one in path.parent.iterdir()] == ["curves.jsonl"]  # nothing unfinished beside it


def test_what_is_unknown_is_left_out():
    found = scalars(UpdateRow(update=1, samples=8, shape=update_row(1, steps=None).shape))
    assert "loss" not in found
    assert "shape_steps" not in found
    assert found["failed"] == 0


def test_samples_to_an_accuracy():
    rows = [evaluation_row(n, a) for n, a in ((0, 0.2), (10, 0.4), (20, 0.3), (30, 0.7), (40, 0.5))]
    assert samples_to(rows, 0.1) == 0
    assert samples_to(rows, 0.2) == 0
    assert samples_to(rows, 0.3) == pytest.approx(40)  # half way to 80
    assert samples_to(rows, 0.4) == pytest.approx(80)
    assert samples_to(rows, 0.5) == pytest.approx(160 + 40)  # first reached between 160 and 240, half way up
    assert samples_to(rows, 0.71) is None
    assert samples_to([], 0.5) is None


@given(st.dictionaries(st.integers(0, 1000), st.integers(0, 8), min_size=1, max_size=8), st.integers(0, 8))
def test_samples_to_against_a_fine_grid(eighths, goal):
    curve = {at: value / 8 for at, value in eighths.items()}
    at = sorted(curve)
    row = evaluation_row(0, 0.5)
    rows = [
        row.model_copy(update={"samples": x, "accuracy": Interval(value=y, low=y, high=y)})
        for x, y in curve.items()
    ]
    found = samples_to(rows, goal / 8)
    if found is None:
        assert max(curve.values()) < goal / 8
        return
    before = [x for x in at if x < found]
    assert all(curve[x] < goal / 8 for x in before)
    after = min(x for x in at if x >= found)
    low = before[-1] if before else after
    share = (found - low) / (after - low) if after > low else 0.0
    reached = curve[low] + share * (curve[after] - curve[low])
    assert reached == pytest.approx(goal / 8) or (found == at[0] and reached >= goal / 8)


def sample_row(text="7 + 3 = 0\n\u2028\x85 odd\n"):
    problem = Problem(text="Start with 7. Add 3.", answer="0")
    half = len(text) // 2
    trace = Trace(
        problem_id=problem.id, text=text, steps=(Step(start=0, end=half), Step(start=half, end=len(text)))
    )
    return SampleRow(update=3, problem=problem, trace=trace, scores=(0.5, None), advantages=(0.1, -0.1))


def test_samples_are_read_line_by_line(tmp_path):
    path = tmp_path / "000003.jsonl"
    rows = [sample_row(), sample_row("a\rb")]
    path.write_bytes(b"".join(row.model_dump_json().encode() + b"\n" for row in rows))
    assert list(read_records(path, SampleRow)) == rows
    with path.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(RecordError, match=r"000003\.jsonl, line 3"):
        list(read_records(path, SampleRow))
