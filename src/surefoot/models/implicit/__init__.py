"""The implicit process reward model: a language model trained on outcomes whose log-ratios are step rewards.

Yuan et al., "Free process rewards without process labels", arXiv 2412.01981. If a response's reward is
r(y) = beta log π(y) / π_ref(y), the sum of the log-ratios up to a step is the reward to be expected from
there, an implied Q (a soft mean; the paper's proposition); a step's own reward is the difference of two.
"""

from __future__ import annotations

from surefoot.models.implicit.checkpoint import FAMILY, SETTINGS, ImplicitSettings
from surefoot.models.implicit.model import ImplicitPRM
from surefoot.models.implicit.rewards import ImplicitRewards, Read, counted_tokens, response_of, scores_of

__all__ = [
    "FAMILY",
    "SETTINGS",
    "ImplicitPRM",
    "ImplicitRewards",
    "ImplicitSettings",
    "Read",
    "counted_tokens",
    "response_of",
    "scores_of",
]
