"""What Monte Carlo labels save: stopping, lending, the traces' own outcomes, orders; and what they keep."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from math import ceil, log2

import pytest
from watched_policy import Watched, spent

from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import Difficulty, generate_problems
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.labelling.monte_carlo import MonteCarloLabeller, MonteCarloSettings, probe
from surefoot.policies.episodes import sample_traces
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace, Usage
from surefoot.segment import Line, segment_trace
from surefoot.stats.intervals import wilson_interval

GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
PROBLEM = Problem(text="How many?", answer="3")
HARD = MonteCarloSettings(estimate="hard")
ONE = MonteCarloSettings(estimate="hard", rollouts=1)
SOLVER = NoisySolver(error_rate=0.3)


class Alone(MonteCarloSettings):
    """Hard estimates from a prefix's own rollouts and nothing else."""

    estimate: str = "hard"

    def lends(self, outcome):
        return False


def item(text, problem=PROBLEM, **fields):
    trace = Trace(**({"problem_id": problem.id, "text": text, "finish_reason": "stop"} | fields))
    return ProblemTrace(problem=problem, trace=segment_trace(trace, Line()))


def label(policy, items, rule=HARD, grader=GRADER, seed=0, **settings):
    settings = rule.model_copy(update=settings)
    labeller = MonteCarloLabeller(policy=policy, grader=grader, settings=settings, seed=seed)
    return asyncio.run(labeller.label(items))


def replies(*answers, **fields):
    return ScriptedPolicy(lambda request, sample: answers[sample], **fields)


@pytest.fixture(scope="module")
def lab_traces():
    """Sampled solutions of the lab, several a problem, some of them cut off by their length."""
    problems = generate_problems(12, seed=3, difficulty=Difficulty(min_operations=2, max_operations=7))
    sampled = asyncio.run(sample_traces(SOLVER, problems, n=3, seed=100, segmenter=Line(), grader=GRADER))
    items = [
        ProblemTrace(problem=problem, trace=trace)
        for problem, traces in zip(problems, sampled, strict=True)
        for trace in traces
    ]
    short = [item(one.trace.prefix(2), one.problem, finish_reason="length") for one in items[::5]]
    assert {one.trace.outcome for one in items} == {True, False}
    return items + short


def values(rows):
    return [[one.value for one in row] for row in rows]


def facts(rows):
    """Labels without the time of their making."""
    return [[one.model_dump(exclude={"created"}) for one in row] for row in rows]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("first", [1, 2, 8, 20])
def test_stopping_at_the_first_success_changes_no_label(lab_traces, seed, first):
    settings = {"own_outcome": "never", "seed": seed}
    every = label(SOLVER, lab_traces, rule=MonteCarloSettings(rollouts=8), **settings)
    hard = label(SOLVER, lab_traces, rule=Alone(rollouts=8, first=first), **settings)
    assert values(hard) == [[float(value > 0) for value in row] for row in values(every)]


@pytest.mark.parametrize("own", ["never", "same-policy"])
@pytest.mark.parametrize("first", [1, 2, 8])
def test_what_is_lent_can_only_turn_a_bad_prefix_into_a_good_one(lab_traces, first, own):
    hopeless = NoisySolver(error_rate=0.75)  # so that eight rollouts often find nothing
    alone = label(hopeless, lab_traces, rule=Alone(rollouts=8), own_outcome="never")
    lent = label(
        hopeless,
        lab_traces,
        rule=MonteCarloSettings(estimate="hard", rollouts=8, first=first),
        own_outcome=own,
    )
    pairs = [pair for rows in zip(alone, lent, strict=True) for pair in zip(*rows, strict=True)]
    assert all(one.value <= other.value for one, other in pairs)
    overturned = [other for one, other in pairs if one.value < other.value]
    assert overturned
    assert all("sampled from another prefix" in one.evidence.message for one in overturned)


