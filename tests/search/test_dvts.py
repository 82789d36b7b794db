from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_search import (
    HashScorer,
    ScriptedPolicy,
    Watched,
    chance,
    full_tree,
    problems,
    random_solver,
    searched,
)

from surefoot.protocols import SampleRequest
from surefoot.search import DVTS, BeamSearch

[QUESTION] = problems(1)


@settings(max_examples=15, deadline=None)
@given(expand=st.integers(1, 5), salt=st.integers(0, 10**6))
def test_one_tree_is_step_wise_best_of_m(expand, salt):
    def rule(prefix):
        return chance(salt, prefix)

    policy = ScriptedPolicy(random_solver(depth=4))
    [beam] = searched(BeamSearch(width=1, expand=expand), [QUESTION], policy, HashScorer(rule))
    search = DVTS(n=expand, expand=expand, rule="best_of_n")
    [tree] = searched(search, [QUESTION], policy, HashScorer(rule))
    # the finished rivals of the last step are candidates as well
    assert beam.candidates[0].text in [candidate.text for candidate in tree.candidates]
    finished = {c.text: value for c, value in zip(tree.candidates, tree.values, strict=True)}
    assert finished[beam.candidates[0].text] == max(finished.values())


def test_expand_one_is_plain_sampling():
    """Each tree goes on by itself; of trees at the same prefix, each takes the next sample."""
    policy, scorer = Watched(ScriptedPolicy(random_solver(depth=4))), HashScorer()
    [result] = searched(DVTS(n=5, expand=1), [QUESTION], policy, scorer)
    chains, drawn = [""] * 5, Counter()
    while any(not chain or chain.endswith("\n") for chain in chains):
        for k, chain in enumerate(chains):
            if not chain or chain.endswith("\n"):
                request = SampleRequest(prompt="problem 0\n", prefix=chain)
                rest = policy.policy.answer(request, drawn[chain])
                drawn[chain] += 1
                chains[k] = chain + rest.splitlines(keepends=True)[0]
    assert [candidate.text for candidate in result.candidates] == list(dict.fromkeys(chains))
    assert result.weights == tuple(Counter(chains).values())
    assert len(scorer.rounds) == 1


def as_published(policy, score, *, n, expand):
    """The candidates of search-and-learn's DVTS, tree by tree: each continuation of a tree's last round.

    Greedy by ``score`` of the whole text, which is the score of its last step. Samples of a prefix that
    several trees share are numbered through, tree by tree.
    """
    trees = [{"text": "", "next": [], "pruned": False} for _ in range(n // expand)]
    drawn = Counter()
    while not all(tree["pruned"] for tree in trees):
        for tree in trees:
            if tree["pruned"]:
                continue
            request = SampleRequest(prompt="problem 0\n", prefix=tree["text"])
            tree["previous"], tree["next"] = tree["text"], []
            for _ in range(expand):
                written = policy.answer(request, drawn[tree["text"]])
                drawn[tree["text"]] += 1
                tree["next"].append(written.splitlines(keepends=True)[0])
        for tree in trees:
            if not tree["pruned"]:
                best = max(tree["next"], key=lambda step: score(tree["previous"] + step))
                tree["text"] = tree["previous"] + best
                tree["pruned"] = not best.endswith("\n")
    return [tree["previous"] + step for tree in trees for step in tree["next"]]


@pytest.mark.parametrize("salt", range(6))
def test_the_candidates_are_those_of_search_and_learn(salt):
    """One tree, so that no two trees meet at a prefix and share its samples in another order."""

    def rule(prefix):
        return chance(salt, prefix)

    policy = ScriptedPolicy(random_solver(depth=4))
    expected = as_published(policy, rule, n=4, expand=4)
    search = DVTS(n=4, expand=4)
    [result] = searched(search, [QUESTION], policy, HashScorer(rule), aggregation="last")
    assert [candidate.text for candidate in result.candidates] == list(dict.fromkeys(expected))
    assert result.weights == tuple(Counter(expected).values())
    last = dict(zip((candidate.text for candidate in result.candidates), result.values, strict=True))
    assert last == {text: pytest.approx(rule(text)) for text in expected}


def test_an_unfinished_rival_of_the_last_round_is_a_candidate():
    policy = ScriptedPolicy(lambda request, sample: ["The answer is 1", "The answer is 2\n"][sample % 2])
    [result] = searched(DVTS(n=2, expand=2), [QUESTION], policy, HashScorer(lambda prefix: 1 / len(prefix)))
    assert [(c.text, c.finish_reason) for c in result.candidates] == [
        ("The answer is 1", "stop"),
        ("The answer is 2\n", None),
    ]
    assert [c.answer for c in result.candidates] == ["1", "2"]


def test_trees_are_independent():
    """A favourite of the scorer takes one tree, not all."""

    def rule(prefix):
        return 0.9 if prefix.startswith("step 0 is 0") else 0.5

    def answer(request, sample):
        if not request.prefix:
            return f"step 0 is {sample}\n"
        return f"The answer is {request.prefix[10]}"

    for search, expected in (
        (DVTS(n=6, expand=2), {"0", "2", "4"}),
        (DVTS(n=6, expand=3), {"0", "3"}),
    ):
        [result] = searched(search, [QUESTION], ScriptedPolicy(answer), HashScorer(rule))
        assert {candidate.answer for candidate in result.candidates} == expected
        assert sum(result.weights) == 6  # all continuations of each tree's last round


def test_all_trees_are_scored_together_and_grow_from_one_prefix_apart():
    policy, scorer = Watched(ScriptedPolicy(full_tree(2, 2))), HashScorer()
    searched(DVTS(n=8, expand=2), [QUESTION], policy, scorer)
    assert len(policy.rounds) == 3
    assert len(scorer.rounds) <= 3
    asked = [(r.prefix, r.first + k) for r in policy.requests for k in range(r.n)]
    assert len(set(asked)) == len(asked) == policy.drawn == 24


def test_a_tree_that_gets_no_answer_ends_as_it_is():
    def fail(request):
        return "gone" if request.prefix == "step 0 is 0\n" else None

    def answer(request, sample):
        return "The answer is 1" if request.prefix else f"step 0 is {sample}\n"

    policy = ScriptedPolicy(answer, fail=fail)
    [result] = searched(
        DVTS(n=4, expand=2), [QUESTION], policy, HashScorer(lambda prefix: 1 / (1 + len(prefix)))
    )
    assert [c.finish_reason for c in result.candidates] == [None, None, "stop"]
    assert result.counts.failed == 1


@pytest.mark.parametrize("wrong", [{"n": 5, "expand": 2}, {"n": 0}, {"expand": 0}])
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=r"multiple|greater"):
        DVTS(**wrong)
