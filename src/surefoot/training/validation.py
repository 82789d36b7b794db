"""How well the model parts good steps from bad ones of held-out traces, while it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from surefoot.errors import TrainingError
from surefoot.labels import target_is_good
from surefoot.models.kinds.classifier import RewardModel
from surefoot.stats.roc import roc_auc
from surefoot.training.targets import Example

_TRACES = 32
"""Traces of one forward pass."""


class HeldOut:
    """Labelled traces that are not trained on.

    A step is good from a target of ½ on (a neutral one counts as the card's ``neutral`` says). Raises
    ``TrainingError`` if all steps are good, or all bad: there is no AUC then.
    """

    def __init__(self, examples: Sequence[Example], *, neutral_is_good: bool) -> None:
        self.examples = sorted(examples, key=lambda example: len(example.ids))
        self._good = [
            target_is_good(target, neutral="good" if neutral_is_good else "bad")
            for example in self.examples
            for target in example.targets
        ]
        if len(set(self._good)) < 2:
            raise TrainingError(
                f"the {len(self._good)} held-out steps are all {'good' if any(self._good) else 'bad'}: "
                "early stopping needs both kinds"
            )

    @torch.no_grad()
    def auc(self, model: RewardModel, outputs: Callable[[list[Example]], torch.Tensor]) -> float:
        """Step AUC; ``outputs`` gives the head's outputs [S, C] of some traces. Every process computes it."""
        was_training = model.training
        model.eval()
        scores: list[float] = []
        for start in range(0, len(self.examples), _TRACES):
            batch = self.examples[start : start + _TRACES]
            scores += model.scores(outputs(batch).float()).double().tolist()
        model.train(was_training)
        return roc_auc(scores, self._good).value
