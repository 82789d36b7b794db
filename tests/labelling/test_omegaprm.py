"""The tree search against a plain one, its invariants, and worlds whose first errors are known."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from itertools import combinations, product
from math import ceil, log2

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from watched_policy import Watched, spent

from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import Difficulty, generate_problems
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import LabelError
from surefoot.labelling.omegaprm import OmegaPRMLabeller, TreeSettings, trace_steps
from surefoot.policies.episodes import sample_traces
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Message, Problem, Step, StepPair, Trace, Usage
from surefoot.segment import Line, segment_trace

GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
PROBLEM = Problem(text="How many?", answer="3")


def labeller(policy, **fields):
    return OmegaPRMLabeller(**({"policy": policy, "grader": GRADER, "segmenter": Line()} | fields))


def grow(search, problem=PROBLEM, seeds=()):
    (tree,) = asyncio.run(search.grow([problem], {problem.id: list(seeds)}))
    return tree


def step_values(search, tree, trace):
    """The label of each step of a seed."""
    nodes = nodes_by_prefix(tree)
    ends = [step.end for step in trace.steps[:-1]] + [len(trace.text)]
    return [search.value(nodes[trace.text[:end]]) for end in ends]


def seed_trace(text, problem=PROBLEM, **fields):
    trace = Trace(**({"problem_id": problem.id, "text": text, "finish_reason": "stop"} | fields))
    return segment_trace(trace, Line())


def nodes_by_prefix(tree):
    return {node.prefix: node for node in tree.tree}


# --- constants -------------------------------------------------------------------------------------------


def test_the_constants_of_the_paper():
    of = TreeSettings()
    assert (of.rollouts, of.alpha, of.beta, of.length, of.c_puct) == (8, 0.5, 0.9, 500, 0.125)
    assert (of.search_limit, of.pieces) == (100, 16)
    assert of.quality(0.5, 500) == pytest.approx(0.6364, abs=5e-5)
    assert of.quality(1.0, 0) == 1.0
    assert of.exploration(2, 9) == 0.125
    assert of.exploration(0, 0) == of.exploration(5, 0) == 0.0


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 4000), st.integers(0, 4000))
def test_quality_grows_with_value_and_falls_with_length(one, other, short, long):
    of = TreeSettings()
    low, high = sorted((one, other))
    short, long = sorted((short, long))
    assert of.quality(low, short) <= of.quality(high, short)
    assert of.quality(low, long) <= of.quality(low, short)
    if high - low > 1e-6 and long > short:
        assert of.quality(low, long) < of.quality(high, short)
    assert of.exploration(long, 9) <= of.exploration(short, 9)
    assert of.exploration(2, short) <= of.exploration(2, long)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rollouts": 0},
        {"length": 0},
        {"pieces": 0},
        {"search_limit": -1},
        {"c_puct": -0.1},
        {"alpha": 0.0},
        {"beta": 1.5},
    ],
)
def test_invalid_settings(wrong):
    with pytest.raises(ValidationError):
        TreeSettings(**wrong)


# --- the search against a plain one ----------------------------------------------------------------------


class PlainSearch:
    """The algorithm on plain texts, given what the rollouts of each prefix were."""

    def __init__(self, tallies, of):
        self.tallies, self.of = tallies, of
        self.pool, self.seen, self.visits = [], set(), Counter()
        self.selected, self.probed = [], []

    def value(self, prefix):
        return self.tallies[prefix].successes / self.tallies[prefix].trials

    def take_in(self, prefix):
        for rollout in self.tallies[prefix].rollouts:
            text = prefix + rollout.completion.text
            if text not in self.seen and not rollout.outcome and 0 < self.value(prefix) < 1:
                self.pool.append((prefix, text, rollout.completion.tokens))
            self.seen.add(text)

    def run(self):
        self.take_in("")
        while self.pool and len(self.selected) < self.of.search_limit:
            total = sum(self.visits.values())
            best = max(
                self.pool,
                key=lambda one: (
                    0.5 ** (1 - self.value(one[0])) * 0.9 ** (one[2] / 500)
                    + 0.125 * total**0.5 / (1 + self.visits[one[0]])
                ),
            )
            self.pool.remove(best)
            self.visits[best[0]] += 1
            self.selected.append(best[:2])
            self.find_error(*best[:2])
        return self

    def find_error(self, prefix, text):
        lines = text[len(prefix) :].splitlines(keepends=True)
        ends = [prefix + "".join(lines[:count]) for count in range(len(lines) + 1)]
        known = [place for place in range(1, len(lines)) if ends[place] in self.probed]
        high = min([place for place in known if not self.value(ends[place])], default=len(lines))
        low = max([place for place in known if place < high], default=0)
        rounds = 0
        while high - low > 1:
            middle = (low + high) // 2
            assert ends[middle] not in self.probed
            self.probed.append(ends[middle])
            self.take_in(ends[middle])
            low, high = (middle, high) if self.value(ends[middle]) else (low, middle)
            rounds += 1
        assert rounds <= ceil(log2(len(lines)))


WORLDS = {
    "rate": st.floats(0.05, 0.6),
    "seed": st.integers(0, 2**31),
    "operations": st.integers(1, 7),
    "rollouts": st.integers(2, 6),
    "limit": st.integers(0, 12),
}
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def lab(rate, seed, operations, rollouts, limit, estimate="soft"):
    """A search in the lab, its problem and the policy that is watched."""
    difficulty = Difficulty(min_operations=operations, max_operations=operations)
    (problem,) = generate_problems(1, seed=seed, difficulty=difficulty)
    policy = Watched(NoisySolver(error_rate=rate))
    of = TreeSettings(rollouts=rollouts, search_limit=limit)
    return labeller(policy, settings=of, seed=seed, estimate=estimate), problem, policy


@FEW
@given(**WORLDS)
def test_selection_probes_and_pool_are_those_of_a_plain_search(rate, seed, operations, rollouts, limit):
    search, problem, policy = lab(rate, seed, operations, rollouts, limit)
    tree = grow(search, problem)
    tallies = {node.prefix: node.data.tally for node in tree.tree if node.data.tally is not None}
    root = tallies[""]
    assert (root.trials, policy.usage) == (rollouts, tree.usage)
    if root.successes in (0, rollouts):
        word = "every" if root.successes else "no"
        assert tree.reason == f"{word} solution of {rollouts} is right"
        assert (tree.pool, tree.selected, list(tallies)) == ([], [], [""])
        return
    assert tree.reason is None
    plain = PlainSearch(tallies, search.settings).run()
    assert [(one.state.prefix, one.nodes[-1].prefix) for one in tree.selected] == plain.selected
    assert [request.prefix for request in policy.requests] == ["", *plain.probed]
    assert [(one.state.prefix, one.nodes[-1].prefix) for one in tree.pool] == [one[:2] for one in plain.pool]
    assert {node.prefix: node.data.visits for node in tree.tree if node.data.visits} == plain.visits


@FEW
@given(**WORLDS, estimate=st.sampled_from(["soft", "hard"]))
def test_the_invariants_of_the_search(rate, seed, operations, rollouts, limit, estimate):
    search, problem, policy = lab(rate, seed, operations, rollouts, limit, estimate)
    tree = grow(search, problem)
    # nothing is taken twice or put back
    taken = [one.nodes[-1] for one in tree.selected]
    left = [one.nodes[-1] for one in tree.pool]
    assert len({*taken, *left}) == len(taken) + len(left)
    assert tree.reason is not None or not tree.pool or len(tree.selected) == limit
    assert sum(node.data.visits for node in tree.tree) == len(tree.selected) <= limit
    assert Counter(one.state for one in tree.selected) == {
        node: node.data.visits for node in tree.tree if node.data.visits
    }
    for one in [*tree.selected, *tree.pool]:
        assert tree.solutions[one.nodes[-1]] is False
        assert 0 < one.state.data.value < 1
        assert one.nodes == tuple(one.nodes[-1].path()[one.state.depth :])
    for node in tree.tree:
        state = node.data
        if state.tally is not None:
            outcomes = [rollout.outcome for rollout in state.tally.rollouts]
            assert len(outcomes) == rollouts
            assert state.value == sum(outcomes) / len(outcomes)
        # what was found after a prefix was found after every prefix of it
        assert state.right >= max((child.data.right for child in node.children.values()), default=0)
    for one in tree.selected:
        check_first_error(one, estimate)
    check_labels(search, tree, policy)
    check_pairs(search, tree)


def check_first_error(candidate, estimate):
    """The binary search of a selected rollout ended between a good place and a bad one beside it."""

    def verdict(node):
        if estimate == "hard" and node.data.good:
            return True
        return None if node.data.value is None else node.data.value > 0

    verdicts = [True, *(verdict(node) for node in candidate.nodes[:-1]), False]
    first = verdicts.index(False)
    before = [good for good in verdicts[:first] if good is not None]
    assert all(before)
    assert verdicts[first - 1] is True


def check_labels(search, tree, policy):
    found = search.labelled_traces(tree)
    labels = [one for trace in found for one in trace.labels]
    if labels:
        assert spent([labels]) == tree.usage == policy.usage
        assert sum(one.evidence.usage != Usage() for one in labels) == 1
    places = [(trace.trace.prefix(label.step + 1), label.value) for trace in found for label in trace.labels]
    assert len({prefix for prefix, _ in places}) == len(places)
    nodes = nodes_by_prefix(tree)
    ends = {node.prefix: outcome for node, outcome in tree.solutions.items()}
    for prefix, value in places:
        state = nodes[prefix].data
        if search.estimate == "soft":
            assert value == (float(state.ending) if state.value is None else state.value)
        else:
            assert value == float(state.right > 0)
    for one in found:
        assert ends[one.trace.text] == one.trace.outcome
        assert "".join(one.trace.step_text(step) for step in range(len(one.trace.steps))) == one.trace.text
        for label in one.labels:
            evidence = label.evidence
            share = evidence.successes / evidence.trials
            assert label.value == (share if search.estimate == "soft" else float(share > 0))
            assert label.source == f"omegaprm-{search.estimate}"
    if search.estimate == "hard":
        known = dict(places)
        for end in tree.solutions:
            marks = (
                "-" if known.get(node.prefix) is None else f"{known[node.prefix]:.0f}" for node in end.path()
            )
            assert re.fullmatch("1*0?-*", "".join(marks))


def check_pairs(search, tree):
    found = search.pairs(tree)
    nodes = nodes_by_prefix(tree)
    known = {}
    for one in search.labelled_traces(tree):
        for label in one.labels:
            known[one.trace.prefix(label.step + 1)] = label.value
    expected = {
        (node.prefix, *sorted((a, b), key=lambda text: -known[node.prefix + text]))
        for node in nodes.values()
        for a, b in combinations([text for text in node.children if node.prefix + text in known], 2)
        if known[node.prefix + a] != known[node.prefix + b]
    }
    assert {(pair.prefix, pair.better, pair.worse) for pair in found} == expected
    assert len(found) == len(expected)
    for pair in found:
        assert (pair.better_value, pair.worse_value) == (
            known[pair.prefix + pair.better],
            known[pair.prefix + pair.worse],
        )
        assert pair.better_value > pair.worse_value
        assert pair.preference == pytest.approx((1 + pair.better_value - pair.worse_value) / 2)
        assert (pair.problem_id, pair.source) == (tree.problem.id, f"omegaprm-{search.estimate}")
        assert StepPair.model_validate_json(pair.model_dump_json()) == pair


def picture(tree):
    """All of a tree that its nodes' identities do not matter to."""
    return (
        [(n.prefix, n.data.visits, n.data.value, n.data.right, n.data.solutions) for n in tree.tree],
        [(one.state.prefix, one.nodes[-1].prefix) for one in tree.selected],
        [(end.prefix, outcome) for end, outcome in tree.solutions.items()],
        tree.usage,
        tree.reason,
    )


