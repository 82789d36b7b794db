"""Predicted costs against what labelling then costs, where the policy's behaviour is known."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.labels.simulated import predict
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import LabelError
from surefoot.lab.solver import NoisySolver
from surefoot.lab.world import Difficulty, generate_problems
from surefoot.labelling.monte_carlo import MonteCarloLabeller, MonteCarloSettings
from surefoot.labelling.omegaprm import OmegaPRMLabeller, TreeSettings
from surefoot.policies.episodes import sample_traces
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import ProblemTrace
from surefoot.records import Usage
from surefoot.segment import Line

GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
# additions alone: no error is ever forgotten, so a wrong step is a wrong answer unless a second one mends it
SOLVER = NoisySolver(error_rate=0.1)


@pytest.fixture(scope="module")
def items():
    problems = generate_problems(60, seed=8, difficulty=Difficulty(operations="+-"))
    sampled = asyncio.run(sample_traces(SOLVER, problems, n=2, seed=2, segmenter=Line(), grader=GRADER))
    return [
        ProblemTrace(problem=problem, trace=trace)
        for problem, traces in zip(problems, sampled, strict=True)
        for trace in traces
    ]


def monte_carlo(settings):
    settings = settings.model_copy(update={"own_outcome": "never"})
    return lambda policy, grader: MonteCarloLabeller(policy=policy, grader=grader, settings=settings)


def spent(items, build):
    rows = asyncio.run(build(SOLVER, GRADER).label(items))
    labels = [label for row in rows for label in row]
    usage = sum((label.evidence.usage for label in labels), Usage())
    return usage, sum(label.value is not None for label in labels)


@pytest.mark.parametrize(
    ("settings", "within"),
    [
        (MonteCarloSettings(rollouts=4), 0.1),
        (MonteCarloSettings(estimate="hard", rollouts=4), 0.35),
        (MonteCarloSettings(estimate="hard", rollouts=4, order="bisect"), 0.5),
        (MonteCarloSettings(estimate="sequential", rollouts=16, order="bisect"), 0.5),
    ],
)
def test_tokens_and_labels_are_foreseen(items, settings, within):
    build = monte_carlo(settings)
    foreseen = predict(items, build, prompt=PromptFormat(), luck=0.11)
    usage, labels = spent(items, build)
    assert foreseen.usage.tokens == pytest.approx(usage.tokens, rel=within)
    assert foreseen.labels == pytest.approx(labels, rel=0.15)
    assert foreseen.traces == len(items)


def test_it_is_the_same_every_time_and_takes_part_of_the_traces_for_all(items):
    build = monte_carlo(MonteCarloSettings(rollouts=2))
    whole = predict(items, build, prompt=PromptFormat())
    assert whole == predict(items, build, prompt=PromptFormat())
    part = predict(items, build, prompt=PromptFormat(), at_most=30)
    assert part.traces == 30
    assert part.usage.tokens == pytest.approx(whole.usage.tokens, rel=0.15)
    assert "30 traces" in part.summary()


def test_a_tree_search_is_played_through(items):
    def build(policy, grader):
        settings = TreeSettings(rollouts=4, search_limit=3)
        return OmegaPRMLabeller(policy=policy, grader=grader, segmenter=Line(), settings=settings)

    foreseen = predict(items, build, prompt=PromptFormat())
    assert foreseen.usage.completion_tokens > 0
    assert foreseen.usage.calls > len({item.problem.id for item in items})


def test_traces_that_nobody_judged_foretell_nothing(items):
    unjudged = [
        ProblemTrace(problem=item.problem, trace=item.trace.model_copy(update={"outcome": None}))
        for item in items
    ]
    with pytest.raises(LabelError, match="no trace has an 'outcome'"):
        predict(unjudged, monte_carlo(MonteCarloSettings()), prompt=PromptFormat())