@pytest.mark.parametrize("rule", [MonteCarloSettings(rollouts=4), Alone(rollouts=4, first=2)])
@pytest.mark.parametrize("own", ["never", "always"])
def test_the_first_error_is_the_same_in_order_and_everywhere(lab_traces, rule, own):
    policy = NoisySolver(error_rate=0.5)
    every = label(policy, lab_traces, rule=rule, own_outcome=own)
    for after in ("unlabelled", "wrong"):
        until = label(policy, lab_traces, rule=rule, own_outcome=own, order="until-error", after_error=after)
        assert len(until) == len(every)
        for one, full, ordered in zip(lab_traces, values(every), values(until), strict=True):
            first = full.index(0.0) if 0.0 in full else len(full)
            assert ordered[: first + 1] == full[: first + 1]
            # another trace of the problem may have shown a later prefix; the end tells its own outcome
            beyond = {0.0 if after == "wrong" else None}
            assert all(
                a in {b} | beyond for a, b in zip(ordered[first + 1 :], full[first + 1 :], strict=True)
            )
            if one.trace.finish_reason != "length":
                assert ordered[-1] == float(one.trace.outcome)


RULES = [
    MonteCarloSettings(rollouts=4),
    MonteCarloSettings(estimate="hard", rollouts=4),
    MonteCarloSettings(estimate="hard", rollouts=4, first=2),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.estimate}-{rule.first}")
@pytest.mark.parametrize("order", ["every", "until-error", "bisect"])
@pytest.mark.parametrize("own", ["never", "always"])
def test_what_is_on_the_labels_is_what_was_spent(lab_traces, rule, order, own):
    policy = Watched(NoisySolver(error_rate=0.4))
    found = label(policy, lab_traces, rule=rule, order=order, own_outcome=own)
    assert spent(found) == policy.usage
    # numbered on from batch to batch, each sample of a prefix is drawn once
    samples = [
        (request.prompt, request.prefix, number)
        for request in policy.requests
        for number in range(request.first, request.first + request.n)
    ]
    assert len(set(samples)) == len(samples)
    for one in (one for row in found for one in row):
        evidence = one.evidence
        assert evidence.interval == (
            wilson_interval(evidence.successes, evidence.trials).bounds if evidence.trials else None
        )


def test_equal_seeds_give_equal_labels_and_pieces_give_those_of_the_whole(lab_traces):
    for order in ("every", "until-error", "bisect"):
        settings = {"rule": MonteCarloSettings(estimate="hard", rollouts=3), "order": order}
        once = label(SOLVER, lab_traces, **settings)
        assert facts(once) == facts(label(SOLVER, lab_traces, **settings))
        names = sorted({one.problem.id for one in lab_traces})
        for name in names[:3]:
            places = [place for place, one in enumerate(lab_traces) if one.problem.id == name]
            alone = label(SOLVER, [lab_traces[place] for place in places], **settings)
            assert facts(alone) == facts([once[place] for place in places])


def test_each_saving_saves(lab_traces):
    def tokens(**settings):
        policy = Watched(SOLVER)
        label(policy, lab_traces, **settings)
        return policy.usage.completion_tokens

    from_most_to_least = [
        tokens(rule=MonteCarloSettings(estimate="hard", rollouts=8, first=8), own_outcome="never"),
        tokens(rule=MonteCarloSettings(estimate="hard", rollouts=8, first=4), own_outcome="never"),
        tokens(rule=MonteCarloSettings(estimate="hard", rollouts=8, first=2), own_outcome="never"),
        tokens(rule=MonteCarloSettings(estimate="hard", rollouts=8, first=1), own_outcome="never"),
        tokens(rule=MonteCarloSettings(estimate="hard", rollouts=8, first=1)),
        tokens(rule=MonteCarloSettings(estimate="hard", rollouts=8, first=1), order="until-error"),
    ]
    assert all(more > less for more, less in pairwise(from_most_to_least)), from_most_to_least
    assert tokens(rule=MonteCarloSettings(rollouts=8)) == from_most_to_least[0]  # each draws all of them
    bisect = tokens(rule=MonteCarloSettings(estimate="hard", rollouts=8, first=1), order="bisect")
    assert bisect < from_most_to_least[-2]


