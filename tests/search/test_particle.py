import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import (
    STEPS,
    HashScorer,
    ScriptedPolicy,
    Watched,
    chance,
    full_tree,
    in_space,
    problems,
    random_solver,
    searched,
)

from surefoot.errors import ScoreError
from surefoot.search import BeamSearch, ParticleFilter, Steps
from surefoot.search.particle import log_weight, normalised, resample

[QUESTION] = problems(1)
SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=10)


def test_weights_are_odds():
    assert normalised([log_weight(0.5), log_weight(0.9)]) == pytest.approx([0.1, 0.9])
    assert normalised([log_weight(0.3)] * 4) == pytest.approx([0.25] * 4)


@given(scores=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=10))
def test_weights_are_in_proportion_to_the_odds(scores):
    odds = np.asarray([score / (1 - score) for score in scores])
    assert normalised([log_weight(score) for score in scores]) == pytest.approx(odds / odds.sum())


def test_certain_scores_have_finite_weights_and_missing_ones_none():
    assert log_weight(1.0) == pytest.approx(math.log(999999))
    assert log_weight(0.0) == pytest.approx(-math.log(999999))
    assert normalised([log_weight(1.0), log_weight(-math.inf)]) == pytest.approx([1, 0])
    assert normalised([log_weight(-math.inf)] * 2) == pytest.approx([0.5, 0.5])
    for wrong in (1.1, -0.1, math.nan, math.inf):
        with pytest.raises(ScoreError, match=r"scores in \[0, 1\]"):
            log_weight(wrong)


def test_resampling_is_unbiased():
    generator = np.random.default_rng(1)
    weights = [log_weight(score) for score in (0.2, 0.5, 0.8)]
    draws = Counter(k for _ in range(2000) for k in resample(weights, 5, generator))
    shares = np.asarray([draws[k] for k in range(3)]) / 10_000
    # three standard errors of a multinomial draw
    assert shares == pytest.approx(normalised(weights), abs=0.015)


def test_the_weightless_are_never_drawn():
    generator = np.random.default_rng(0)
    weights = [-math.inf, 0.0, -math.inf]
    assert resample(weights, 200, generator) == [1] * 200


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_number_of_particles_is_kept(n):
    policy = Watched(ScriptedPolicy(full_tree(3, 3)))
    [result] = searched(ParticleFilter(n=n), [QUESTION], policy, HashScorer())
    assert [sum(request.n for request in requests) for requests in policy.rounds] == [n] * 4
    assert sum(result.weights) == n


def test_one_particle_is_plain_sampling():
    policy, scorer = ScriptedPolicy(random_solver(depth=5)), HashScorer()
    [plain] = searched(BeamSearch(width=1, expand=1), [QUESTION], policy, HashScorer())
    [result] = searched(ParticleFilter(n=1), [QUESTION], policy, scorer)
    assert [c.text for c in result.candidates] == [c.text for c in plain.candidates]
    assert len(scorer.rounds) == 1


def test_finished_particles_keep_their_last_weight_and_may_be_copied():
    """One first step ends at once, with a score that all others lack: in the end it has all places."""

    def answer(request, sample):
        if not request.prefix and sample == 0:
            return "The answer is 7"
        return f"step {sample}\n" if request.prefix.count("\n") < 6 else "The answer is 8"

    scorer = HashScorer(lambda prefix: 0.9999 if "is 7" in prefix else 0.01)
    policy = Watched(ScriptedPolicy(answer))
    [result] = searched(ParticleFilter(n=6), [QUESTION], policy, scorer)
    assert [candidate.answer for candidate in result.candidates] == ["7"]
    assert result.weights == (6,)
    assert len(policy.rounds) == 1  # after the first resampling there is nothing left to write


def test_particles_follow_the_odds():
    """Two first steps with the scores .5 and .9: a tenth and nine tenths of the particles go on."""
    scorer = HashScorer(lambda prefix: 0.9 if prefix.startswith("step 0 is 1") else 0.5)
    items = problems(300)
    results = searched(ParticleFilter(n=2), items, ScriptedPolicy(full_tree(1, 2)), scorer)
    second = sum(
        weight
        for result in results
        for candidate, weight in zip(result.candidates, result.weights, strict=True)
        if candidate.text.startswith("step 0 is 1")
    )
    assert second / 600 == pytest.approx(0.9, abs=0.04)


def test_the_best_particle_or_one_drawn_by_weight():
    def answer(request, sample):
        return f"The answer is {sample % 2}"

    scorer = HashScorer(lambda prefix: 0.9 if prefix.endswith("1") else 0.5)
    items = problems(300)
    policy = ScriptedPolicy(answer)
    best = searched(ParticleFilter(n=2), items, policy, scorer)
    assert {result.answer for result in best} == {"1"}
    drawn = searched(ParticleFilter(n=2, rule="first"), items, policy, scorer)
    assert sum(result.answer == "1" for result in drawn) / 300 == pytest.approx(0.9, abs=0.05)
    assert all(len(result.candidates) == 2 for result in drawn)


def test_gibbs_keeps_its_reference_and_adds_particles():
    policy, scorer = ScriptedPolicy(random_solver(depth=4)), HashScorer()
    items = problems(10)
    for result in searched(ParticleFilter(n=4, sweeps=3), items, policy, scorer):
        assert sum(result.weights) == 12
        # what is handed on from a sweep to the next is found again
        assert max(result.weights) >= 2
    one = searched(ParticleFilter(n=4), items, policy, HashScorer())
    many = searched(ParticleFilter(n=4, sweeps=3), items, policy, HashScorer())
    assert all(a.values[a.chosen] <= b.values[b.chosen] for a, b in zip(one, many, strict=True))


def test_gibbs_draws_from_the_target():
    """With two one-step solutions of odds 1 and 9, each sweep's draw is the better one nine times in ten.

    Conditional resampling leaves this distribution as it is, whatever the number of particles.
    """

    def answer(request, sample):
        return f"The answer is {int(chance('coin', request.prompt, sample, request.seed) < 0.5)}"

    scorer = HashScorer(lambda prefix: 0.9 if prefix.endswith("1") else 0.5)
    search = ParticleFilter(n=3, sweeps=8, rule="first")
    results = searched(search, problems(400), ScriptedPolicy(answer), scorer)
    assert sum(result.answer == "1" for result in results) / 400 == pytest.approx(0.9, abs=0.045)


def test_a_reference_longer_than_max_steps_is_kept():
    steps = Steps(step_tokens=8, max_steps=2, sampling=STEPS.sampling)

    async def work(space):
        return [leaf.data.finish for leaf in await ParticleFilter(n=3, sweeps=3).explore(space)]

    scorer = HashScorer()
    assert in_space(work, ScriptedPolicy(full_tree(5, 2)), scorer, steps=steps) == ["stop"] * 9
    # in its third round it is at its end, as all others are
    scored = [item.trace for items in scorer.rounds for item in items]
    assert all(len(trace.steps) <= 2 or trace.finish_reason == "stop" for trace in scored)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, r"\bn\b"),
        ({"sweeps": 0}, "sweeps"),
        ({"sweeps": 2, "n": 1}, "above 1"),
        ({"sweeps": 2, "n": 1}, "'n' above 1"),
    ],
)
def test_impossible_numbers_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        ParticleFilter(**wrong)
