"""Any causal language model of transformers, in this process.

Each distinct prompt goes through the model once, however many samples are drawn from it; rows that are
finished leave the batch. The random numbers of a sample depend on its seed, its prompt and its number
only, so the same request gives the same samples whatever it is batched with (up to rounding of logits).
"""

from __future__ import annotations

from surefoot.policies.transformers.policy import TransformersPolicy

__all__ = ["TransformersPolicy"]