def test_the_own_right_answer_costs_nothing():
    policy = Watched(replies())
    right = item("One.\nTwo.\nAnswer: 3\n", outcome=True, policy="scripted")
    for order in ("every", "until-error", "bisect"):
        (found,) = label(policy, [right], order=order)
        assert [one.value for one in found] == [1, 1, 1]
    assert policy.rounds == []
    (found,) = label(policy, [right])
    assert [(one.evidence.successes, one.evidence.trials) for one in found] == [(1, 1)] * 3
    assert found[0].evidence.message == "1 of the trials were sampled from another prefix"
    assert found[2].evidence.message is None


@pytest.mark.parametrize(
    ("own", "policy", "counts"),
    [
        ("same-policy", "scripted", True),
        ("same-policy", "other", False),
        ("same-policy", None, False),
        ("always", None, True),
        ("never", "scripted", False),
    ],
)
def test_whose_outcome_counts(own, policy, counts):
    for outcome in (True, False):
        watched = Watched(replies("Answer: 1", "Answer: 1"))
        one = item("One.\nTwo.\n", outcome=outcome, policy=policy)
        ((first, _),) = label(
            watched, [one], rule=MonteCarloSettings(estimate="hard", rollouts=2), own_outcome=own
        )
        assert first.value == float(outcome and counts)
        assert watched.drawn == (0 if outcome and counts else 2)
        # a wrong one is no rollout of a hard estimate, and a soft one never borrows
        ((first, _),) = label(watched, [one], rule=MonteCarloSettings(rollouts=2), own_outcome=own)
        assert (first.value, first.evidence.trials) == (0, 2)


def test_a_trace_cut_off_by_its_length_says_nothing_of_its_prefixes():
    cut = item("One.\nTwo.\n", outcome=False, policy="scripted", finish_reason="length")
    (found,) = label(replies("Answer: 3"), [cut], rule=ONE, own_outcome="always")
    assert [(one.value, one.evidence.successes, one.evidence.trials) for one in found] == [(1, 1, 1)] * 2


def test_a_rollout_through_a_later_prefix_is_lent_to_it():
    trace = item("One.\nTwo.\nThree.\nAnswer: 1\n", outcome=False)
    through = {"One.\n": ["Two.\nAnswer: 1", "Two.\nAnswer: 3"], "One.\nTwo.\nThree.\n": ["Answer: 3"]}
    asked = []

    def answer(request, sample):
        asked.append((request.prefix, sample))
        return through[request.prefix][sample]

    (found,) = label(
        ScriptedPolicy(answer),
        [trace],
        rule=MonteCarloSettings(estimate="hard", rollouts=2, first=1),
        order="until-error",
    )
    # the right one counts for step 1, which is not asked for; the wrong one does not
    assert asked == [("One.\n", 0), ("One.\n", 1), ("One.\nTwo.\nThree.\n", 0)]
    assert [(one.value, one.evidence.successes, one.evidence.trials) for one in found] == [
        (1, 1, 2),
        (1, 1, 1),
        (1, 1, 1),
        (0, 0, 1),
    ]
    assert [one.evidence.usage.calls for one in found] == [2, 0, 1, 0]
    messages = [one.evidence.message for one in found]
    assert messages == [None, "1 of the trials were sampled from another prefix", None, None]


@pytest.mark.parametrize("completion", ["Two.\n", "Two?\nAnswer: 3", "Two."])
def test_nothing_is_lent_to_a_prefix_that_a_rollout_does_not_pass(completion):
    trace = item("One.\nTwo.\nAnswer: 1\n", outcome=False)
    policy = Watched(replies(completion))
    (found,) = label(policy, [trace], rule=ONE)
    assert [one.evidence.trials for one in found] == [1, 1, 1]
    assert [request.prefix for request in policy.requests] == ["One.\n", "One.\nTwo.\n"]


def test_nothing_is_lent_to_another_problem():
    other = Problem(text="And now?", answer="3")
    items = [item("One.\n", finish_reason="length"), item("One.\nTwo.\n", other, finish_reason="length")]
    policy = ScriptedPolicy(lambda r, _: "Two.\nAnswer: 3" if "many" in r.prompt else "Answer: 3")
    (first,), (_, third) = label(policy, items, rule=ONE)
    assert (first.evidence.trials, third.evidence.trials) == (1, 1)
    assert third.evidence.usage.calls == 1


