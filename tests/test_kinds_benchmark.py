"""benchmarks/kinds.py: what its figures see, and a small run that is stopped and goes on."""

import json
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from surefoot.answers import AnswerChecker, Grader
from surefoot.evaluation.benchmarks.first_errors import processbench_f1
from surefoot.io.runs import Journal
from surefoot.lab.checkpoints import POLICY
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepLabel, StepPair, Trace
from surefoot.segment import Line, segment_trace

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import _kinds_lab as lab
import _kinds_models as models
import kinds

SIZES = lab.Sizes(traces=(12, 20), test_problems=6, dev_problems=8, samples=2, epochs=1, shard=5, draws=10)


def split(*truths: list[float | None]) -> lab.Split:
    """Traces of one line a step, each of a problem of its own, with this truth."""
    items = []
    for number, truth in enumerate(truths):
        problem = Problem(text=f"problem {number}")
        trace = Trace(problem_id=problem.id, text="".join(f"line {step}\n" for step in range(len(truth))))
        items.append(ProblemTrace(problem=problem, trace=segment_trace(trace, Line())))
    return lab.Split(items=items, truth=list(truths))


def scores(of: lab.Split, *rows: list[float | None]) -> models.Scores:
    return {item.trace.id: tuple(row) for item, row in zip(of.items, rows, strict=True)}


def test_a_column_leaves_out_steps_after_the_first_error_and_counts_what_is_not_scored():
    held = split([1.0, 1.0], [1.0, -1.0, None], [-1.0, None], [1.0])
    given = scores(held, [0.9, 0.8], [0.7, 0.2, 0.1], [0.6, 0.1], [None])
    column = kinds.column({"dev": held, "test": held}, {}, given)
    np.testing.assert_array_equal(column.steps, [0.9, 0.8, 0.7, 0.2, 0.6, np.nan])
    assert column.hits.tolist() == [1, 1, 0, 0]
    assert column.unscored == 1
    whole = kinds.f1(column.hits, np.array([False, True, True, False]), np.arange(4))
    rows = list(given.values())
    assert whole == processbench_f1([list(row) for row in rows], held.firsts, 0.5).f1


def test_the_threshold_comes_from_the_development_traces():
    dev, test = split([1.0, 1.0], [1.0, -1.0]), split([1.0], [-1.0])
    column = kinds.column(
        {"dev": dev, "test": test}, scores(dev, [9.0, 8.0], [9.0, 5.0]), scores(test, [7.0], [6.0])
    )
    assert column.hits.tolist() == [1, 1]  # the cut is at 6.5, midway between 5 and 8


def test_a_trace_that_was_not_given_to_the_model_counts_in_nothing():
    held = split([1.0], [-1.0], [-1.0])
    given = scores(held, [0.9], [0.1], [0.8])
    last = held.items[-1].trace.id
    column = kinds.column({"dev": held, "test": held}, {}, {k: v for k, v in given.items() if k != last})
    assert column.unscored == 0
    assert kinds.f1(column.hits, np.array([False, True, True]), np.arange(3)) == 1
    assert kinds.auc(column.steps, np.array([1.0, -1.0, -1.0]), np.zeros(3, dtype=int)) == 1


def test_the_first_trace_of_each_problem():
    held = split([1.0], [1.0])
    twice = [*held.items, *held.items]
    assert lab.Split(items=twice, truth=held.truth * 2).heads() == held.items


def test_a_measure_is_the_mean_over_seeds_and_a_difference_is_paired():
    by = kinds.Metric(
        statistic=kinds.auc,
        field="steps",
        truth=np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0]),
        problems=[(0, "a"), (0, "a"), (0, "b"), (0, "b"), (1, "a"), (1, "a")],
        groups=np.zeros(6, dtype=int),
    )
    values = np.array([0.9, 0.5, 0.4, 0.1, 0.1, 0.2])
    interval, each = by.measure(values, 20)
    assert each == [0.75, 0.0]
    assert interval.value == 0.375
    same, _ = by.measure(values, 20, values)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    partly = np.where(np.arange(6) < 2, values, np.nan)  # seed 0, problem a: right above wrong
    _, gaps = by.measure(-partly, 20, values)
    assert gaps[0] == -1  # 0 against 1: the rival's steps that this one has not scored are left out


