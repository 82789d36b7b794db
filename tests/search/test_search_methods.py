"""What holds for every search."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_search import STEPS, HashScorer, ScriptedPolicy, Watched, problems, random_solver, searched

from surefoot.protocols import Sampling
from surefoot.search import (
    DVTS,
    MCTS,
    SEARCHES,
    BeamSearch,
    BestOfNSearch,
    MajoritySearch,
    ParticleFilter,
    Rebase,
    SearchMethod,
    StepResampling,
    Steps,
    search_of,
)

ALL = [
    BestOfNSearch(n=8),
    MajoritySearch(n=8, batch=2),
    BestOfNSearch(n=8, batch=3),
    BeamSearch(width=3, expand=3),
    BeamSearch(width=2, expand=2, rule="best_of_n"),
    DVTS(n=6, expand=3),
    DVTS(n=4, expand=2),
    Rebase(n=8),
    ParticleFilter(n=6),
    ParticleFilter(n=6, rule="first"),
    ParticleFilter(n=4, sweeps=3, rule="first"),
    MCTS(paths=6, expand=3),
    StepResampling(n=2, threshold=0.6, budget=4),
]
every = pytest.mark.parametrize("search", ALL, ids=lambda search: f"{search.name}-{ALL.index(search)}")


def plain(results):
    return [result.model_dump(mode="json") for result in results]


@every
def test_same_result_alone_and_among_others_and_again(search):
    policy, items = ScriptedPolicy(random_solver()), problems(4)
    together = plain(searched(search, items, policy, HashScorer(), seed=3))
    assert plain(searched(search, items, policy, HashScorer(), seed=3)) == together
    alone = [plain(searched(search, [item], policy, HashScorer(), seed=3))[0] for item in items]
    assert alone == together
    few = plain(searched(search, items, policy, HashScorer(), seed=3, concurrency=2))
    assert few == together
    assert plain(searched(search, items, policy, HashScorer(), seed=4)) != together


@every
def test_overlap_gives_the_same(search):
    items = problems(4)
    slow = ScriptedPolicy(random_solver(), latency_s=0.001)
    together = plain(searched(search, items, slow, HashScorer(), overlap=True))
    assert together == plain(searched(search, items, ScriptedPolicy(random_solver()), HashScorer()))


@every
def test_usage_is_what_policy_and_scorer_spent(search):
    policy, scorer = Watched(ScriptedPolicy(random_solver())), HashScorer()
    results = searched(search, problems(3), policy, scorer)
    total = sum((result.usage for result in results[1:]), results[0].usage)
    assert total == policy.usage + scorer.usage
    assert total.completion_tokens > 0


@every
def test_candidates_are_distinct_and_include_the_chosen(search):
    for result in searched(search, problems(6), ScriptedPolicy(random_solver()), HashScorer()):
        texts = [candidate.text for candidate in result.candidates]
        assert len(set(texts)) == len(texts) == len(result.weights) == len(result.values)
        ended = {candidate.finish_reason for candidate in result.candidates}
        # rivals of what ended a tree are candidates of DVTS, wherever they are
        assert ended == {"stop"} or (isinstance(search, DVTS) and ended <= {"stop", None})
        assert result.candidates[result.chosen].finish_reason == "stop"
        assert all("".join(c.step_text(k) for k in range(len(c.steps))) == c.text for c in result.candidates)
        # no selector exceeds pass@N
        assert result.outcome <= any(candidate.outcome for candidate in result.candidates)
        assert result.counts.failed == 0
        assert result.error is None
        for scores, candidate, value in zip(result.scores, result.candidates, result.values, strict=True):
            assert len(scores.scores) == len(candidate.steps)
            assert scores.trace_id == candidate.id
            assert value is None or value == min(scores.scores)


@every
def test_scores_each_prefix_once(search):
    scorer = HashScorer()
    searched(search, problems(1), ScriptedPolicy(random_solver()), scorer)
    asked = [item.trace.text for items in scorer.rounds for item in items]
    assert len(set(asked)) == len(asked)


@every
@settings(max_examples=4, deadline=None)
@given(modulus=st.integers(2, 5), seed=st.integers(0, 100))
def test_failed_requests_are_noted_and_survived(search, modulus, seed):
    def fail(request):
        number = request.first + len(request.prefix) + seed
        return f"server: gone {number % 2}" if number % modulus == 0 else None

    watched = Watched(ScriptedPolicy(random_solver(), fail=fail))
    results = searched(search, problems(3), watched, HashScorer(), seed=seed)
    failed = sum(fail(request) is not None for request in watched.requests)
    assert sum(result.counts.failed for result in results) == failed
    for result in results:
        assert (result.error is None) == (result.counts.failed == 0)
        assert (result.chosen is None) == (not result.candidates)


@every
def test_a_policy_that_never_answers_leaves_no_solution(search):
    policy = ScriptedPolicy(random_solver(), fail=lambda request: "server: gone")
    [result] = searched(search, problems(1), policy, HashScorer())
    assert result.candidates == ()
    assert (result.chosen, result.answer, result.outcome) == (None, None, False)
    assert result.error == "server: gone"
    assert result.counts.failed >= 1


@every
def test_a_policy_that_never_ends_is_stopped(search):
    steps = Steps(step_tokens=4, max_steps=5, sampling=Sampling(max_tokens=12))
    policy = ScriptedPolicy(lambda request, sample: f"so {sample % 7} again\n" * 1000)
    [result] = searched(search, problems(1), policy, HashScorer(), steps=steps)
    assert result.counts.capped >= 1
    assert all(len(candidate.steps) <= 5 + 4 + 1 for candidate in result.candidates)
    assert all(candidate.finish_reason == "length" for candidate in result.candidates)


@every
def test_a_policy_that_writes_nothing_has_no_solution(search):
    [result] = searched(search, problems(1), ScriptedPolicy(lambda request, sample: ""), HashScorer())
    assert (result.candidates, result.chosen) == ((), None)


@every
def test_what_cannot_be_scored_is_searched_all_the_same(search):
    scorer = HashScorer(rule=lambda prefix: None)
    for result in searched(search, problems(2), ScriptedPolicy(random_solver()), scorer):
        assert result.candidates
        assert set(result.values) == {None}


@every
def test_is_a_search_with_a_hash(search):
    assert isinstance(search, SearchMethod)
    assert SEARCHES[search.method] is type(search)
    assert hash(search) == hash(search)


@every
def test_the_name_of_a_search_is_the_text_that_makes_it(search):
    assert search_of(search.name) == search
    assert search_of(search.name).name == search.name


def test_equal_searches_have_one_name():
    texts = ("beam:width=8,expand=2", "beam:expand=02,width=8", "beam:width=8,retire_finished=false,expand=2")
    assert {search_of(text).name for text in texts} == {"beam:width=8,expand=2"}
    assert search_of("best_of_n:n=16,batch=4").name == "best-of-n:batch=4"
    assert search_of("particle:sweeps=02").name == "particle:sweeps=2"


def test_registry_has_searches_that_work_as_they_are():
    for name, kind in SEARCHES.items():
        assert kind().name == name
        [result] = searched(kind(), problems(1), ScriptedPolicy(random_solver()), HashScorer())
        assert result.method == name


@pytest.mark.parametrize("kind", [kind for kind in SEARCHES.values() if kind is not MajoritySearch])
def test_unknown_rules_are_refused(kind):
    with pytest.raises(ValueError, match=r"'majority', 'best_of_n', .*, 'agreement' or 'first'"):
        kind(rule="best")


def test_only_a_majority_needs_no_scorer():
    policy = ScriptedPolicy(random_solver())
    [result] = searched(MajoritySearch(n=4), problems(1), policy)
    assert result.scores == ()
    assert result.chosen is not None
    with pytest.raises(Exception, match="needs a scorer"):
        searched(BeamSearch(), problems(1), policy)


def test_steps_after_the_first_rounds_are_not_drawn_again():
    watched = Watched(ScriptedPolicy(random_solver()))
    searched(BeamSearch(width=4, expand=4), problems(2), watched, HashScorer(), steps=STEPS)
    asked = [
        (request.prompt, request.prefix, request.first + k)
        for request in watched.requests
        for k in range(request.n)
    ]
    assert len(set(asked)) == len(asked)
