"""The audit of a policy against a solver whose rates are known exactly, and the looks of traces."""

from __future__ import annotations

import asyncio
import math

import pytest
from fixed_scorer import FixedScorer

from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import Difficulty, ExactLabeller, generate_problems, parse_problem
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import LabelError, PolicyError, ScoreError
from surefoot.models.kinds.derived import LabelScorer
from surefoot.protocols import Sampling
from surefoot.records import Problem, StepLabel, Trace, Usage
from surefoot.rl.log import Shape
from surefoot.rl.rollouts import Task, audit_policy, shape_of
from surefoot.segment import Line, segment_trace

RATE = 0.12
SOLVER = NoisySolver(error_rate=RATE)
PROBLEMS = generate_problems(
    60, seed=3, difficulty=Difficulty(min_operations=2, max_operations=6, operations="+-**")
)
OPERATIONS = [len(parse_problem(problem.text).operations) for problem in PROBLEMS]
CLEAN = [(1 - RATE) ** count for count in OPERATIONS]
"""Chance of a trace without a wrong step, which is right."""
TRAINING = [Problem(text="not held out")]
CHECKER = LabelScorer(ExactLabeller(after_error="step"), name="exact")


def audit(policy=SOLVER, problems=PROBLEMS, **fields):
    settings = {
        "update": 5,
        "samples": 80,
        "n": 12,
        "seed": 1,
        "sampling": Sampling(max_tokens=200),
    } | {name: fields.pop(name) for name in ("n", "seed") if name in fields}
    grader = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
    task = Task(problems=TRAINING, held_out=problems, segmenter=Line(), grader=grader, **fields)
    return asyncio.run(audit_policy(policy, task, **settings))


def mean(values):
    return math.fsum(values) / len(values)


def contains(interval, truth):
    return interval.low <= truth <= interval.high and interval.low <= interval.value <= interval.high


def test_intervals_contain_what_is_known_of_the_solver():
    row, traces = audit(scorer=CHECKER, gold=ExactLabeller())
    right = [SOLVER.value(problem) for problem in PROBLEMS]
    assert contains(row.accuracy, mean(right))
    assert contains(row.proxy, mean(CLEAN))  # the lowest score is 1 where no step is wrong, else 0
    lucky = 1 - math.fsum(CLEAN) / math.fsum(right)
    assert lucky > 0.05  # multiplying forgives: there is something to find
    assert contains(row.trace_error, lucky)
    assert row.accuracy.high - row.accuracy.low < 0.2
    assert row.shape.steps == pytest.approx(mean(OPERATIONS) + 1)
    assert (row.update, row.samples, row.problems, row.shape.traces) == (5, 80, 60, 720)
    assert (row.failed, row.ungraded, row.unscored, row.unjudged) == (0, 0, 0, 0)
    assert row.shape.finished == 1
    assert len(traces) == 720
    assert row.accuracy.value == pytest.approx(mean([bool(trace.outcome) for trace in traces]))


def test_the_proxy_can_be_a_sum():
    """A right step counts 1, and the answer line is always right."""
    row, _ = audit(scorer=CHECKER, aggregation="sum")
    assert contains(row.proxy, mean([1 + (1 - RATE) * count for count in OPERATIONS]))


def test_nothing_is_made_up_without_judges():
    row, _ = audit(n=2)
    assert row.proxy is None
    assert row.trace_error is None


def test_equal_seeds_give_equal_rows():
    settings = {"n": 3, "scorer": CHECKER, "gold": ExactLabeller()}
    assert audit(**settings) == audit(**settings)
    assert audit(**settings)[0].accuracy != audit(seed=2, **settings)[0].accuracy


def test_a_solver_without_faults_has_no_trace_error():
    row, _ = audit(NoisySolver(error_rate=0.0), n=2, scorer=CHECKER, gold=ExactLabeller())
    assert (row.accuracy.value, row.proxy.value, row.trace_error.value) == (1, 1, 0)


