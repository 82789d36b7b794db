"""Searches with a policy that cannot continue a text: whole solutions, cut into steps and scored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gateway_server import LineScorer, lines
from toy_search import STEPS, HashScorer, ScriptedPolicy, Watched, problems, random_solver, searched

from surefoot.search import SEARCHES, Revise
from surefoot.server import Gateway

WHOLE = replace(STEPS, whole=True)


@pytest.mark.parametrize("name", list(SEARCHES))
def test_no_request_begins_with_a_text(name):
    policy, search = Watched(ScriptedPolicy(random_solver())), SEARCHES[name]()
    results = searched(search, problems(3), policy, HashScorer(), steps=WHOLE)
    assert {request.prefix for request in policy.requests} == {""}
    assert all(not request.sampling.stop for request in policy.requests)
    for result in results:
        assert result.counts.failed == 0
        assert result.candidates[result.chosen].finish_reason == "stop"
        assert any(len(trace.steps) > 1 for trace in result.candidates)


def test_a_revision_keeps_no_beginning():
    policy = Watched(ScriptedPolicy(random_solver()))
    searched(Revise(keep=True, threshold=0.9), problems(2), policy, HashScorer(), steps=WHOLE)
    assert len(policy.requests) > 2
    assert {request.prefix for request in policy.requests} == {""}


def test_a_solution_in_one_piece_is_accepted_only_if_all_its_steps_are():
    search = SEARCHES["resample"](n=1, threshold=0.5, retries=5)
    scorer = HashScorer(lambda prefix: 0.1 if "step 0 is 0" in prefix and prefix.count("\n") == 1 else 0.9)
    results = searched(search, problems(20), ScriptedPolicy(random_solver()), scorer, steps=WHOLE)
    rejected = [result for result in results if 0.1 in result.scores[result.chosen].scores]
    assert len(rejected) <= 1


def test_the_gateway_offers_what_its_policy_can_do():
    steps = {"beam-4x4", "accept-reject"}
    full = Gateway(ScriptedPolicy(lines), LineScorer()).planner.models()
    some = Gateway(ScriptedPolicy(lines), LineScorer(), continues=False).planner.models()
    missing = set(full) - set(some)
    kinds = ("beam", "dvts", "rebase", "particle", "mcts", "accept-reject")
    assert missing == {name for name in full if name.startswith(kinds)}
    assert steps <= missing
