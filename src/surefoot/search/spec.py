"""Searches as text: ``METHOD:setting=value,…``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from surefoot.search.beam import DVTS, BeamSearch
from surefoot.search.best_of_n_search import BestOfNSearch, MajoritySearch
from surefoot.search.mcts import MCTS
from surefoot.search.method import SearchMethod
from surefoot.search.particle import ParticleFilter
from surefoot.search.rebase import Rebase
from surefoot.search.resample import StepResampling
from surefoot.search.revise import Revise
from surefoot.spec import parse_method

SEARCHES: Mapping[str, type[SearchMethod]] = MappingProxyType(
    {
        kind.method: kind
        for kind in (
            BestOfNSearch,
            MajoritySearch,
            BeamSearch,
            DVTS,
            Rebase,
            ParticleFilter,
            MCTS,
            StepResampling,
            Revise,
        )
    }
)
"""Searches by the names of their methods; all work with their defaults."""


def search_of(text: str) -> SearchMethod:
    """The search that ``METHOD`` or ``METHOD:setting=value,…`` describes.

    Raises ``RunError`` for an unknown method or setting, or an invalid value.
    """
    return parse_method(text, SEARCHES, what="search")
