"""ThinkPRM-1.5B, -7B and -14B, verifiers that write a critique (arXiv 2504.16828).

Input: the tokenizer's chat template with generation prompt on one user message with problem and numbered
steps, then ``\\nLet's verify step by step:``. The model writes a verdict on each step; then the odds of "
Yes" against " No" are read after ``</think>\\nIs the solution correct?``. Texts and rules are the defaults
of :class:`surefoot.models.kinds.verifier_format.VerifierFormat`; the scorer is
:class:`surefoot.models.kinds.generative.GenerativeVerifier`: the last step's is the solution's. One
critique is written greedily, several at temperature 0.6.

Built from the authors' repository (``utils/helper.py``: the prompt; ``prm/__init__.py`` and their later
class: headings, " Yes" and " No") and the model card (its transcript). vLLM puts a second beginning of text
before the template's where the authors pass it the prompt as text; here there is one. Never run on the real
weights.
"""

from __future__ import annotations

from typing import Self

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.engine.causal import load_causal
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import within_context
from surefoot.models.kinds.generative import GenerativeVerifier
from surefoot.models.kinds.verifier_format import VerifierFormat


class ThinkPRM:
    """See the module."""

    CARD = CheckpointCard(
        family="thinkprm",
        kind="prm",
        encoding=Encoding(template="{problem}", chat=True),
        aggregation="last",
        score_means="correctness",
        label_source="critiques by QwQ-32B-Preview that agree with PRM800K",
        base="DeepSeek-R1-Distill-Qwen",
    )

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ``CheckpointError`` without a chat template."""
        if not tokenizer.chat_template:
            raise CheckpointError(
                f"{tokenizer.name_or_path}: the tokenizer lacks a chat template; family 'thinkprm' needs it"
            )
        self.model, self.tokenizer = model.eval(), tokenizer
        self.card = within_context(self.CARD, model)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        """Raises ``CheckpointError``."""
        return cls(*load_causal(checkpoint.directory, checkpoint.loading))

    def scorer(self, *, name: str, batch_tokens: int, chains: int) -> GenerativeVerifier:
        """What scores with this model. Raises ``ScoreError`` if " Yes" or " No" is not one token."""
        return GenerativeVerifier.of_model(
            self.model,
            self.tokenizer,
            name=name,
            form=VerifierFormat(),
            card=self.card,
            batch_tokens=batch_tokens,
            chains=chains,
        )
