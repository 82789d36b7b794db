"""What is minimised: one term a labelled step, a pair, or a trace, from the head's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, pad

from surefoot.errors import TrainingError
from surefoot.models.card import Head
from surefoot.training.config import Loss

_HEADS: dict[Loss, tuple[Head, ...]] = {
    "bce": ("logit",),
    "mse": ("logit", "linear"),
    "classes": ("classes",),
    "pairwise": ("logit",),
    "pqm": ("logit",),
}


def check_head(loss: Loss, head: Head) -> None:
    """Raise ``TrainingError`` if ``loss`` is none for ``head``."""
    if head not in _HEADS[loss]:
        raise TrainingError(
            f"loss {loss!r} trains a head {' or '.join(_HEADS[loss])}, but the card's 'head' is {head!r}"
        )


def reduced_loss(
    loss: Loss,
    head: Head,
    outputs_sc: torch.Tensor,
    targets: list[float],
    *,
    reduction: Literal["mean", "sum"] = "mean",
) -> torch.Tensor:
    """Mean or sum of the terms of outputs ``[S, C]``.

    * ``bce``: cross-entropy of a Bernoulli with its target in [0, 1]; its gradient on the logit is
      (score - target), 0 where they agree, for soft targets too (OmegaPRM, arXiv 2406.06592, eq. 4).
    * ``mse``: square of (score - target), where the score is the logit's sigmoid or the output itself.
    * ``classes``: cross-entropy of the three classes bad, neutral and good (Lightman et al., arXiv
      2305.20050), for targets 0, ½ and 1.
    * ``pairwise``: Bradley-Terry; rows 2k and 2k+1 are the rivals of pair k, whose target is the chance
      that the first is the better one (OmegaPRM).

    Raises ``TrainingError`` for ``classes`` with any other target.
    """
    if loss == "classes":
        return cross_entropy(outputs_sc, _classes(targets).to(outputs_sc.device), reduction=reduction)
    targets_sc = torch.tensor(targets, device=outputs_sc.device)
    logits = outputs_sc[:, 0]
    if loss == "mse":
        scores = torch.sigmoid(logits) if head == "logit" else logits
        return mse_loss(scores, targets_sc, reduction=reduction)
    if loss == "pairwise":
        logits = logits[0::2] - logits[1::2]
    return binary_cross_entropy_with_logits(logits, targets_sc, reduction=reduction)


def ranking_loss(
    logits_s: torch.Tensor, targets: Sequence[float], lengths: Sequence[int], *, zeta: float
) -> torch.Tensor:
    """PQM's comparative loss (Li and Li, arXiv 2410.11287, equation 10), summed over traces.

    The labelled steps of trace n are ``lengths[n]`` consecutive logits Q, in order. With its good steps
    c_1 ... c_m, its bad ones W, and an anchor Q_c0 = 0 before the first step, the trace's term is

        mean over t of -log( exp(Q_ct) / (sum over q <= t of exp(Q_cq) + sum over w in W of exp(Q_w + zeta)) )

    so that later good steps rank above earlier ones, and all of them, by the margin zeta, above bad ones.
    t runs over 1 ... m, and over the anchor where W is not empty, as in the authors' code
    (WindyLee0822/Process_Q_Model); without its 1e-5 in the denominator, which a sum of logarithms does not
    need.

    Raises ``TrainingError`` for a target other than 0 and 1.
    """
    if strange := sorted({target for target in targets if target not in (0.0, 1.0)}):
        raise TrainingError(
            f"the loss pqm ranks good steps above bad ones, so targets are 0 or 1, not {strange[0]:g}: train "
            "it on correctness labels, or on values with 'hard'"
        )
    good_s = torch.tensor(targets, device=logits_s.device) == 1.0
    traces = zip(logits_s.split(list(lengths)), good_s.split(list(lengths)), strict=True)
    return torch.stack([_ranking_term(logits, good, zeta) for logits, good in traces]).sum()


def _ranking_term(logits_k: torch.Tensor, good_k: torch.Tensor, zeta: float) -> torch.Tensor:
    """The term of one trace, from its K steps."""
    ranked = pad(logits_k[good_k], (1, 0))
    above = ranked.logcumsumexp(0)
    if good_k.all():  # the anchor has nothing to outrank: its term is 0 and is not counted
        return (above - ranked)[1:].mean()
    bad = (logits_k[~good_k] + zeta).logsumexp(0)
    return (torch.logaddexp(above, bad) - ranked).mean()


def _classes(targets: list[float]) -> torch.Tensor:
    if strange := sorted({target for target in targets if target not in (0.0, 0.5, 1.0)}):
        raise TrainingError(
            f"three classes have targets 0, 0.5 (neutral) and 1, not {strange[0]:g}: train them on "
            "correctness labels (StepTargets with neutral='class'), or choose the loss bce or mse"
        )
    return torch.tensor([round(2 * target) for target in targets])
