"""What is minimised: one term a labelled step, or a pair, from the head's outputs."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from surefoot.errors import TrainingError
from surefoot.models.card import Head
from surefoot.training.config import Loss

_HEADS: dict[Loss, tuple[Head, ...]] = {
    "bce": ("logit",),
    "mse": ("logit", "linear"),
    "classes": ("classes",),
    "pairwise": ("logit",),
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
    wanted = torch.tensor(targets, device=outputs_sc.device)
    logits = outputs_sc[:, 0]
    if loss == "mse":
        scores = torch.sigmoid(logits) if head == "logit" else logits
        return mse_loss(scores, wanted, reduction=reduction)
    if loss == "pairwise":
        logits = logits[0::2] - logits[1::2]
    return binary_cross_entropy_with_logits(logits, wanted, reduction=reduction)


def _classes(targets: list[float]) -> torch.Tensor:
    if strange := sorted({target for target in targets if target not in (0.0, 0.5, 1.0)}):
        raise TrainingError(
            f"three classes have targets 0, 0.5 (neutral) and 1, not {strange[0]:g}: train them on "
            "correctness labels (StepTargets with neutral='class'), or choose the loss bce or mse"
        )
    return torch.tensor([round(2 * target) for target in targets])