def test_a_failure_matters_only_where_what_came_does_not_decide():
    def fail(request):
        return "server: down" if request.first else None

    trace = item("One.\nTwo.\nAnswer: 1\n", outcome=False)
    policy = ScriptedPolicy(
        lambda request, _: "Answer: 3" if "Two" in request.prefix else "Answer: 1", fail=fail
    )
    (found,) = label(policy, [trace], rule=MonteCarloSettings(estimate="hard", rollouts=4, first=1))
    assert [one.value for one in found] == [None, 1, 0]
    assert found[0].reason == "rollouts failed: server: down"
    assert (found[0].evidence.successes, found[0].evidence.trials) == (0, 1)
    # a later success that is lent decides in spite of the failure before
    policy = Watched(
        ScriptedPolicy(lambda request, _: "Two.\nAnswer: 3", fail=lambda r: "Two" in r.prefix or None)
    )
    (found,) = label(policy, [trace], rule=MonteCarloSettings(estimate="hard", rollouts=4, first=1))
    assert [one.value for one in found] == [1, 1, 0]


@pytest.mark.parametrize("order", ["until-error", "bisect"])
def test_where_the_search_fails_the_rest_is_unknown(order):
    policy = ScriptedPolicy(
        lambda request, _: "Answer: 3", fail=lambda r: "server: down" if r.prefix.endswith("4\n") else None
    )
    lines = [f"Line {number}\n" for number in range(1, 8)] + ["Answer: 1\n"]
    (found,) = label(policy, [item("".join(lines), outcome=False)], order=order)
    expected = [1, 1, 1, None, None, None, None, 0] if order == "until-error" else [None] * 7 + [0]
    assert [one.value for one in found] == expected
    assert found[3].reason == "rollouts failed: server: down"
    assert {one.reason for one in found if one.value is None} - {found[3].reason} == {
        "not reached: an earlier estimate failed"
    }


def test_after_the_first_error():
    trace = item("Good.\nBad.\nWorse.\nWorst.\nAnswer: 1\n", outcome=False)
    policy = ScriptedPolicy(lambda request, _: f"Answer: {1 if 'Bad' in request.prefix else 3}")
    for order in ("until-error", "bisect"):
        (found,) = label(policy, [trace], order=order)
        assert [one.value for one in found] == [1, 0, None, None, 0]
        assert found[2].reason == "after the first error"
        (found,) = label(policy, [trace], order=order, after_error="wrong")
        assert [one.value for one in found] == [1, 0, 0, 0, 0]
        assert (found[3].evidence.message, found[3].evidence.trials) == (
            "after the first error, step 2",
            None,
        )


def oracle(right="3"):
    """Succeeds from every prefix without an error."""
    return ScriptedPolicy(lambda request, _: f"Answer: {'wrong' if 'bad' in request.prefix else right}")


def solution(steps, error, problem):
    """``steps`` lines of which line ``error`` (from 1; the last gives the answer) is the first wrong one."""
    lines = [f"{'bad' if number >= error else 'ok'} {number}\n" for number in range(1, steps)]
    return item("".join(lines) + "Answer: 1\n", problem, outcome=False)


@pytest.mark.parametrize(
    ("rule", "lengths"),
    [(ONE, (*range(1, 18), 31, 32, 33)), (MonteCarloSettings(rollouts=1), (1, 2, 3, 8, 9))],
)
def test_binary_search_finds_every_error_in_every_length(rule, lengths):
    for steps in lengths:
        problems = [Problem(text=f"{error}?", answer="3") for error in range(1, steps + 1)]
        items = [solution(steps, error, problem) for error, problem in enumerate(problems, start=1)]
        policy = Watched(oracle())
        rows = label(policy, items, rule=rule, order="bisect")
        assert len(policy.rounds) <= ceil(log2(steps))
        for error, (problem, row) in enumerate(zip(problems, rows, strict=True), start=1):
            places = [r.prefix.count("\n") for r in policy.requests if r.prompt == f"{problem.text}\n"]
            assert len(places) <= ceil(log2(steps))
            # after the error only what was probed is known, and the end by its answer
            known = {error, steps, *(place for place in places if place > error)}
            after = [0.0 if place in known else None for place in range(error, steps + 1)]
            assert [one.value for one in row] == [1.0] * (error - 1) + after


