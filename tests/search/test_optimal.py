import asyncio
import math

import pytest
from toy_search import GRADER, STEPS, HashScorer, ScriptedPolicy, chance, in_space, problems, searched

from surefoot.records import Trace, Usage
from surefoot.search import (
    BeamSearch,
    BestOfNSearch,
    ComputeOptimal,
    DifficultyEstimate,
    Probe,
    SearchResult,
    Trial,
    fit_optimal,
    predict_difficulties,
)
from surefoot.search.method import SearchCounts

A, B = BestOfNSearch(n=4, name="a"), BeamSearch(name="b")


def outcome(problem_id, right, tokens=100):
    candidate = Trace(problem_id=problem_id, text="so", outcome=right)
    return SearchResult(
        problem_id=problem_id,
        method="m",
        seed=0,
        candidates=(candidate,),
        scores=(),
        values=(None,),
        weights=(1,),
        rule="majority",
        chosen=0,
        usage=Usage(completion_tokens=tokens),
        counts=SearchCounts(),
    )


def probed(*difficulties, tokens=0):
    return [DifficultyEstimate(difficulty=difficulty, tokens=tokens) for difficulty in difficulties]


def trial(search, outcomes, tokens=100):
    return Trial(search=search, results=[outcome(f"p{k}", right, tokens) for k, right in enumerate(outcomes)])


def test_difficulty_by_score_and_by_agreement():
    def answer(request, sample):
        return f"The answer is {[1, 1, 2, 1][sample]}"

    scorer = HashScorer(lambda prefix: 0.8 if prefix.endswith("1") else 0.2)

    def difficulty(measure):
        async def work(space):
            drawn, found = await Probe(n=4, measure=measure).draw(space)
            assert len(drawn) == 4
            return found

        return in_space(work, ScriptedPolicy(answer), scorer if measure == "score" else None)

    assert difficulty("agreement") == 0.25
    assert difficulty("score") == pytest.approx(1 - (3 * 0.8 + 0.2) / 4)


def test_difficulty_that_cannot_be_told_is_none():
    async def work(space):
        return (await Probe(n=2).draw(space))[1]

    silent = ScriptedPolicy(lambda request, sample: "x", fail=lambda request: "gone")
    assert in_space(work, silent, HashScorer()) is None
    policy = ScriptedPolicy(lambda request, sample: "The answer is 1")
    assert in_space(work, policy, HashScorer(lambda prefix: None)) is None


async def _agreement(space):
    return (await Probe(n=3, measure="agreement").draw(space))[1]


def test_no_answer_agrees_with_none():
    assert in_space(_agreement, ScriptedPolicy(lambda request, sample: "who knows")) == 1.0


def test_the_best_of_each_bin_is_chosen():
    difficulties = probed(0.1, 0.2, 0.3, 0.6, 0.7, 0.8, None)
    easy_better = trial(A, [True, True, True, False, False, True, True])
    hard_better = trial(B, [True, True, False, True, True, True, False])
    fit = fit_optimal([easy_better, hard_better], difficulties, tokens=100, bins=2)
    assert fit.search.searches == (A, B)
    assert fit.search.edges == (0.3,)
    assert fit.unknown == 1
    assert sum(row["a"].problems for row in fit.bins) == 6
    assert fit.search.choose(0.0) is A
    assert fit.search.choose(0.99) is B
    assert fit.search.choose(None) is B


def test_bins_hold_equally_many():
    difficulties = probed(*(k / 100 for k in range(100)))
    fit = fit_optimal([trial(A, [True] * 100)], difficulties, tokens=100, bins=5)
    assert [row["a"].problems for row in fit.bins] == [20] * 5
    assert len(fit.search.edges) == 4


def test_tied_difficulties_make_fewer_bins_and_none_is_empty():
    fit = fit_optimal([trial(A, [True] * 10)], probed(*[0.0] * 9, 1.0), tokens=100, bins=5)
    assert all(row["a"].problems for row in fit.bins)
    assert (len(fit.bins), fit.search.edges) == (2, (0.0,))
    same = fit_optimal([trial(A, [True] * 4)], probed(*[0.5] * 4), tokens=100, bins=5)
    assert same.search.edges == ()


def test_only_what_is_within_the_tokens_takes_part():
    cheap, dear = trial(A, [False, True], tokens=100), trial(B, [True, True], tokens=300)
    assert fit_optimal([cheap, dear], probed(0.1, 0.1), tokens=100, bins=1).search.searches == (A,)
    assert fit_optimal([cheap, dear], probed(0.1, 0.1), tokens=280, bins=1).search.searches == (B,)
    with pytest.raises(ValueError, match="within 55 tokens"):
        fit_optimal([cheap, dear], probed(0.1, 0.1), tokens=50, bins=1)