@pytest.mark.parametrize("estimate", ["soft", "hard"])
def test_equal_seeds_give_equal_trees_and_many_grow_as_each_alone(estimate):
    problems = generate_problems(8, seed=2, difficulty=Difficulty(min_operations=2, max_operations=6))
    of = TreeSettings(rollouts=4, search_limit=5)
    policy = Watched(NoisySolver(error_rate=0.25))
    search = labeller(policy, settings=of, estimate=estimate)
    trees = [picture(tree) for tree in asyncio.run(search.grow(problems))]
    assert max(len(requests) for requests in policy.rounds) == len(problems)
    assert trees == [picture(tree) for tree in asyncio.run(search.grow(problems))]
    assert trees == [picture(grow(search, problem)) for problem in problems]
    other = labeller(policy, settings=of, estimate=estimate, seed=1)
    assert trees != [picture(tree) for tree in asyncio.run(other.grow(problems))]


# --- worlds whose errors are known -----------------------------------------------------------------------

DEPTH = 3


def enumerated(shuffle=1):
    """Writes DEPTH lines, each a, b or x, and the answer, which is right if no line is x.

    The samples from a prefix go through all ways to go on from it (in another order for another ``shuffle``).
    """

    def answer(request, sample):
        done = request.prefix.count("\n")
        if done > DEPTH:
            return ""
        rest = list(product("abx", repeat=DEPTH - done))
        lines = rest[sample * shuffle % len(rest)]
        wrong = "x" in request.prefix or "x" in lines
        return "".join(f"{line}\n" for line in lines) + f"Answer: {1 if wrong else 3}\n"

    return ScriptedPolicy(answer)


