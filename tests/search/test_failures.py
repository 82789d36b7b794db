"""What goes wrong outside a search: it is told, or survived, and nothing runs on behind its back."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from toy_search import HashScorer, ScriptedPolicy, problems, random_solver, searched

from surefoot.batching import Batcher
from surefoot.errors import PolicyError
from surefoot.policies import IN_PROCESS
from surefoot.protocols import STOP_UNKNOWN, Completion, SampleResult
from surefoot.records import Usage
from surefoot.search import DVTS, BeamSearch, MajoritySearch

[QUESTION] = problems(1)


class Vague:
    """A server that cuts at the stop text and says no more than "stop"."""

    name = "vague"

    def __init__(self, policy) -> None:
        self.policy = policy

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        return [
            dataclasses.replace(
                result,
                completions=tuple(
                    dataclasses.replace(one, text=one.text.rstrip("\n"), finish_reason=STOP_UNKNOWN)
                    if request.sampling.stop
                    else one
                    for one in result.completions
                ),
            )
            for request, result in zip(requests, await self.policy.sample(requests), strict=True)
        ]


@pytest.mark.parametrize("search", [BeamSearch(width=2, expand=2), BeamSearch(width=1, expand=2)])
def test_a_server_that_does_not_tell_the_end_of_a_step_is_refused(search):
    policy = Vague(ScriptedPolicy(random_solver()))
    with pytest.raises(PolicyError, match="does not say whether a step or the solution ended"):
        searched(search, [QUESTION], policy, HashScorer())


def test_whole_solutions_need_no_such_word():
    policy = Vague(ScriptedPolicy(random_solver()))
    [result] = searched(MajoritySearch(n=3), [QUESTION], policy)
    assert result.answer is not None


def test_solutions_that_have_ended_outlive_a_failure_of_their_tree():
    class Once:
        name = "once"

        def __init__(self) -> None:
            self.calls = 0

        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests):
            self.calls += 1
            if self.calls > 1:
                return [SampleResult(completions=(), usage=Usage(), error="policy: 503") for _ in requests]
            texts = ["good start\n", *["The answer is 0"] * 3]
            made = tuple(Completion(text=text, finish_reason="stop", tokens=3) for text in texts)
            return [SampleResult(completions=made, usage=Usage())]

    scorer = HashScorer(lambda prefix: 0.9 if prefix.startswith("good") else 0.5)
    [result] = searched(DVTS(n=4, expand=4), [QUESTION], Once(), scorer)
    assert (result.answer, result.counts.failed) == ("0", 1)


def test_a_cancelled_run_takes_its_batch_along():
    class Slow:
        name = "slow"
        cancelled = False

        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return []

    async def main() -> bool:
        policy = Slow()
        batcher = Batcher(policy)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher.run([batcher.sample([])]), 0.05)
        return policy.cancelled

    assert asyncio.run(main())
