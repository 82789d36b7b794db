"""Strategies by name: how a request is answered."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from surefoot.gateway.errors import ApiError, invalid
from surefoot.search.beam import BeamSearch
from surefoot.search.best_of_n_search import BestOfNSearch
from surefoot.search.dvts import DVTS
from surefoot.search.mcts import MCTS
from surefoot.search.method import Search
from surefoot.search.particle import ParticleFilter
from surefoot.search.rebase import Rebase
from surefoot.search.resample import StepResampling
from surefoot.search.selection import Rule

StreamMode = Literal["end", "chain", "common"]
"""When a stream sends text. end: when everything is done; chain: there is one solution, and the prefix of a
request for its next step has been accepted; common: what all solutions still possible begin with."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way from a prompt to an answer."""

    name: str
    search: Search | None
    """``None`` = what the policy writes is the answer."""
    draws: int
    """Solutions, or next steps of a round, that are drawn at once."""
    needs_scorer: bool
    stream_mode: StreamMode = "end"

    @property
    def family(self) -> str:
        """The name without its numbers: a metric's label, so there must be few, whatever clients send."""
        return _NUMBERS.sub("", self.name)

    @property
    def threshold(self) -> float | None:
        """Lowest score of an accepted step, for a strategy that accepts steps."""
        return self.search.threshold if isinstance(self.search, StepResampling) else None


PLAIN = Strategy(name="plain", search=None, draws=1, needs_scorer=False)
_NUMBERS = re.compile("-[0-9]+(?:x[0-9]+)?$")
_ACCEPT = "accept-reject"
_FORMS = (
    "best-of-N, majority-N, weighted-vote-N, beam-WxE, dvts-TxE, rebase-N, particle-N, mcts-N, "
    "accept-reject, plain"
)


def strategy_of(name: str, *, threshold: float, retries: int) -> Strategy | None:
    """A strategy from its name, such as ``best-of-16``, ``beam-4x4`` (width x expand) or ``dvts-4x4`` (trees
    x expand); ``None`` = not the name of a strategy. Raises :class:`ApiError` for impossible numbers.
    """
    if name == PLAIN.name:
        return PLAIN
    if name == _ACCEPT:
        search = StepResampling(n=1, threshold=threshold, retries=retries, rule="first", name=name)
        return Strategy(name=name, search=search, draws=1, needs_scorer=True, stream_mode="chain")
    for pattern, make in _MAKERS.items():
        match = re.fullmatch(pattern, name)
        if match:
            try:
                return make(name, *(int(number) for number in match.groups()))
            except ValidationError as error:
                problem = invalid(error.errors()).message
                raise ApiError(400, f"strategy {name!r}: {problem}", param="strategy") from error
    return None


def unknown_strategy(name: str) -> ApiError:
    """The error for an unknown strategy."""
    return ApiError(400, f"there is no strategy {name[:100]!r}; choose from {_FORMS}", param="strategy")


def _sampled(name: str, n: int, rule: Rule) -> Strategy:
    search = BestOfNSearch(n=n, rule=rule, name=name)
    return Strategy(name=name, search=search, draws=n, needs_scorer=rule != "majority")


def _beam(name: str, width: int, expand: int) -> Strategy:
    search = BeamSearch(width=width, expand=expand, name=name)
    return Strategy(name=name, search=search, draws=width * expand, needs_scorer=True, stream_mode="common")


def _dvts(name: str, trees: int, expand: int) -> Strategy:
    search = DVTS(n=trees * expand, expand=expand, name=name)
    return Strategy(name=name, search=search, draws=trees * expand, needs_scorer=True, stream_mode="common")


def _scored(name: str, n: int, make: Callable[[str, int], Search]) -> Strategy:
    return Strategy(name=name, search=make(name, n), draws=n, needs_scorer=True)


# one spelling per strategy: names are recorded, and another spelling would count as another strategy
_N, _W = "0|[1-9][0-9]{0,3}", "0|[1-9][0-9]{0,2}"
_MAKERS: dict[str, Callable[..., Strategy]] = {
    f"best-of-({_N})": lambda name, n: _sampled(name, n, "best_of_n"),
    f"majority-({_N})": lambda name, n: _sampled(name, n, "majority"),
    f"weighted-vote-({_N})": lambda name, n: _sampled(name, n, "weighted_vote"),
    f"beam-({_W})x({_W})": _beam,
    f"dvts-({_W})x({_W})": _dvts,
    f"rebase-({_N})": lambda name, n: _scored(name, n, lambda a, b: Rebase(n=b, name=a)),
    f"particle-({_N})": lambda name, n: _scored(name, n, lambda a, b: ParticleFilter(n=b, name=a)),
    f"mcts-({_N})": lambda name, n: _scored(name, n, lambda a, b: MCTS(paths=b, name=a)),
}
