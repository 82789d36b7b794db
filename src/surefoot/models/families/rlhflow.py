"""RLHFlow's Llama3.1-8B PRMs, trained on Mistral and on DeepSeek data.

Input: the tokenizer's chat template on turns: user ``"{question} {step 0}"``, assistant ``+``, user
``step 1``, assistant ``+`` and so on, steps without the white space around them. Score: softmax over the
logits of ``+`` and ``-`` at the token before each assistant's sign, the first. The authors run the model
once a step; here it runs once a trace, which a causal model cannot tell apart. For that the assistant's
turns hold ``<|reserved_special_token_0|>`` (128002), whose places are known, until its id is swapped for
the id of ``+``. Only two rows of the language-model head are read.

The two checkpoints differ in how their data cut steps (``ки`` and line end, or blank line), not in how they
are read: cut the traces accordingly. A ``ки`` at a step's end is left out, after the last step too, where the
authors' script leaves it if no line end follows. Built from the authors' ``math-rm/prm_evaluate.py``, whose
chat template is the tokenizer's; that the training used the same was not verified. Solution score: mean of
the steps (that script). Never run on the real weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedTokenizerBase

from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import (
    PublishedModel,
    Turn,
    chat_text,
    marked,
    one_token,
    plain_ids,
    step_texts,
)
from surefoot.segment.spans import Span

PLACE = "<|reserved_special_token_0|>"


class RLHFlow(PublishedModel):
    """See the module."""

    CARD = CheckpointCard(
        family="rlhflow",
        kind="prm",
        encoding=Encoding(template="{problem} ", chat=True),
        aggregation="mean",
        score_means="value",
        label_source="completions of Mistral or DeepSeek solutions",
        base="Llama-3.1-8B-Instruct",
    )
    good = 0
    markers = (PLACE,)
    separators = ("ки",)

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        texts = [step.strip() for step in step_texts(text, spans)]
        texts[0] = f"{question} {texts[0]}"
        turns: list[Turn] = []
        for content in texts:
            turns += ("user", content), ("assistant", PLACE)
        ids = plain_ids(self.tokenizer, chat_text(self.tokenizer, *turns))
        positions = marked(ids, self.tokenizer.convert_tokens_to_ids(PLACE), len(spans))
        for position in positions:
            ids[position] = one_token(self.tokenizer, "+")
        return EncodedTrace(ids=tuple(ids), positions=tuple(position - 1 for position in positions))

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        one_token(checkpoint.tokenizer, PLACE)
        return checkpoint.answers(cls.answer_ids(checkpoint.tokenizer))

    @classmethod
    def answer_ids(cls, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
        return one_token(tokenizer, "+"), one_token(tokenizer, "-")