def test_rivals_are_compared_after_one_prefix_alone():
    held = split([1.0, 1.0], [1.0, -1.0])
    problem = held.items[0].problem
    texts = ("x\ny\n", "x\nz\n")  # one problem: the second steps are rivals, the first ones the same step
    traces = [segment_trace(Trace(problem_id=problem.id, text=text), Line()) for text in texts]
    items = [ProblemTrace(problem=problem, trace=trace) for trace in traces]
    truth = kinds.gather([lab.Split(items=items, truth=held.truth)])
    assert truth.prefixes.tolist() == [0, 1, 0, 1]
    by = kinds.metrics(truth)
    scores = np.array([0.1, 0.7, 0.1, 0.5])  # right first steps score low, but rival them only
    assert by["auc"].measure(scores, 5)[1] == [pytest.approx(1 / 3)]
    interval, each = by["rivals"].measure(scores, 5)
    assert (interval.value, interval.low, each) == (1, 1, [1])


def test_changes_and_sums_of_scores():
    row = (0.75, 0.5, None, 0.25)
    assert models.changes(row, 0.5) == (0.25, -0.25, None, None)
    # sigmoid(a) = 3/4 and sigmoid(b) = 1/4 are log odds that cancel
    assert models.summed((0.75, 0.25, None, 0.75)) == pytest.approx((0.75, 0.5, None, 0.75))
    assert models.summed((1.0, 1.0)) == (pytest.approx(1.0), pytest.approx(1.0))


def test_a_cell_of_the_table():
    one = {"value": 0.9541, "low": 0.9, "high": 0.99996, "seeds": [0.95, 0.96]}
    assert kinds.cell(one) == ".954 (.950 to .960) [.900, 1.000]"
    gap = {"value": -0.05, "low": -0.1, "high": 0.0, "seeds": [-0.05]}
    assert kinds.cell(gap, "+", seeds=False) == "-.050 [-.100, +.000]"
    assert kinds.cell({"value": np.nan, "low": np.nan, "high": np.nan, "seeds": [np.nan]}) == "undefined"


def test_an_odd_number_of_traces_is_refused():
    with pytest.raises(SystemExit, match="multiples of 2"):
        lab.Sizes(traces=(3,))


@pytest.fixture(scope="module")
def sampler():
    with AnswerChecker("exact") as checker:
        yield TransformersPolicy.from_pretrained(POLICY), Grader(checker=checker, styles=("phrase",))


def summary(out: Path, sampler) -> list[dict]:
    held, columns, _ = kinds.run_seed(0, out, SIZES, *sampler)
    return kinds.figures(kinds.gather([held]), {key: [one] for key, one in columns.items()}, SIZES)


def lose_piece(path: Path, record: type, lost: int) -> None:
    """Remove one piece from a journal."""
    pieces = dict(Journal(path, record).pieces())
    del pieces[lost]
    path.unlink()
    with closing(Journal(path, record)) as journal:
        for number, records in pieces.items():
            journal.write(number, records)


@pytest.mark.slow
def test_a_run_that_lost_pieces_goes_on_to_the_same_figures(tmp_path, sampler):
    whole = summary(tmp_path, sampler)
    names = {one["name"] for one in whole}
    assert {f"auc_{reading}_at_12" for reading in kinds.READINGS} <= names
    by_name = {one["name"]: one for one in whole}
    assert by_name["auc_exact_at_20"]["value"] > 0.6
    folder = tmp_path / "seed-0"
    lost = ["scores-pairwise-20-test.jsonl", "done/pairwise-20.json", "done/soft-12.json"]
    lost += ["scores-soft-12-dev.jsonl"]
    for name in lost:
        (folder / name).unlink()
    lose_piece(folder / "pieces/values.journal", StepLabel, 1)
    lose_piece(folder / "pieces/pairs.journal", StepPair, 0)
    assert kinds.plain(summary(tmp_path, sampler)) == kinds.plain(whole)
    json.dumps(kinds.plain(whole), allow_nan=False)
    assert all((folder / name).exists() for name in lost)
    kept = Journal(folder / "pieces/pairs.journal", StepPair)
    pairs = [pair for _, records in kept.pieces() for pair in records]
    assert all(pair.better_value > pair.worse_value for pair in pairs)
    assert pairs
    table = kinds.table(whole, SIZES.traces, "auc").splitlines()
    assert len(table) == 2 + len(kinds.READINGS)
    assert all(a.count("|") == b.count("|") for a, b in pairwise(table))
