"""ReasonEval-7B and -34B (arXiv 2404.05692).

Input: ``PROMPT`` with the question, then the steps, the tokenizer's pad token after the prompt and after each
step; all tokenised as one text, then the pad tokens are taken out. Score: softmax over three classes
[negative, neutral, positive]; validity is neutral + positive and is the score (neutral alone is their
redundancy). The head is ``score_head`` (h → 3).

Where it is read follows the authors' ``codes/examples.py`` to the letter. For the 34B (Llama) that is each
step's last token. For the 7B (Mistral) the pad token is also the beginning of text: the script takes it out
with the separators, puts it back in front, and does not count it, so it reads the token before a step's last
one. The figures printed in that script come from there, so it is kept.

Built from that script (input, positions, classes, names of the head). Solution score: minimum validity (the
script). Never run on the real weights; the 7B's special tokens are inferred from the script.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import PublishedModel, step_texts
from surefoot.segment.spans import Span

PROMPT = "Question:\n{problem}\nAnswer:\nLet's think step by step.\n"


class ReasonEval(PublishedModel):
    """See the module."""

    CARD = CheckpointCard(
        family="reasoneval",
        kind="prm",
        encoding=Encoding(template=PROMPT),
        aggregation="min",
        score_means="correctness",
        label_source="PRM800K",
        base="WizardMath-7B-V1.1 (7B), llemma_34b (34B)",
    )

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        separator = self.tokenizer.pad_token
        pieces = [PROMPT.replace("{problem}", question), *step_texts(text, spans)]
        tokens = self.tokenizer("".join(piece + separator for piece in pieces))["input_ids"]
        mark = self.tokenizer.pad_token_id
        ids: list[int] = []
        ends: list[int] = []  # last token before each separator, counted without separators
        for token in tokens:
            if token == mark:
                ends.append(len(ids) - 1)
            else:
                ids.append(token)
        begins = mark == self.tokenizer.bos_token_id
        reads = ends[2:] if begins else ends[1:]
        if len(reads) != len(spans):
            raise ScoreError(f"{len(reads)} step separators ({separator!r}) came back for {len(spans)} steps")
        return EncodedTrace(ids=tuple([mark, *ids] if begins else ids), positions=tuple(reads))

    def scores(self, logits_sc: torch.Tensor) -> torch.Tensor:
        return logits_sc.softmax(dim=-1)[:, 1:].sum(dim=-1)

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        if checkpoint.tokenizer.pad_token is None:
            raise CheckpointError(
                f"{checkpoint.directory}: the tokenizer names no pad_token, which separates steps"
            )
        return checkpoint.linear("score_head", classes=3)
