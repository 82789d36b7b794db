"""Rollouts of one problem: which prefixes a text passes through, and labels that no delay changes."""

from __future__ import annotations

import asyncio
import random
from functools import cache
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_policy import Watched

from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import Difficulty, generate_problems
from surefoot.answers import AnswerChecker, Grader
from surefoot.labelling import MonteCarloLabeller, MonteCarloSettings, OmegaPRMLabeller, TreeSettings
from surefoot.labelling.monte_carlo import independent_groups, prefixes_of
from surefoot.policies import IN_PROCESS
from surefoot.policies.episodes import sample_traces
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, Trace
from surefoot.segment import Line

GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
SOLVER = NoisySolver(error_rate=0.4)
WORDS = st.sampled_from(["".join(letters) for length in range(5) for letters in product("ab", repeat=length)])


@given(st.lists(WORDS, max_size=12), WORDS)
def test_prefixes_are_the_ones_that_brute_force_finds(texts, text):
    expected = sorted({candidate for candidate in texts if text.startswith(candidate)})
    assert sorted(prefixes_of(text, dict.fromkeys(texts))) == expected


def related(one, other):
    """Whether a rollout of one trace may pass through a prefix of the other."""
    begins = [each.trace.prefix(1) for each in (one, other)]
    same = one.problem.id == other.problem.id
    return same and (begins[0].startswith(begins[1]) or begins[1].startswith(begins[0]))


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["a", "ab", "abc", "b", "ba", "c"])), max_size=9)
)
def test_traces_that_may_share_rollouts_are_in_one_group(begins):
    problems = [Problem(text=f"p{number}", answer="1") for number in range(2)]
    items = [
        ProblemTrace(
            problem=problems[p],
            trace=Trace(
                problem_id=problems[p].id,
                text=text + "zz",
                steps=(Step(start=0, end=len(text)), Step(start=len(text), end=len(text) + 2)),
            ),
        )
        for p, text in begins
    ]
    groups = independent_groups(items)
    assert sorted(n for group in groups for n in group) == list(range(len(items)))
    assert groups == sorted(map(sorted, groups))
    where = {number: place for place, group in enumerate(groups) for number in group}
    for one in range(len(items)):
        for other in range(one):
            assert not related(items[one], items[other]) or where[one] == where[other]
    # and no group is larger than needed: each member is related to the shortest
    for group in groups:
        shortest = min(group, key=lambda number: len(items[number].trace.prefix(1)))
        assert all(related(items[shortest], items[number]) for number in group)


class Server:
    """A policy behind a server: calls overlap, and their answers come in an order that ``seed`` decides."""

    overlaps = True

    def __init__(self, seed):
        self.random, self.name = random.Random(seed), SOLVER.name

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        return list(await asyncio.gather(*map(self._one, requests)))

    async def _one(self, request):
        for _ in range(self.random.randrange(12)):
            await asyncio.sleep(0)
        [result] = await SOLVER.sample([request])
        return result


@cache
def lab_items():
    problems = generate_problems(6, seed=3, difficulty=Difficulty(min_operations=2, max_operations=5))
    sampled = asyncio.run(sample_traces(SOLVER, problems, n=5, seed=100, segmenter=Line(), grader=GRADER))
    return tuple(
        ProblemTrace(problem=problem, trace=trace)
        for problem, traces in zip(problems, sampled, strict=True)
        for trace in traces
    )


def facts(rows):
    """Labels without the time of their making."""
    return [[one.model_dump(exclude={"created"}) for one in row] for row in rows]


LABELLERS = {
    f"{rule.estimate}, {order}": lambda policy, rule=rule, order=order: MonteCarloLabeller(
        policy=policy, grader=GRADER, settings=rule.model_copy(update={"order": order})
    )
    for rule in (
        MonteCarloSettings(rollouts=3),
        MonteCarloSettings(estimate="hard"),
    )
    for order in ("every", "until-error", "bisect")
}


def test_no_order_in_which_answers_come_changes_a_tree():
    problems = list({item.problem.id: item.problem for item in lab_items()}.values())

    def labels(policy, made):
        search = OmegaPRMLabeller(
            policy=policy, grader=GRADER, segmenter=Line(), settings=TreeSettings(rollouts=4, search_limit=5)
        )
        trees = asyncio.run(search.grow(made))
        return facts(item.labels for tree in trees for item in search.labelled_traces(tree))

    alone = [row for problem in problems for row in labels(SOLVER, [problem])]
    assert labels(SOLVER, problems) == alone
    for seed in range(4):
        assert labels(Server(seed), problems) == alone


@pytest.mark.parametrize("name", LABELLERS)
def test_no_order_in_which_answers_come_changes_a_label(name):
    build, items = LABELLERS[name], lab_items()
    alone = facts(row for one in problems_of(items) for row in asyncio.run(build(SOLVER).label(one)))
    assert facts(asyncio.run(build(SOLVER).label(items))) == alone
    for seed in range(4):
        assert facts(asyncio.run(build(Server(seed)).label(items))) == alone


def problems_of(items):
    by_problem = {}
    for one in items:
        by_problem.setdefault(one.problem.id, []).append(one)
    return by_problem.values()


def test_a_policy_in_this_process_gets_the_requests_of_all_problems_at_once():
    items = lab_items()
    watched, settings = Watched(SOLVER), MonteCarloSettings(order="until-error")
    labeller = MonteCarloLabeller(policy=watched, grader=GRADER, settings=settings)
    asyncio.run(labeller.label(items))
    prompts = [{request.prompt for request in requests} for requests in watched.rounds]
    assert len(prompts[0]) == len(problems_of(items))
    assert all(later <= earlier for earlier, later in pairwise(prompts)), "each goes on until it is done"
