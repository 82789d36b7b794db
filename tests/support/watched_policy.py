"""A policy that writes down what it was asked and what that cost."""

from __future__ import annotations

from functools import reduce

from surefoot.policies import IN_PROCESS
from surefoot.records import Usage


class Watched:
    """``rounds`` holds the requests of each call of ``sample``; ``usage`` is all that was spent."""

    def __init__(self, policy):
        self.policy, self.name, self.rounds, self.usage = policy, policy.name, [], Usage()

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        self.rounds.append(list(requests))
        results = await self.policy.sample(requests)
        self.usage = reduce(Usage.__add__, (result.usage for result in results), self.usage)
        return results

    @property
    def requests(self):
        return [request for requests in self.rounds for request in requests]

    @property
    def drawn(self):
        """Rollouts asked for."""
        return sum(request.n for request in self.requests)


def spent(labelled):
    """Sum of what is on the labels, given one list of labels an item."""
    return reduce(Usage.__add__, (label.evidence.usage for found in labelled for label in found), Usage())