TRUTH = {
    "".join(f"{letter}\n" for letter in (*good, "x"))
    for length in range(DEPTH)
    for good in product("ab", repeat=length)
}


def hard_zeros(search, tree):
    return {
        one.trace.prefix(label.step + 1)
        for one in search.labelled_traces(tree)
        for label in one.labels
        if label.value == 0
    }


@pytest.mark.parametrize("estimate", ["soft", "hard"])
def test_all_first_errors_of_a_small_world_are_found(estimate):
    search = labeller(
        enumerated(), estimate=estimate, settings=TreeSettings(rollouts=3**DEPTH, search_limit=1000)
    )
    tree = grow(search)
    assert tree.pool == []
    assert len(tree.selected) == 3**DEPTH - 2**DEPTH  # every wrong solution, once
    bad = {node.prefix for node in tree.tree if node.data.value == 0 and node.parent.data.value != 0}
    if estimate == "hard":
        assert hard_zeros(search, tree) == TRUTH == bad
    else:
        assert bad == TRUTH


@pytest.mark.parametrize("shuffle", [1, 5, 7, 11])
@pytest.mark.parametrize("rollouts", [4, 9, 14])
def test_with_few_rollouts_no_bad_prefix_is_taken_for_good(shuffle, rollouts):
    # too few to find a right one from every good prefix, so that some of these are labelled bad
    of = TreeSettings(rollouts=rollouts, search_limit=1000)
    search = labeller(enumerated(shuffle), estimate="hard", settings=of)
    tree = grow(search)
    good = {
        one.trace.prefix(label.step + 1)
        for one in search.labelled_traces(tree)
        for label in one.labels
        if label.value == 1
    }
    assert not any("x" in prefix for prefix in good)
    assert not good & hard_zeros(search, tree)
    for one in tree.selected:
        errors = {node.prefix for node in one.nodes} & (hard_zeros(search, tree) | TRUTH)
        assert len(errors & TRUTH) <= 1 <= len(errors)


