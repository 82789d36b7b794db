"""Choosing among solutions, and search guided by step scores.

Selection rules with unbiased estimates of how well they do with k samples; and searches, one file a method,
all on one :class:`Search` protocol, run by :func:`run_search`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from surefoot.search.beam import BeamSearch, beam_search
from surefoot.search.best_of_n_search import BestOfNSearch
from surefoot.search.dvts import DVTS
from surefoot.search.estimators import Pool, best_of_n, pass_at_k, selection_curve, vote_at_k
from surefoot.search.mcts import MCTS
from surefoot.search.method import Search, run_search
from surefoot.search.optimal import ComputeOptimal, Fit, Probe, Trial, fit_optimal, predict_difficulties
from surefoot.search.particle import ParticleFilter
from surefoot.search.rebase import Rebase
from surefoot.search.resample import StepResampling
from surefoot.search.result import RULES, SearchResult
from surefoot.search.selection import SELECTORS, BestOfN, Majority, WeightedVote
from surefoot.search.space import Space, Steps

SEARCHES: Mapping[str, type] = MappingProxyType(
    {
        "best_of_n": BestOfNSearch,
        "beam": BeamSearch,
        "dvts": DVTS,
        "rebase": Rebase,
        "particle": ParticleFilter,
        "mcts": MCTS,
        "resample": StepResampling,
        "optimal": ComputeOptimal,
    }
)
"""Searches by the name of the command line and the reports; all but the last work with their defaults."""

__all__ = [
    "DVTS",
    "MCTS",
    "RULES",
    "SEARCHES",
    "SELECTORS",
    "BeamSearch",
    "BestOfN",
    "BestOfNSearch",
    "ComputeOptimal",
    "Fit",
    "Majority",
    "ParticleFilter",
    "Pool",
    "Probe",
    "Rebase",
    "Search",
    "SearchResult",
    "Space",
    "StepResampling",
    "Steps",
    "Trial",
    "WeightedVote",
    "beam_search",
    "best_of_n",
    "fit_optimal",
    "pass_at_k",
    "predict_difficulties",
    "run_search",
    "selection_curve",
    "vote_at_k",
]