def test_the_probe_is_paid_from_the_same_tokens():
    cheap, dear = trial(A, [False, True], tokens=40), trial(B, [True, True], tokens=90)
    probing = probed(0.1, 0.1, tokens=60)
    assert fit_optimal([cheap, dear], probing, tokens=149, bins=1, slack=0).search.searches == (A,)
    fit = fit_optimal([cheap, dear], probing, tokens=150, bins=1, slack=0)
    assert fit.search.searches == (B,)
    assert {name: row.tokens for name, row in fit.bins[0].items()} == {"a": 100, "b": 150}
    with pytest.raises(ValueError, match=r"within 99 tokens per problem \(a 100, b 150; the probe's 60 incl"):
        fit_optimal([cheap, dear], probing, tokens=99, bins=1, slack=0)


@pytest.mark.parametrize("measure", ["score", "agreement"])
def test_what_is_fitted_spends_what_was_allowed(measure):
    policy = ScriptedPolicy(
        lambda request, sample: f"{sample}\nThe answer is {sample}"[len(request.prefix) :]
    )
    probe = Probe(n=4, measure=measure)
    settings = {"steps": STEPS, "grader": GRADER}
    found = asyncio.run(predict_difficulties(probe, problems(6), policy, HashScorer(), **settings))
    small, large = BestOfNSearch(n=2, name="small"), BestOfNSearch(n=8, name="large")
    trials = [
        Trial(search=search, results=searched(search, problems(6), policy, HashScorer()))
        for search in (small, large)
    ]
    # a request reads two words, and each solution is five words written and five read by the scorer
    assert [one.tokens for one in found] == [2 + 4 * 10] * 6
    assert [trial.results[0].usage.tokens for trial in trials] == [2 + 2 * 10, 2 + 8 * 10]
    fit = fit_optimal(trials, found, tokens=100, bins=1, slack=0, probe=probe)
    assert fit.search.searches == (small,)
    spent = {result.usage.tokens for result in searched(fit.search, problems(6), policy, HashScorer())}
    assert spent == {fit.bins[0]["small"].tokens} == {42 + 22}


def test_equal_accuracy_goes_to_fewer_tokens():
    dear, cheap = trial(B, [True, True], tokens=100), trial(A, [True, True], tokens=60)
    assert fit_optimal([dear, cheap], probed(0.1, 0.1), tokens=100, bins=1).search.searches == (A,)


def test_unknown_outcomes_are_left_out():
    some = trial(A, [None, True, False])
    fit = fit_optimal([some], probed(*[0.1] * 3), tokens=100, bins=1)
    assert (fit.bins[0]["a"].accuracy, fit.bins[0]["a"].problems) == (0.5, 2)
    with pytest.raises(ValueError, match="no search with known outcomes"):
        fit_optimal([trial(A, [None])], probed(0.1), tokens=100)


def test_trials_must_match():
    with pytest.raises(ValueError, match="different 'name'"):
        fit_optimal([trial(A, [True]), trial(A, [True])], probed(0.1), tokens=100)
    with pytest.raises(ValueError, match="same problems"):
        fit_optimal([trial(A, [True]), trial(B, [True, False])], probed(0.1), tokens=100)
    with pytest.raises(ValueError, match="no difficulty is known"):
        fit_optimal([trial(A, [True])], probed(None), tokens=100)
    with pytest.raises(ValueError, match="2 bins, not 1"):
        ComputeOptimal(edges=(0.5,), searches=(A,))
    with pytest.raises(ValueError, match="must rise"):
        ComputeOptimal(edges=(0.5, 0.4), searches=(A, A, A))


def solver(request, sample):
    """Half the problems are easy: always 1; the others scatter over nine answers."""
    number = int(request.prompt.split()[-1]) if isinstance(request.prompt, str) else 0
    if number % 2 == 0:
        return "so\nThe answer is 1"[len(request.prefix) :]
    draw = int(chance(request.prompt, request.prefix, sample) * 1e6)
    return f"try {draw % 5}\nThe answer is {draw % 9}" if not request.prefix else f"The answer is {draw % 9}"


def test_from_development_set_to_test_set():
    policy = ScriptedPolicy(solver)
    probe = Probe(n=4, measure="agreement")
    found = asyncio.run(
        predict_difficulties(probe, problems(20), policy, HashScorer(), steps=STEPS, grader=GRADER)
    )
    difficulties = [one.difficulty for one in found]
    assert all(difficulties[k] == 0 for k in range(0, 20, 2))
    assert all(difficulties[k] > 0 for k in range(1, 20, 2))
    small, large = BestOfNSearch(n=1, name="small"), BestOfNSearch(n=8, name="large")
    trials = [
        Trial(search=search, results=searched(search, problems(20), policy, HashScorer()))
        for search in (small, large)
    ]
    fit = fit_optimal(trials, found, tokens=math.inf, bins=2, probe=probe)
    assert fit.search.choose(0.0) is small  # as good there, and cheaper
    results = searched(fit.search, problems(20), policy, HashScorer())
    easy = {sum(result.weights) for result in results[0::2]}
    assert easy == {4 + 1}  # the probe's solutions are candidates too
    assert all(result.method == "optimal" for result in results)