def test_without_a_right_answer_the_trace_error_is_unknown():
    row, _ = audit(ScriptedPolicy(lambda *_: "Answer: x\n"), PROBLEMS[:3], n=2, gold=ExactLabeller())
    assert row.accuracy.value == 0
    assert row.trace_error is None


def test_samples_that_did_not_come_are_counted_and_nothing_else():
    missing = {problem.text for problem in PROBLEMS[:2]}

    def fail(request):
        return "server: gone" if request.prompt.strip() in missing else None

    row, traces = audit(
        ScriptedPolicy(lambda request, sample: "" if sample else "1 + 1 = 2\n", fail=fail), PROBLEMS[:6], n=2
    )
    assert (row.failed, row.problems, row.shape.traces, len(traces)) == (4, 4, 8, 8)
    assert row.accuracy.value == 0  # writing nothing is a wrong answer
    assert row.shape.steps == 0.5
    with pytest.raises(PolicyError, match="server: gone"):
        audit(ScriptedPolicy(lambda *_: "", fail=lambda _: "server: gone"), PROBLEMS[:2], n=2)


def test_answers_that_cannot_be_graded_are_left_out_and_counted():
    nameless = Problem(text="Start with 1. Add 1. Add 1.")
    row, _ = audit(NoisySolver(error_rate=0.0), [*PROBLEMS[:2], nameless], n=2)
    assert (row.ungraded, row.problems, row.accuracy.value) == (2, 2, 1)
    with pytest.raises(LabelError, match="'answer'"):
        audit(SOLVER, [nameless], n=2)


def test_traces_without_a_whole_score_are_left_out_and_counted():
    problem = Problem(text="q", answer="1")
    texts = ("a\nb\n", "c\n", "Answer: 1\n", "")
    scorer = FixedScorer({"a\nb\n": (0.2, None), "c\n": (0.4,), "Answer: 1\n": (0.8,), "": ()}, name="fixed")
    policy = ScriptedPolicy(lambda request, sample: texts[sample])
    row, _ = audit(policy, [problem], n=4, scorer=scorer)
    assert row.proxy.value == pytest.approx(0.6)
    assert row.unscored == 2
    assert row.usage.verifier_tokens == 30  # the empty solution is not read


class Silent:
    """Knows nothing of the steps of answers to ``q1``, and of none to ``q2`` that there is an error."""

    async def label(self, items):
        return [
            [
                StepLabel(
                    trace_id=item.trace.id,
                    step=step,
                    kind="correctness",
                    value=None if item.problem.text == "q1" else 1,
                    reason="unknown",
                    source="silent",
                )
                for step in range(len(item.trace.steps))
            ]
            for item in items
        ]


def test_right_answers_that_cannot_be_judged_are_counted():
    problems = [Problem(text=f"q{n}", answer="1") for n in (1, 2)]
    row, _ = audit(ScriptedPolicy(lambda *_: "Answer: 1\n"), problems, n=3, gold=Silent())
    assert (row.unjudged, row.trace_error.value) == (3, 0)


def test_a_scorer_that_loses_traces_is_refused():
    class Lossy:
        def score_traces(self, items):
            return []

    with pytest.raises(ScoreError, match="0 records for 4 traces"):
        audit(problems=PROBLEMS[:2], n=2, scorer=Lossy())


def trace(text, *, tokens=0, finish="stop"):
    whole = Trace(problem_id="p", text=text, finish_reason=finish, usage=Usage(completion_tokens=tokens))
    return segment_trace(whole, Line())


def test_shape_in_closed_form():
    """Ten steps; one of two traces was cut."""
    found = shape_of(
        [
            trace("7 + 3 = 0\n...\n7  + 3 = 0\n---\n7 + 3 = 0 \nAnswer: 0\n", tokens=30),
            trace("Now 1\n7 + 3 = 0\nNow 2\nNow 1\n", tokens=10, finish="length"),
        ]
    )
    assert found == Shape(traces=2, tokens=20, steps=5, finished=0.5)


def test_shape_of_nothing():
    assert shape_of([]) == Shape()
    assert shape_of([trace("")]) == Shape(traces=1, tokens=0, steps=0, finished=1)
