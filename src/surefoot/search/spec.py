"""Searches as text: ``METHOD:setting=value,…``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from surefoot.search.beam import DVTS, BeamSearch
from surefoot.search.best_of_n_search import BestOfNSearch, Majority
from surefoot.search.mcts import MCTS
from surefoot.search.method import Search, SearchMethod
from surefoot.search.particle import ParticleFilter
from surefoot.search.rebase import Rebase
from surefoot.search.resample import StepResampling
from surefoot.search.revise import Revise
from surefoot.spec import parse_method

SEARCHES: Mapping[str, type[SearchMethod]] = MappingProxyType(
    {
        "best_of_n": BestOfNSearch,
        "majority": Majority,
        "beam": BeamSearch,
        "dvts": DVTS,
        "rebase": Rebase,
        "particle": ParticleFilter,
        "mcts": MCTS,
        "resample": StepResampling,
        "revise": Revise,
    }
)
"""Searches by the name of the command line and the reports; all work with their defaults."""


def search_of(text: str) -> Search:
    """The search that ``METHOD`` or ``METHOD:setting=value,…`` describes; the text becomes its name.

    Raises ``RunError`` for an unknown method or setting, or an invalid value.
    """
    return parse_method(text, SEARCHES, what="search", omit=("name",), name=text)
