"""Step labels by tree search (Luo et al., OmegaPRM, arXiv 2406.06592).

A wrong solution is taken from a pool, its first error is found by binary search with rollouts, and the
rollouts from the good prefixes on the way are solutions themselves: the wrong ones join the pool.
"""

from __future__ import annotations

from surefoot.labelling.omegaprm.labeller import OmegaPRMLabeller
from surefoot.labelling.omegaprm.search import TreeSettings

__all__ = ["OmegaPRMLabeller", "TreeSettings"]