def probed(policy):
    return [request.prefix.count("\n") for request in policy.requests]


def test_the_probes_of_the_papers_figure():
    policy = Watched(oracle())
    (found,) = label(policy, [solution(8, 7, PROBLEM)], rule=ONE, order="bisect")
    assert probed(policy) == [4, 6, 7]
    assert [one.value for one in found] == [1, 1, 1, 1, 1, 1, 0, 0]
    assert found[0].evidence.message == "deduced: step 6 is good"
    assert (found[0].evidence.trials, found[0].evidence.usage) == (None, Usage())


def test_a_right_answer_is_not_searched():
    policy = Watched(replies())
    (found,) = label(policy, [item("One.\nTwo.\nAnswer: 3\n", outcome=True)], rule=ONE, order="bisect")
    assert [one.value for one in found] == [1, 1, 1]
    assert policy.rounds == []


@pytest.mark.parametrize("error", range(1, 10))
def test_a_cut_off_trace_is_asked_for_its_end_first(error):
    lines = [f"{'bad' if number >= error else 'ok'} {number}\n" for number in range(1, 9)]
    cut = item("".join(lines), outcome=False, finish_reason="length")
    policy = Watched(oracle())
    (found,) = label(policy, [cut], rule=ONE, order="bisect", own_outcome="always")
    assert probed(policy)[0] == 8
    assert len(policy.rounds) <= (1 if error > 8 else 4)
    after = [0.0 if place in {error, *probed(policy)} else None for place in range(error, 9)]
    assert [one.value for one in found] == [1.0] * (error - 1) + after


class Undecided(AnswerChecker):
    """Cannot compare an answer that is a question mark."""

    def equal(self, pairs):
        return [None if "?" in pair[0] else pair[0] == pair[1] for pair in pairs]


def test_where_the_own_answer_cannot_be_compared_the_end_is_left_out():
    grader = Grader(checker=Undecided("exact"), styles=("phrase",))
    policy = Watched(oracle())
    trace = item("ok 1\nok 2\nbad 3\nAnswer: ?\n")
    (found,) = label(policy, [trace], rule=ONE, order="bisect", grader=grader)
    assert probed(policy) == [3, 1, 2]
    assert [one.value for one in found] == [1, 1, 0, None]


def test_binary_search_over_many_traces_at_once_is_that_of_each():
    lengths = [(8, 7), (5, 1), (13, 13), (1, 1), (9, 4)]
    items = [
        solution(steps, error, Problem(text=f"{steps}, {error}?", answer="3")) for steps, error in lengths
    ]
    policy = Watched(oracle())
    rows = label(policy, items, rule=ONE, order="bisect")
    assert values(rows) == [values(label(oracle(), [one], rule=ONE, order="bisect"))[0] for one in items]
    assert len(policy.rounds) == 4
    # equal prefixes of one problem are probed once
    policy = Watched(oracle())
    rows = label(policy, [solution(8, 7, PROBLEM), solution(8, 5, PROBLEM)], rule=ONE, order="bisect")
    assert sorted(probed(policy)) == [4, 5, 6, 6, 7]
    assert spent(rows) == policy.usage


def test_the_next_probe():
    assert probe({8: False}, 7) == 4
    assert probe({8: True}, 7) is None
    assert probe({}, 7) == 7
    assert probe({7: True}, 7) is None
    assert probe({}, 0) is None
    assert probe({1: False}, 0) is None
    # a failed place ends the search where it is needed, and only there
    assert probe({8: False, 4: None}, 7) is None
    assert probe({8: False, 4: False, 6: None}, 7) == 2
    assert probe({8: None}, 7) == 7
    # a good place after a bad one does not count
    assert probe({8: False, 4: False, 6: True}, 7) == 2