def oracle_with(first):
    """Samples 0 and on from the problem are ``first``; every other prefix succeeds if it has no error."""

    def answer(request, sample):
        if not request.prefix:
            return first[sample]
        return f"Answer: {1 if 'bad' in request.prefix else 3}"

    return Watched(ScriptedPolicy(answer))


def long_solution(steps, error):
    lines = [f"{'bad' if number >= error else 'ok'} {number}\n" for number in range(1, steps)]
    return "".join(lines) + "Answer: 1\n"


@pytest.mark.parametrize("steps", [1, 2, 8, 16, 17, 40, 64, 100])
def test_long_solutions_are_searched_in_sixteen_pieces(steps):
    for error in range(1, steps + 1, 1 if steps < 20 else 13):
        policy = oracle_with([long_solution(steps, error), "Answer: 3"])
        search = labeller(policy, settings=TreeSettings(rollouts=2))
        tree = grow(search)
        pieces = min(steps, 16)
        ends = [round(number * steps / pieces) for number in range(1, pieces + 1)]
        probed = [request.prefix.count("\n") for request in policy.requests[1:]]
        assert len(probed) <= ceil(log2(pieces))
        assert set(probed) <= set(ends)
        assert len(tree.selected) == 1
        values = {node.depth: node.data.value for node in tree.selected[0].nodes[:-1]}
        bad = min([place for place in probed if values[place] == 0], default=steps)
        good = max([place for place in probed if values[place] > 0], default=0)
        assert good < error <= bad
        assert ends.index(bad) == (ends.index(good) + 1 if good else 0)


