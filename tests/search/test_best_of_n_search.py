import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_search import HashScorer, ScriptedPolicy, Watched, chance, in_space, problems, searched

from surefoot.protocols import Candidate
from surefoot.search import SELECTORS, BestOfNSearch, MajoritySearch
from surefoot.search.best_of_n_search import settled

[QUESTION] = problems(1)
SAMPLES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]), st.none() | st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)
    ),
    min_size=1,
    max_size=14,
)


def chosen_answer(rule, samples):
    candidates = [Candidate(answer=answer, score=score) for answer, score in samples]
    return samples[SELECTORS[rule].select(candidates)][0]


@settings(max_examples=200, deadline=None)
@given(samples=SAMPLES, rule=st.sampled_from(sorted(SELECTORS)), seen=st.integers(1, 13))
def test_a_settled_vote_never_changes(samples, rule, seen):
    """Whatever comes, among it all the rest for a rival with the highest scores."""
    now, later = samples[:seen], samples[seen:]
    values = [-math.inf if score is None else score for _, score in now]
    if settled([answer for answer, _ in now], values, len(later), rule):
        for rest in [later, *[[(rival, 1.0)] * len(later) for rival in ("a", "b", "c", "new")]]:
            assert chosen_answer(rule, now + rest) == chosen_answer(rule, now)


@settings(max_examples=100, deadline=None)
@given(samples=SAMPLES, left=st.integers(0, 6))
def test_the_bound_of_the_majority_is_exact(samples, left):
    """Not settled means that some rest of this length changes the answer."""
    answers = [answer for answer, _ in samples]
    if any(answers) and not settled(answers, [0.0] * len(answers), left, "majority"):
        now = chosen_answer("majority", samples)
        rivals = {*answers, "new"} - {None, now}
        assert any(chosen_answer("majority", samples + [(rival, None)] * left) != now for rival in rivals)


@pytest.mark.parametrize(
    ("answers", "values", "left", "rule", "expected"),
    [
        ("aab", (0, 0, 0), 0, "majority", True),
        ("aab", (0, 0, 0), 1, "majority", True),  # b could draw level, but a was seen first
        ("baa", (0, 0, 0), 1, "majority", False),  # and here b was
        ("aaa", (0, 0, 0), 3, "majority", True),
        ("aaa", (0, 0, 0), 4, "majority", False),
        ("aab", (0.9, 0.9, 0.2), 1, "weighted_vote", True),
        ("aab", (0.9, 0.9, 0.2), 2, "weighted_vote", False),
        ("aab", (1.5, 0.9, 0.2), 1, "weighted_vote", False),  # no bound where scores exceed 1
        ("ab", (0.5, 1.0), 9, "best_of_n", True),
        ("ab", (0.5, 0.99), 1, "best_of_n", False),
        ("ab", (0.5, 1.0), 1, "first", False),
    ],
)
def test_cases(answers, values, left, rule, expected):
    assert settled(list(answers), list(values), left, rule) is expected


def solver(salt, likely):
    def answer(request, sample):
        draw = chance(salt, request.prompt, sample)
        return f"so\nThe answer is {1 if draw < likely else int(draw * 1e6) % 9}"

    return answer


@settings(max_examples=25, deadline=None)
@given(
    salt=st.integers(0, 10**6),
    likely=st.sampled_from([0.2, 0.6, 0.95]),
    n=st.integers(1, 16),
    batch=st.integers(1, 5),
    rule=st.sampled_from(sorted(SELECTORS)),
)
def test_streaming_chooses_what_the_full_vote_chooses(salt, likely, n, batch, rule):
    def run(**more):
        policy = Watched(ScriptedPolicy(solver(salt, likely)))
        scorer = HashScorer(rule=lambda prefix: round(chance(salt, "score", prefix), 1))
        vote = MajoritySearch(n=n, **more) if rule == "majority" else BestOfNSearch(n=n, rule=rule, **more)
        return searched(vote, problems(3), policy, scorer), policy.drawn

    (full, all_drawn), (streamed, drawn) = run(), run(batch=batch)
    assert [result.answer for result in streamed] == [result.answer for result in full]
    assert drawn <= all_drawn == 3 * n
    for short, long in zip(streamed, full, strict=True):
        assert [c.text for c in short.candidates] == [c.text for c in long.candidates][
            : len(short.candidates)
        ]


