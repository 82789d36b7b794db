"""Models in this process with a prefix cache, because a search asks for the same prefixes repeatedly.

Each piece of work starts with empty caches, so its results are the same bytes whether or not the command was
stopped before it.
"""

from __future__ import annotations

import sys
from typing import cast

from surefoot.models.kinds.derived import CalibratedScorer
from surefoot.models.scorer import CheckpointScorer, Scorer
from surefoot.protocols import Policy, StepScorer


def remembering_policy(policy: Policy, size: int) -> Policy:
    """The same weights with an empty cache of ``size`` bytes; a server's model unchanged."""
    if "surefoot.policies.transformers" not in sys.modules:  # no policy is one of this process
        return policy
    from surefoot.policies.transformers import TransformersPolicy, bytes_per_token

    if not isinstance(policy, TransformersPolicy):
        return policy
    return TransformersPolicy(
        policy.model,
        policy.tokenizer,
        name=policy.name,
        batch_size=policy.batch_size,
        bf16=policy.bf16,
        remember=_tokens(size, bytes_per_token(policy.model.config, policy.model.dtype)),
    )


def remembering_scorer(scorer: StepScorer, size: int) -> StepScorer:
    """The same weights with an empty cache of ``size`` bytes; other models are returned unchanged."""
    if isinstance(scorer, Scorer) and type(scorer) is Scorer:  # subclasses score in other ways
        from surefoot.models.engine.causal import IncrementalScorer, bytes_per_scored_token

        tokens = _tokens(size, bytes_per_scored_token(scorer.model.trunk))
        if not tokens:
            return scorer
        return IncrementalScorer(
            scorer.model, name=scorer.name, batch_tokens=scorer.batch_tokens, max_tokens=tokens
        )
    below = getattr(scorer, "scorer", None)
    if type(below) is not Scorer:
        return scorer
    if not isinstance(scorer, CalibratedScorer):
        return scorer
    return CalibratedScorer(cast(CheckpointScorer, remembering_scorer(below, size)), scorer.calibration)


def _tokens(size: int, each: int | None) -> int:
    """How many tokens fit; 0 for a model without keys and values."""
    return size // each if each else 0
