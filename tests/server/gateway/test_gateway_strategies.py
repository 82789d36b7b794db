"""Names of strategies: one spelling each, and few families."""

from __future__ import annotations

import pytest

from surefoot.server import strategy_of
from surefoot.server.gateway.errors import ApiError

FAMILIES = {
    "plain": "plain",
    "accept-reject": "accept-reject",
    "best-of-16": "best-of",
    "majority-8": "majority",
    "weighted-vote-1000": "weighted-vote",
    "beam-4x4": "beam",
    "dvts-10x2": "dvts",
    "rebase-16": "rebase",
    "particle-16": "particle",
    "mcts-16": "mcts",
}


def made(name: str):
    return strategy_of(name, threshold=0.5, retries=2)


@pytest.mark.parametrize(("name", "family"), FAMILIES.items())
def test_a_strategy_has_its_name_and_its_family(name: str, family: str) -> None:
    found = made(name)
    assert (found.name, found.family) == (name, family)


@pytest.mark.parametrize(
    "name",
    [
        "best-of-01",
        "best-of-١",
        "best-of-１",
        "best-of-00",
        "best-of-16\n",
        "best-of-10000",
        "beam-04x4",
        "beam-4x٤",
        "beam-1000x1",
        "mcts-²",
    ],
)
def test_another_spelling_is_no_strategy(name: str) -> None:
    assert made(name) is None


def test_numbers_that_make_no_strategy_are_named() -> None:
    for name in ("best-of-0", "beam-0x4"):
        with pytest.raises(ApiError, match="greater than or equal to 1"):
            made(name)