@settings(max_examples=60, deadline=None)
@given(
    salt=st.integers(0, 10**6),
    n=st.integers(1, 12),
    batch=st.integers(1, 5),
    stop_at=st.sampled_from([0.0, 0.3, 0.7, 0.9, 1.0]),
    answered=st.sampled_from([0.5, 1.0]),
)
def test_a_score_that_is_high_enough_stops_the_draws(salt, n, batch, stop_at, answered):
    """All ``n`` drawn at once say where the draws have to stop, and what is chosen of those before."""

    def answer(request, sample):
        draw, letter = chance(salt, request.prompt, sample), chr(97 + sample)
        return f"{letter}\nThe answer is {int(draw * 1e6) % 9}" if draw < answered else f"{letter}\nand so on"

    def run(search):
        scorer = HashScorer(rule=lambda prefix: round(chance(salt, "score", prefix), 1))
        return searched(search, problems(2), ScriptedPolicy(answer), scorer)

    def samples(result):
        return [(trace.answer, value) for trace, value in zip(result.candidates, result.values, strict=True)]

    full = run(BestOfNSearch(n=n))
    early = run(BestOfNSearch(n=n, batch=batch, stop_at=stop_at))
    for short, long in zip(early, full, strict=True):
        every = samples(long)
        assert len(every) == n
        drawn = next(
            (
                seen
                for seen in range(batch, n, batch)
                if any(answer is not None and value >= stop_at for answer, value in every[:seen])
            ),
            n,
        )
        assert samples(short) == every[:drawn]
        chosen = SELECTORS["best_of_n"].select([Candidate(answer=a, score=v) for a, v in every[:drawn]])
        assert short.chosen == chosen
        assert drawn == n or every[chosen][1] >= stop_at


def test_a_clear_leader_stops_the_draws():
    policy = Watched(ScriptedPolicy(lambda request, sample: "The answer is 4"))
    [result] = searched(MajoritySearch(n=16, batch=2), [QUESTION], policy)
    assert (policy.drawn, result.weights, result.answer) == (8, (8,), "4")


def test_a_sum_of_steps_can_overtake_any_leader():
    """Four solutions of one step for an answer, then one of ten steps for another."""

    def answer(request, sample):
        return "The answer is 1" if sample < 4 else "so\n" * 9 + "The answer is 2"

    policy, scorer = ScriptedPolicy(answer), HashScorer(lambda prefix: 0.9)
    for batch in (None, 1):
        [result] = searched(
            BestOfNSearch(n=5, batch=batch, rule="weighted_vote"),
            [QUESTION],
            policy,
            scorer,
            aggregation="sum",
        )
        assert (result.answer, sum(result.weights)) == ("2", 5)


def test_failed_requests_are_not_made_up_for():
    policy = ScriptedPolicy(
        lambda request, sample: f"The answer is {sample}",
        fail=lambda request: "gone" if request.first == 2 else None,
    )
    [result] = searched(MajoritySearch(n=6, batch=2), [QUESTION], policy)
    assert [candidate.answer for candidate in result.candidates] == ["0", "1", "4", "5"]
    assert result.counts.failed == 1


def test_self_consistency_asks_for_no_scores():
    scorer = HashScorer()
    policy = ScriptedPolicy(solver(0, 0.5))
    [result] = searched(MajoritySearch(n=6), [QUESTION], policy, scorer)
    assert scorer.rounds == []
    assert {record.unscored_reason for record in result.scores} == {"not requested"}
    assert result.usage.verifier_tokens == 0


def test_one_batch_is_the_policy_s_own_samples():
    policy = ScriptedPolicy(solver(3, 0.3))

    async def work(space):
        return [leaf.prefix for leaf in await MajoritySearch(n=5).explore(space)]

    found = in_space(work, policy)
    assert len(found) == 5
    assert in_space(work, policy)[:3] == found[:3]


@pytest.mark.parametrize(
    "wrong",
    [{"n": 0}, {"batch": 0}, {"stop_at": 0.9}, {"stop_at": 0.9, "batch": 2, "rule": "weighted_vote"}],
)
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BestOfNSearch(**wrong)


def test_a_majority_is_a_method_of_its_own():
    with pytest.raises(ValueError, match="take the method majority"):
        BestOfNSearch(rule="majority")
