"""Math-Shepherd's Mistral-7B PRM (arXiv 2312.08935).

Input: ``"{question} {output}"``; in ``output`` each step is followed by `` ки`` (tag 12902), the steps joined
by line ends. No chat template; the tokenizer adds its beginning of text. The data of its training begin
every step with ``Step i:``; nothing is added here to steps that do not. Score: at the tag, softmax over the
logits of ``+`` (648) and ``-`` (387), the first. Only these two rows of the language-model head are read.

Built from the model card's ids as public readers quote them (search-and-learn, OpenR), with ids taken from
the tokenizer by the card's own recipe, ``encode("+ -")`` and ``encode("ки")``. Solution score: minimum of
the steps (the paper). A ``ки`` that ends a step is its tag; one that stands as a word inside is written
``к и``. Never run on the real
weights; whether the hub holds safetensors was not seen, ``pytorch_model.bin`` is read too.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedTokenizerBase

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import PublishedModel, plain_ids, step_texts
from surefoot.segment import token_positions
from surefoot.segment.spans import Span

TAG = "ки"


class MathShepherd(PublishedModel):
    """See the module."""

    CARD = CheckpointCard(
        family="math-shepherd",
        kind="prm",
        encoding=Encoding(template="{problem} "),
        separator="\n",
        aggregation="min",
        score_means="value",
        label_source="Math-Shepherd: one of eight completions right",
        base="Mistral-7B",
    )
    good = 0
    markers = (TAG,)
    separators = (TAG,)
    tag = f"▁{TAG}"

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        written, tags = question + " ", []
        for step in step_texts(text, spans):
            written += f"{step} {TAG}"
            tags.append((len(written) - len(TAG), len(written)))
            written += "\n"
        tokens = self.tokenizer(written[:-1], return_offsets_mapping=True)
        reads = token_positions(written[:-1], tokens["offset_mapping"], tags, whole=True)
        if None in reads:
            raise ScoreError(f"the tokenizer dropped the step tag {TAG!r}; it is not this family's")
        return EncodedTrace(ids=tuple(tokens["input_ids"]), positions=tuple(reads))

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        tokenizer, where = checkpoint.tokenizer, checkpoint.directory
        if not tokenizer.is_fast:
            raise CheckpointError(
                f"{where}: the tokenizer lacks character offsets; tokenizer.json is missing"
            )
        return checkpoint.answers(cls.answer_ids(tokenizer))

    @classmethod
    def answer_ids(cls, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
        signs = plain_ids(tokenizer, "+ -")
        if len(signs) != 2:
            raise CheckpointError(
                f"{tokenizer.name_or_path}: '+ -' is {len(signs)} tokens here, not a plus and a minus"
            )
        return signs[0], signs[1]