def test_within_a_piece_the_first_error_is_not_labelled():
    policy = oracle_with(["Answer: 3"])
    search = labeller(policy, settings=TreeSettings(rollouts=2), estimate="hard")
    trace = seed_trace(long_solution(40, 11))
    values = step_values(search, grow(search, seeds=[trace]), trace)
    assert values == [1.0] * 10 + [None] * (len(trace.steps) - 10)


def test_the_probes_of_the_papers_figure():
    policy = oracle_with([long_solution(8, 7), "Answer: 3"])
    grow(labeller(policy, settings=TreeSettings(rollouts=2)))
    assert [request.prefix.count("\n") for request in policy.requests] == [0, 4, 6, 7]


def test_a_right_rollout_from_before_overturns_a_prefix_taken_for_bad():
    lines = [f"ok {number}\n" for number in range(1, 7)]

    def answer(request, sample):
        done = request.prefix.count("\n")
        if done == 2:
            return "ok 3\nok 4\nAnswer: 3\n"
        return f"Answer: {1 if done == 4 or 'bad' in request.prefix else 3}\n"

    policy = Watched(ScriptedPolicy(answer))
    search = labeller(policy, settings=TreeSettings(rollouts=2), estimate="hard")
    trace = seed_trace("".join(lines) + "bad 7\nAnswer: 1\n")
    tree = grow(search, seeds=[trace])
    assert [request.prefix.count("\n") for request in policy.requests] == [0, 4, 2, 6, 7]
    assert step_values(search, tree, trace) == [1, 1, 1, 1, 1, 1, 0, None]
    # two right ones from step 2 and two from step 6, of all that pass: the trace, two wrong ones from here,
    # these four and two wrong ones from step 7
    fourth = nodes_by_prefix(tree)["".join(lines[:4])].data
    assert (fourth.right, fourth.solutions) == (4, 9)


# --- given traces ----------------------------------------------------------------------------------------


def lab_items(n=3, seed=50):
    solver = NoisySolver(error_rate=0.3)
    problems = generate_problems(6, seed=4, difficulty=Difficulty(min_operations=2, max_operations=6))
    sampled = asyncio.run(sample_traces(solver, problems, n=n, seed=seed, segmenter=Line(), grader=GRADER))
    return [
        ProblemTrace(problem=problem, trace=trace)
        for problem, traces in zip(problems, sampled, strict=True)
        for trace in traces
    ]


@pytest.mark.parametrize("estimate", ["soft", "hard"])
def test_given_traces_have_values_at_their_steps(estimate):
    items, policy = lab_items(), Watched(NoisySolver(error_rate=0.3))
    search = labeller(policy, settings=TreeSettings(rollouts=6), estimate=estimate)
    problems = {item.problem.id: item.problem for item in items}
    seeds = {name: [item.trace for item in items if item.problem.id == name] for name in problems}
    trees = {tree.problem.id: tree for tree in asyncio.run(search.grow(list(problems.values()), seeds))}
    assert sum((tree.usage for tree in trees.values()), Usage()) == policy.usage
    rows = [step_values(search, trees[item.problem.id], item.trace) for item in items]
    for item, row in zip(items, rows, strict=True):
        known = "".join("-" if value is None else f"{value > 0:d}" for value in row)
        if estimate == "hard":
            assert re.fullmatch("1*0?-*", known)
        else:
            assert known[-1] == str(int(item.trace.outcome))
        if item.trace.outcome:
            assert known[-1] == "1"
    assert any(value is None for row in rows for value in row)


def test_given_traces_stand_for_rollouts_of_the_problem():
    policy = oracle_with(["Answer: 3"] * 4)
    traces = [seed_trace(long_solution(8, 7)), seed_trace("Answer: 3\n")]
    tree = grow(labeller(policy, settings=TreeSettings(rollouts=4)), seeds=traces)
    assert [(request.prefix.count("\n"), request.n) for request in policy.requests] == [
        (0, 2),
        (4, 4),
        (6, 4),
        (7, 4),
    ]
    assert tree.tree.root.data.value == 3 / 4
    assert [trace.text for trace in tree.seeds.values()][:2] == [trace.text for trace in traces]


