import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_search import (
    STEPS,
    HashScorer,
    ScriptedPolicy,
    Watched,
    chance,
    full_tree,
    problems,
    random_solver,
    searched,
)

from surefoot.policies import IN_PROCESS
from surefoot.protocols import SampleRequest
from surefoot.search import BeamSearch

QUESTION = problems(1)[0]


def leaves(depth, kinds):
    """All solutions that ``full_tree`` can write, by brute force."""
    found = []
    for path in itertools.product(range(kinds), repeat=depth):
        text = "".join(f"step {at} is {kind}\n" for at, kind in enumerate(path))
        found.append(text + f"The answer is {path.count(0)}")
    return found


def step_ends(text):
    lines = text.splitlines(keepends=True)
    return ["".join(lines[: k + 1]) for k in range(len(lines))]


@settings(max_examples=15, deadline=None)
@given(depth=st.integers(1, 3), kinds=st.integers(1, 3), salt=st.integers(0, 10**6))
def test_a_beam_wide_enough_for_all_finds_the_best_leaf(depth, kinds, salt):
    def rule(prefix):
        return chance(salt, prefix)

    search = BeamSearch(width=kinds**depth, expand=kinds, rule="best_of_n")
    [result] = searched(search, [QUESTION], ScriptedPolicy(full_tree(depth, kinds)), HashScorer(rule))
    value = {text: min(map(rule, step_ends(text))) for text in leaves(depth, kinds)}
    assert {candidate.text for candidate in result.candidates} == set(value)
    chosen = result.candidates[result.chosen]
    assert chosen.text == max(value, key=value.__getitem__)
    assert result.values[result.chosen] == value[chosen.text]


def greedy(policy, scorer_rule, expand, *, steps=STEPS):
    """Step-wise best of ``expand``, written anew."""
    text = ""
    while True:
        request = SampleRequest(prompt="problem 0\n", prefix=text, n=expand, sampling=steps.sampling, seed=0)
        options = [text + policy.answer(request, sample) for sample in range(expand)]
        cut = [text + option[len(text) :].splitlines(keepends=True)[0] for option in options]
        text = max(cut, key=lambda option: min(map(scorer_rule, step_ends(option))))
        if not text.endswith("\n"):
            return text


@settings(max_examples=15, deadline=None)
@given(expand=st.integers(1, 5), salt=st.integers(0, 10**6))
def test_a_beam_of_one_is_step_wise_best_of_m(expand, salt):
    def rule(prefix):
        return chance(salt, prefix)

    policy = ScriptedPolicy(random_solver(depth=4))
    [result] = searched(BeamSearch(width=1, expand=expand), [QUESTION], policy, HashScorer(rule))
    assert [candidate.text for candidate in result.candidates] == [greedy(policy, rule, expand)]


def test_width_and_expand_one_are_plain_sampling():
    scorer, policy = HashScorer(), Watched(ScriptedPolicy(random_solver()))
    [result] = searched(BeamSearch(width=1, expand=1), [QUESTION], policy, scorer)
    assert result.candidates[0].text == greedy(policy.policy, lambda prefix: 0.0, 1)
    assert all(request.n == 1 for request in policy.requests)
    assert len(scorer.rounds) == 1  # nothing to choose between before the end


def test_a_finished_branch_keeps_its_place_and_costs_nothing():
    def answer(request, sample):
        if not request.prefix:
            return "The answer is 7" if sample == 0 else f"step {sample}\nmore\nThe answer is 8"
        return f"more {sample}\n" if "more" not in request.prefix else "The answer is 8"

    def rule(prefix):
        return 0.9 if "is 7" in prefix else 0.5

    policy = Watched(ScriptedPolicy(answer))
    [result] = searched(BeamSearch(width=2, expand=2), [QUESTION], policy, HashScorer(rule))
    assert [candidate.answer for candidate in result.candidates] == ["7", "8"]
    assert [request.n for request in policy.requests] == [4, 2, 2]
    assert all("is 7" not in request.prefix for request in policy.requests)


def test_a_finished_branch_that_is_not_among_the_best_leaves():
    def answer(request, sample):
        if not request.prefix:
            return "The answer is 7" if sample == 0 else f"step {sample}\n"
        return f"The answer is {sample}"

    def rule(prefix):
        return 0.1 if "is 7" in prefix else 0.5

    [result] = searched(BeamSearch(width=2, expand=2), [QUESTION], ScriptedPolicy(answer), HashScorer(rule))
    assert "7" not in {candidate.answer for candidate in result.candidates}


def restating(request, sample):
    """Sample 0 says its last line again; the others go on."""
    lines = request.prefix.splitlines(keepends=True)
    if lines and sample % 4 == 0:
        return lines[-1]
    if len(set(lines)) >= 3:
        return "The answer is 1"
    return f"step {len(set(lines))}\n"


def test_a_beam_that_can_only_repeat_is_stopped():
    policy = Watched(ScriptedPolicy(lambda request, sample: "again\n"))
    [result] = searched(BeamSearch(width=2, expand=2), [QUESTION], policy, HashScorer())
    assert len(policy.rounds) == STEPS.max_steps + 1
    assert result.candidates[0].text == "again\n" * (STEPS.max_steps + 1)


def test_when_the_policy_no_longer_answers_the_unfinished_remain():
    policy = ScriptedPolicy(full_tree(3, 2), fail=lambda request: "gone" if request.prefix else None)
    [result] = searched(BeamSearch(width=2, expand=2), [QUESTION], policy, HashScorer())
    assert [candidate.text for candidate in result.candidates] == ["step 0 is 0\n", "step 0 is 1\n"]
    assert {candidate.finish_reason for candidate in result.candidates} == {None}
    assert (result.error, result.counts.failed) == ("gone", 2)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"expand": 0}])
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BeamSearch(**wrong)


def test_set_aside_goes_on_with_what_has_not_ended():
    """Every solution drawn is a candidate, whatever its score; unfinished beams never lose a place to one."""

    def rule(prefix):
        return 0.9 if "answer" in prefix else 0.1

    policy = ScriptedPolicy(random_solver(depth=4))
    [usual] = searched(BeamSearch(width=2, expand=3), [QUESTION], policy, HashScorer(rule))
    [aside] = searched(
        BeamSearch(width=2, expand=3, retire_finished=True), [QUESTION], policy, HashScorer(rule)
    )
    assert all("answer" in candidate.text for candidate in aside.candidates)
    assert {c.text for c in usual.candidates if "answer" in c.text} <= {c.text for c in aside.candidates}
    assert len(aside.candidates) > len(usual.candidates)
    assert aside.usage.tokens > usual.usage.tokens


def test_set_aside_draws_as_many_steps_each_round_however_few_beams_there_are():
    class Counted:
        name = "counted"

        def __init__(self) -> None:
            self.policy, self.drawn = ScriptedPolicy(full_tree(depth=3, kinds=1)), []

        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests):
            self.drawn.append([request.n for request in requests])
            return await self.policy.sample(requests)

    # one kind of step, so that all draws are one beam
    policy = Counted()
    searched(BeamSearch(width=2, expand=3, retire_finished=True), [QUESTION], policy, HashScorer())
    assert policy.drawn == [[6]] * len(policy.drawn)
    policy = Counted()
    searched(BeamSearch(width=2, expand=3), [QUESTION], policy, HashScorer())
    assert policy.drawn == [[6], *[[3]] * (len(policy.drawn) - 1)]
    assert [BeamSearch(width=4, expand=4, retire_finished=True)._draws(beams) for beams in (1, 3, 4)] == [
        [16],
        [6, 5, 5],
        [4, 4, 4, 4],
    ]
