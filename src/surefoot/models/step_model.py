"""What a scorer needs of a reward model, whatever its family: tokens in, scores out of hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace
from surefoot.protocols import ProblemTrace


class StepModel(Protocol):
    """A trunk whose hidden state at one token of each step gives that step's score.

    So one scorer serves them all: it shares prefixes, fills batches and keeps caches, and knows neither how a
    family writes its input nor what its head looks like.
    """

    @property
    def trunk(self) -> PreTrainedModel:
        """Gives ``last_hidden_state``; without a language-model head."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def card(self) -> CheckpointCard: ...

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Token ids of each trace, and where each step is read. Raises ``ScoreError``."""

    def read(self, hidden_sh: torch.Tensor) -> torch.Tensor:
        """Scores ``[S]`` of S read-out positions from their last hidden states ``[S, H]``."""
