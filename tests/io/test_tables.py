"""Tables and joins on disk against lists in memory."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import RecordError
from surefoot.io import ReadReport, write_records
from surefoot.io.tables import RecordTable, join_traces, open_table
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import cut_trace

PROBLEMS = [Problem(id=f"p{number}", text=f"What is {number}?", answer=str(number)) for number in range(4)]


def trace(problem: str, sample: int, text: str = "one\n\ntwo") -> Trace:
    return cut_trace(Trace(problem_id=problem, sample=sample, text=text))


def label(trace_id: str, step: int) -> StepLabel:
    return StepLabel(trace_id=trace_id, step=step, kind="correctness", value=1, source="test")


def table(path, records, record):
    write_records(path, records)
    return open_table(path, record)


@pytest.mark.parametrize("spooled", [False, True])
def test_a_table_is_the_list_of_its_records(tmp_path, spooled):
    traces = [trace(f"p{number % 4}", number, f"a {number}\n\nb" * (number + 1)) for number in range(50)]
    path = tmp_path / "traces.jsonl"
    write_records(path, traces)
    made = open_table(path, Trace, records=iter(traces) if spooled else None)
    assert isinstance(made, RecordTable)
    assert (len(made), list(made)) == (50, traces)
    for part in (slice(None), slice(3, 9), slice(45, 99), slice(-5, None), slice(20, 4), slice(0, 50, 7)):
        assert made[part] == traces[part]
    assert (made[0], made[-1], made[17]) == (traces[0], traces[-1], traces[17])
    with pytest.raises(IndexError, match="50 is not among 50"):
        made[50]
    assert made.find(traces[13].id) == [traces[13]]
    assert made.find("nobody") == []
    assert made.find_many([traces[40].id, "nobody", traces[2].id]) == {
        traces[at].id: [traces[at]] for at in (2, 40)
    }
    by_problem = [[one for one in traces if one.problem_id == f"p{number}"] for number in range(4)]
    assert list(made.groups()) == by_problem


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=30))
def test_labels_are_found_wherever_they_lie(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("labels")
    given_labels = [label(key, step) for key, step in rows]
    made = table(folder / "labels.jsonl", given_labels, StepLabel)
    labels = list({one.model_dump_json(): one for one in given_labels}.values())  # equal ones are there once
    assert made.repeated == len(rows) - len(labels)
    assert list(made) == labels
    for key in "abcd":
        assert made.find(key) == [one for one in labels if one.trace_id == key]
    assert made.find_many("abcd") == {key: made.find(key) for key in "abcd" if made.find(key)}
    for start in range(len(labels)):
        assert made[start : start + 3] == labels[start : start + 3]


def test_bad_lines_are_counted_and_part_their_neighbours(tmp_path):
    path = tmp_path / "labels.jsonl"
    good = [label("a", step).model_dump_json() for step in range(3)]
    path.write_text(f"\ufeff{good[0]}\n\n  {good[1]}  \nnot JSON\n{good[2]}", "utf-8")
    report = ReadReport()
    made = open_table(path, StepLabel, report=report)
    assert [one.step for one in made] == [0, 1, 2]
    assert (report.good, report.bad_count, report.bad[0][0]) == (3, 1, 4)
    with pytest.raises(RecordError, match="line 4: not JSON"):
        open_table(path, StepLabel)


def test_a_trace_that_comes_twice_is_there_once(tmp_path):
    traces = [trace("p0", 0), trace("p0", 1), trace("p1", 0)]
    made = table(tmp_path / "t.jsonl", [traces[0], traces[0], traces[1], traces[2], traces[1]], Trace)
    assert (list(made), made.repeated, made[1:]) == (traces, 2, traces[1:])
    other = traces[0].model_copy(update={"text": "other\n\ntext", "steps": ()})
    with pytest.raises(RecordError, match="two different traces have the id"):
        table(tmp_path / "t.jsonl", [traces[0], other], Trace)
    copy = PROBLEMS[0].model_copy(update={"source": "elsewhere"})
    assert list(table(tmp_path / "p.jsonl", [PROBLEMS[0], copy], Problem)) == PROBLEMS[:1]
    with pytest.raises(RecordError, match="two different problems have the id 'p0'"):
        table(tmp_path / "p.jsonl", [PROBLEMS[0], PROBLEMS[1].model_copy(update={"id": "p0"})], Problem)


def test_a_file_that_shrinks_is_noticed(tmp_path):
    made = table(tmp_path / "t.jsonl", [trace("p0", number) for number in range(3)], Trace)
    (tmp_path / "t.jsonl").write_text("")
    with pytest.raises(RecordError, match=r"t\.jsonl is shorter than when it was opened"):
        list(made)


def joined(tmp_path):
    traces = [trace("p1", 0), trace("p9", 0), trace("p0", 0), trace("p1", 1)]
    traces += [Trace(problem_id="p2", text="to\n\ncut"), Trace(problem_id="p2", text=" ", sample=1)]
    tables = table(tmp_path / "p.jsonl", PROBLEMS, Problem), table(tmp_path / "t.jsonl", traces, Trace)
    return traces, *join_traces(*tables, cut_trace)


def test_a_join_leaves_out_and_says_what(tmp_path):
    traces, items, left_out = joined(tmp_path)
    assert [(item.problem.id, item.trace.id) for item in items] == [
        (one.problem_id, one.id) for one in (traces[0], traces[2], traces[3], traces[4])
    ]
    assert items[0].problem == PROBLEMS[1]
    assert [item.trace.step_text(1) for item in items[2:]] == ["two", "cut"]
    assert list(items.problem_ids()) == ["p1", "p0", "p1", "p2"]
    assert (left_out.orphans, left_out.first_orphan) == (1, (traces[1].id, "p9"))
    assert (left_out.stepless, left_out.first_stepless) == (1, traces[5].id)
    assert (left_out.cut, left_out.new_steps) == (1, 2)
    some = items.where(lambda item: item.problem.id == "p1")
    assert [item.trace for item in some] == [traces[0], traces[3]]
    assert len(some.where(lambda item: item.trace.sample == 1)) == 1


def test_labels_join_their_traces(tmp_path):
    traces, items, _ = joined(tmp_path)
    labels = [label(traces[0].id, 0), label("nobody", 0), label(traces[3].id, 1), label(traces[0].id, 1)]
    made = items.labelled(table(tmp_path / "l.jsonl", labels, StepLabel))
    assert [item.labels for item in made] == [(labels[0], labels[3]), (), (labels[2],), ()]
    assert made.strays == 1
    assert [len(item.labels) for item in made.where(lambda item: bool(item.labels))] == [2, 1]


def ids_between(items, start, stop):
    return [item.trace.id for item in items[start:stop]]


def test_what_travels_to_another_process_is_small(tmp_path):
    traces, items, _ = joined(tmp_path)
    assert len(pickle.dumps(items)) < 1500
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        read = pool.submit(ids_between, items, 1, 3).result(60)
    assert read == [traces[2].id, traces[3].id] == ids_between(items, 1, 3)


def test_digests_are_of_the_content(tmp_path):
    _, items, _ = joined(tmp_path)
    before = items.digest
    (tmp_path / "again").mkdir()
    _, again, _ = joined(tmp_path / "again")
    assert again.digest == before
    write_records(tmp_path / "p.jsonl", PROBLEMS[:3])
    tables = open_table(tmp_path / "p.jsonl", Problem), open_table(tmp_path / "t.jsonl", Trace)
    assert join_traces(*tables, cut_trace)[0].digest != before
