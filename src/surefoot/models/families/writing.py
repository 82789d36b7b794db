"""Base class of published families that write a critique: a language model and its chat template."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.models.card import CheckpointCard
from surefoot.models.engine.causal import load_causal
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import FamilyMatch, is_causal, within_context
from surefoot.models.scorer import CheckpointScorer

THOUGHT_END = "</think>"


class WritingModel(ABC):
    """A language model that criticises. Its files look like any reasoning model's, so they do not show the
    family."""

    CARD: ClassVar[CheckpointCard]
    repositories: ClassVar[tuple[str, ...]]
    """Names on the hub, ``owner/name``."""
    has_reference: ClassVar[bool] = False

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ``CheckpointError`` without a chat template."""
        if not tokenizer.chat_template:
            raise CheckpointError(
                f"{tokenizer.name_or_path}: the tokenizer lacks a chat template; family "
                f"{self.CARD.family!r} needs it"
            )
        self.model, self.tokenizer = model.eval(), tokenizer
        self.card = within_context(self.CARD, model)

    @classmethod
    def match(cls, checkpoint: Checkpoint) -> FamilyMatch:
        """What the files say: a Qwen2 that closes thoughts, as DeepSeek-R1-Distill-Qwen does, is possible."""
        reasons = is_causal(checkpoint, "qwen2") and checkpoint.token_id(THOUGHT_END) is not None
        return FamilyMatch.POSSIBLE if reasons else FamilyMatch.NO

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        """Raises ``CheckpointError``."""
        return cls(
            *load_causal(checkpoint.directory, checkpoint.loading, trust_remote_code=checkpoint.remote)
        )

    @abstractmethod
    def scorer(self, *, name: str, batch_tokens: int, chains: int) -> CheckpointScorer:
        """What scores with this model, by ``chains`` critiques. Raises ``ScoreError``."""
