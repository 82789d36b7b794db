"""Models in this process that keep what they have read, since a search asks for the same prefixes again.

Each piece of work starts with models that remember nothing: its results are then the same bytes whether or
not the command was stopped before it.
"""

from __future__ import annotations

from surefoot.models.incremental import IncrementalScorer
from surefoot.models.scorer import CheckpointScorer, Scorer
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Policy

POLICY_TOKENS = 200_000
"""Tokens whose keys and values a policy keeps at most."""


def remembering_policy(policy: Policy) -> Policy:
    """The same weights, with an empty memory; a server's model as it is."""
    if not isinstance(policy, TransformersPolicy):
        return policy
    return TransformersPolicy(
        policy.model,
        policy.tokenizer,
        name=policy.name,
        batch_size=policy.batch_size,
        remember=POLICY_TOKENS,
    )


def remembering_scorer(scorer: CheckpointScorer) -> CheckpointScorer:
    """The same weights, with an empty memory; a model that is no classifier of steps as it is."""
    if type(scorer) is Scorer:  # other kinds have ways of their own
        return IncrementalScorer(scorer.model, name=scorer.name, batch_tokens=scorer.batch_tokens)
    below = getattr(scorer, "scorer", None)
    if type(below) is not Scorer:
        return scorer
    from surefoot.models.calibrated import CalibratedPRM  # sklearn, only where it is needed

    if not isinstance(scorer, CalibratedPRM):
        return scorer
    return CalibratedPRM(remembering_scorer(below), scorer.calibration)