def test_given_traces_are_not_drawn_again():
    items = lab_items(n=4, seed=9)
    policy = Watched(NoisySolver(error_rate=0.3))
    traces = [item.trace for item in items[:4]]
    search = labeller(policy, settings=TreeSettings(rollouts=8, search_limit=0), seed=9)
    grow(search, items[0].problem, traces)
    (request,) = policy.requests
    assert (request.first, request.n) == (4, 4)
    # those of another seed or policy are other samples
    search = labeller(policy, settings=TreeSettings(rollouts=8, search_limit=0), seed=10)
    grow(search, items[0].problem, traces)
    assert (policy.requests[-1].first, policy.requests[-1].n) == (0, 4)


def test_a_trace_that_failed_is_no_solution():
    policy = oracle_with(["Answer: 3\n", long_solution(4, 2)])
    failed = seed_trace("", error="server: down")
    tree = grow(labeller(policy, settings=TreeSettings(rollouts=2)), seeds=[failed])
    assert policy.requests[0].n == 2
    assert tree.tree.root.data.value == 0.5


def test_steps_without_text_and_text_between_steps():
    trace = Trace(
        problem_id="p",
        text="  One. Two. ",
        steps=(Step(start=2, end=6), Step(start=6, end=6), Step(start=7, end=11)),
    )
    assert trace_steps(trace) == ["  One.", " Two. "]
    assert trace_steps(Trace(problem_id="p", text="")) == []
    assert trace_steps(Trace(problem_id="p", text="One.")) == ["One."]


def test_one_prefix_cut_in_two_ways_is_paid_for_once():
    text = "ok 1\nok 2\nok 3\nbad 4\nAnswer: 1\n"
    whole = seed_trace(text)
    ends = (10, 15, 21, len(text))
    coarse = Trace(
        problem_id=PROBLEM.id,
        text=text,
        steps=tuple(Step(start=a, end=b) for a, b in zip((0, *ends[:-1]), ends, strict=True)),
    )
    policy = oracle_with(["Answer: 3\n"] * 4)
    search = labeller(policy, settings=TreeSettings(rollouts=4))
    assert grow(search, seeds=[whole, coarse]).usage == policy.usage
    requests = [request.prefix for request in policy.requests]
    assert len(set(requests)) == len(requests)


@pytest.mark.parametrize("right", [True, False])
def test_problems_without_rivals_are_dropped_with_a_reason(right):
    answer = "3" if right else "1"
    policy = Watched(ScriptedPolicy(lambda request, sample: f"Line {sample}\nAnswer: {answer}\n"))
    search = labeller(policy)
    trace = seed_trace(f"So.\nAnswer: {answer}\n")
    tree = grow(search, seeds=[trace])
    assert tree.reason == f"{'every' if right else 'no'} solution of 8 is right"
    assert step_values(search, tree, trace) == [None, float(right)]
    assert len(policy.rounds) == 1
    assert tree.usage == policy.usage


# --- what goes wrong -------------------------------------------------------------------------------------


def test_a_failure_at_the_root_leaves_all_unknown():
    policy = Watched(ScriptedPolicy(lambda r, s: "Answer: 3", fail=lambda request: "server: down"))
    tree = grow(labeller(policy))
    assert (tree.reason, tree.selected) == ("rollouts failed: server: down", [])
    assert tree.usage == policy.usage == Usage(calls=1)
    assert labeller(policy).labelled_traces(tree) == []


@pytest.mark.parametrize("estimate", ["soft", "hard"])
def test_a_failure_in_the_middle_ends_that_search_alone(estimate):
    texts = [long_solution(8, 7), "Two ok\nbad\nAnswer: 1\n", "Answer: 3\n", "Answer: 3\n"]

    def answer(request, sample):
        if not request.prefix:
            return texts[sample]
        return f"Answer: {1 if 'bad' in request.prefix else 3}"

    policy = Watched(
        ScriptedPolicy(answer, fail=lambda r: "server: down" if r.prefix.endswith("ok 4\n") else None)
    )
    search = labeller(policy, settings=TreeSettings(rollouts=4), estimate=estimate)
    tree = grow(search)
    assert len(tree.selected) == 2
    assert Counter(request.prefix for request in policy.requests).most_common(1)[0][1] == 1
    nodes = nodes_by_prefix(tree)
    assert nodes["Two ok\n"].data.value == 1.0
    failed = nodes["".join(f"ok {number}\n" for number in range(1, 5))]
    assert (failed.data.value, failed.data.failure) == (None, "rollouts failed: server: down")
    assert search.value(failed) is None


