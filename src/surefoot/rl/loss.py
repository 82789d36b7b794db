"""The policy-gradient loss over per-token advantages, independent of the algorithm.

    L = sum_n w_n [ -i_n J_n + beta KL_n - c H_n ]

Which mean over tokens it is lies in the weights w (:func:`token_weights`). The gain J of a token with
advantage A and ratio rho = π(token) / π_old(token) is, with the bounds clip(rho) in [1 - low, 1 + high],

min(rho A, clip(rho) A) (PPO, arXiv 1707.06347, equation 7; separate bounds: DAPO, arXiv 2503.14476).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from surefoot.rl.config import KL, Mean, Objective


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """What the loss needs of N response tokens; all tensors have shape [N]."""

    logprobs: torch.Tensor
    """log π of the sampled tokens, in nats, with gradient."""
    old_logprobs: torch.Tensor
    """The same, of the policy that drew them."""
    advantages: torch.Tensor
    weights: torch.Tensor
    reference_logprobs: torch.Tensor | None = None
    entropies: torch.Tensor | None = None
    """Entropy of the next-token distribution, in nats."""


@dataclass(frozen=True, kw_only=True)
class LossParts:
    """The loss, a scalar with gradient, and sums over its tokens to watch, without weights."""

    loss: torch.Tensor
    clipped: float
    """Tokens whose ratio lies beyond a bound, which holds their gradient back."""
    kl: float
    """To the reference, in nats; 0 where there is none."""


def policy_loss(batch: TokenBatch, objective: Objective) -> LossParts:
    """The loss of some tokens; sums over parts of a minibatch are the minibatch's."""
    ratio = (batch.logprobs - batch.old_logprobs).exp()
    bounded = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    unbounded_gains, bounded_gains = ratio * batch.advantages, bounded * batch.advantages
    held = bounded_gains < unbounded_gains
    terms = -torch.minimum(unbounded_gains, bounded_gains)
    kl_n = None
    if batch.reference_logprobs is not None and objective.kl is not None:
        kl_n = kl_estimate(batch.logprobs, batch.reference_logprobs, objective.kl)
        if objective.kl.where == "loss":
            terms = terms + objective.kl.coefficient * kl_n
    if batch.entropies is not None and objective.entropy:
        terms = terms - objective.entropy * batch.entropies
    return LossParts(
        loss=(batch.weights * terms).sum(),
        clipped=float(held.sum()),
        kl=0.0 if kl_n is None else float(kl_n.detach().sum()),
    )


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor, kl: KL) -> torch.Tensor:
    """KL(π || π_ref) of each token from the one sampled token, by an estimator of Schulman's note (2020).

    k1 = log(π/π_ref), unbiased, may be negative; k2 = k1² / 2, biased, whose gradient is the KL's;
    k3 = π_ref/π - 1 - log(π_ref/π), unbiased and never negative.
    """
    difference = logprobs - reference
    match kl.estimator:
        case "k1":
            return difference
        case "k2":
            return difference**2 / 2
        case "k3":
            return torch.expm1(-difference) + difference


def token_weights(lengths: Sequence[int], mean: Mean, *, longest: int) -> list[float]:
    """Weight of every token of each of B responses; all tokens of a minibatch together weigh about 1.

    token: 1 / tokens of the minibatch (DAPO); sequence: 1 / (B T) (GRPO as published, which favours short
    right and long wrong answers); constant: 1 / (B ``longest``) (Dr. GRPO, arXiv 2503.20783).
    """
    match mean:
        case "token":
            return [1 / sum(lengths)] * len(lengths)
        case "sequence":
            return [1 / (len(lengths) * length) for length in lengths]
        case "constant":
            return [1 / (len(lengths) * longest)] * len(lengths)
