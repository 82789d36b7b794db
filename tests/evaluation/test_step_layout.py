"""Flat arrays of steps against the same numbers, made trace by trace."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surefoot.evaluation.columns import BAD, GOOD, UNLABELLED, UNREAD, StepLayout, StepRows, as_numbers
from surefoot.io.tables import Facts, facts_of, open_table
from surefoot.labels import first_error
from surefoot.records import Step, Trace

MEANING = {GOOD: True, BAD: False, UNREAD: None, UNLABELLED: None}
CODES = st.lists(st.lists(st.sampled_from(list(MEANING)), max_size=4), max_size=6)


@given(CODES)
def test_arrays_say_what_lists_of_each_trace_say(table):
    layout = StepLayout(Facts(f"t{n}", f"p{n % 2}", size=len(row)) for n, row in enumerate(table))
    codes = np.array([code for row in table for code in row], dtype=np.int8)
    good = [[MEANING[code] for code in row] for row in table]
    rows = StepRows(codes, layout)
    assert (len(rows), list(rows)) == (len(table), good)
    assert [rows[number] for number in range(-len(rows), len(rows))] == [*good, *good]
    expected = [math.nan if (error := first_error(row)) is None else error for row in good]
    np.testing.assert_array_equal(layout.first_errors(codes), expected)
    assert layout.step_numbers().tolist() == [step for row in table for step in range(len(row))]
    fifths = [5 * step // len(row) for row in table for step in range(len(row))]
    assert layout.parts(5).tolist() == fifths
    assert (layout.traces, layout.steps) == (len(table), len(codes))
    numbers = as_numbers(codes, bad=-1.0)
    np.testing.assert_array_equal(numbers, [{True: 1, False: -1}.get(g, math.nan) for r in good for g in r])
    scores = StepRows(numbers, layout)
    assert list(scores) == [[None if g is None else 2.0 * g - 1 for g in row] for row in good]


def test_problems_are_numbered_and_repeated_ids_are_known():
    layout = StepLayout([Facts("a", "q", 2), Facts("b", "p", 0), Facts("a", "q", 1)])
    assert layout.problem_ids == ["q", "p"]
    assert layout.problem.tolist() == [0, 1, 0]
    assert layout.repeated == [(0, 2)]
    assert layout.numbers == {"a": 0, "b": 1}
    assert [layout.span(number) for number in range(3)] == [(0, 2), (2, 2), (2, 3)]
    assert layout.of_step(layout.problem).tolist() == [0, 0, 0]


def test_the_layout_of_a_table_is_read_from_its_index(tmp_path):
    traces = [
        Trace(id=f"t{n}", problem_id="p", text="xx", steps=tuple(Step(start=s, end=s + 1) for s in range(n)))
        for n in range(3)
    ]
    table = open_table("traces", Trace, records=traces, folder=tmp_path)
    assert list(table.facts()) == [facts_of(trace) for trace in traces]
    table.data.unlink()
    assert StepLayout.of(table).numbers == StepLayout.of(traces).numbers
    assert StepLayout.of(table).lengths.tolist() == [0, 1, 2]