def test_a_right_solution_decides_in_spite_of_a_failure():
    texts = ["ok 1\nok 2\nbad 3\nAnswer: 1\n", "ok 1\nok 2\nAnswer: 3\n"]
    policy = ScriptedPolicy(
        lambda request, sample: texts[sample], fail=lambda r: "server: down" if r.prefix else None
    )
    search, trace = labeller(policy, settings=TreeSettings(rollouts=3), estimate="hard"), seed_trace(texts[0])
    assert step_values(search, grow(search, seeds=[trace]), trace)[:3] == [1.0, 1.0, None]


class Undecided(AnswerChecker):
    """Cannot compare an answer that is a question mark."""

    def equal(self, pairs):
        return [None if "?" in pair[0] else pair[0] == pair[1] for pair in pairs]


@pytest.mark.parametrize("estimate", ["soft", "hard"])
def test_answers_that_cannot_be_compared_end_the_search(estimate):
    grader = Grader(checker=Undecided("exact"), styles=("phrase",))
    texts = [long_solution(8, 7), "Answer: 3\n", "Answer: ?\n"]
    policy = Watched(ScriptedPolicy(lambda r, sample: "Answer: ?" if r.prefix else texts[sample]))
    search = labeller(policy, settings=TreeSettings(rollouts=3), grader=grader, estimate=estimate)
    tree = grow(search)
    assert len(policy.requests) == 2
    assert tree.tree.root.data.value == pytest.approx(1 / 3)
    assert tree.solutions[nodes_by_prefix(tree)["Answer: ?\n"]] is False
    nothing = Watched(ScriptedPolicy(lambda r, sample: "Answer: ?"))
    tree = grow(labeller(nothing, grader=grader))
    assert tree.reason == "no rollout's answer could be compared"
    assert len(nothing.requests) == 1


@pytest.mark.parametrize("estimate", ["soft", "hard"])
def test_a_policy_that_says_nothing(estimate):
    texts = ["", long_solution(4, 2), "Answer: 3\n"]
    policy = Watched(ScriptedPolicy(lambda request, sample: "" if request.prefix else texts[sample]))
    search = labeller(policy, settings=TreeSettings(rollouts=3), estimate=estimate)
    tree = grow(search)
    assert [one.nodes[-1].prefix for one in tree.selected] == [texts[1]]  # an empty one has no first error
    found = search.labelled_traces(tree)
    assert all(one.trace.text for one in found)
    assert spent([[label for one in found for label in one.labels]]) == policy.usage


def test_a_rollout_cut_off_by_its_length_says_nothing_of_its_last_step():
    def answer(request, sample):
        if not request.prefix:
            return ["ok\nbad\nmore more more more", "Answer: 3\n"][sample]
        return f"Answer: {1 if 'bad' in request.prefix else 3}"

    search = labeller(
        ScriptedPolicy(answer), settings=TreeSettings(rollouts=2), sampling=Sampling(max_tokens=4)
    )
    nodes = nodes_by_prefix(tree := grow(search))
    assert (nodes["ok\n"].data.value, nodes["ok\nbad\n"].data.value) == (1.0, 0.0)
    (cut,) = [node for node in nodes.values() if "more" in node.text]
    assert (cut.data.ending, tree.solutions[cut]) == (None, False)
    assert {
        label.step
        for one in search.labelled_traces(tree)
        if one.trace.text == cut.prefix
        for label in one.labels
    } == {0, 1}


def test_what_cannot_be_labelled_is_an_error():
    search = labeller(enumerated())
    unanswered = Problem(text="How many?")
    with pytest.raises(LabelError, match="has no 'answer'"):
        grow(search, unanswered, [seed_trace("Hm.\n", unanswered)])
    chat = Trace(problem_id=PROBLEM.id, messages=(Message(role="assistant", content="3"),))
    with pytest.raises(LabelError, match="has messages"):
        grow(search, seeds=[chat])
    assert asyncio.run(search.grow([])) == []
