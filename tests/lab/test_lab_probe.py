"""The content probe, on scorers whose taste is known."""

from __future__ import annotations

import pytest

from surefoot.errors import RecordError, ScoreError
from surefoot.lab.probe import content_probe
from surefoot.lab.world import ArithmeticChain, check_steps, generate_problems, parse_problem
from surefoot.records import Problem, StepScores

PROBLEMS = generate_problems(10, seed=2)
LINES = sum(len(parse_problem(problem.text).operations) for problem in PROBLEMS)


class Scorer:
    """Gives the last step ``rule(problem, trace)`` and all others a half."""

    def __init__(self, rule):
        self.rule = rule

    def score_traces(self, items):
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer="toy",
                scores=(0.5,) * (len(item.trace.steps) - 1) + (self.rule(item.problem, item.trace),),
                unscored_reason="too long",
            )
            for item in items
        ]


def last(trace):
    return trace.step_text(len(trace.steps) - 1)


def check(problem, trace):
    return float(check_steps(problem, trace)[-1].value > 0)


def test_a_scorer_that_checks_the_line_is_always_right():
    result = content_probe(Scorer(check), PROBLEMS)
    assert (result.right, result.contrast, result.lines) == (1.0, 1.0, LINES)


def test_a_scorer_that_prefers_wrong_lines_is_never_right():
    result = content_probe(Scorer(lambda *item: 1 - check(*item)), PROBLEMS)
    assert (result.right, result.contrast) == (0.0, -1.0)


@pytest.mark.parametrize(
    "rule",
    [
        lambda problem, trace: 0.9,
        lambda problem, trace: 1 / (1 + len(trace.steps)),  # position alone
        lambda problem, trace: int(last(trace)[0]) / 10,  # the line, but not its result
        lambda problem, trace: 1.0 - 0.5 * ("*" in last(trace)),  # risk alone
    ],
)
def test_a_scorer_that_ignores_the_digit_prefers_none(rule):
    result = content_probe(Scorer(rule), PROBLEMS)
    assert result.right == 0.0  # ties are no preference
    assert result.contrast == pytest.approx(0.0, abs=1e-12)


def test_a_taste_for_one_digit_is_right_where_that_digit_is():
    chain = ArithmeticChain(
        start=0, operations=(("+", 3), ("+", 3), ("-", 3), ("*", 1))
    )  # results 3, 6, 3, 3
    result = content_probe(
        Scorer(lambda problem, trace: float(last(trace).endswith("3\n"))), [Problem(text=chain.text)]
    )
    assert (result.right, result.lines) == (0.75, 4)
    assert result.contrast == pytest.approx((3 * 1.0 - 1 / 9) / 4)


def test_what_cannot_be_probed_is_an_error():
    with pytest.raises(ScoreError, match="at least one problem"):
        content_probe(Scorer(check), [])
    with pytest.raises(ScoreError, match="too long"):
        content_probe(Scorer(lambda *item: None), PROBLEMS)
    with pytest.raises(RecordError, match="not a problem"):
        content_probe(Scorer(check), [Problem(text="What is love?")])
