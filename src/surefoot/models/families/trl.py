"""Token classifiers: PURE's (:class:`Pure`), and those that TRL's ``PRMTrainer`` trains (experimental since
TRL 0.24).

Input: the tokenizer's beginning of text if it names one, the ids of the question, then for each step its ids
and the separator's ids, each piece tokenised separately without special tokens. The separator is
``SEPARATOR``, TRL's default; a checkpoint does not say which it was trained with. Score: class 1 of a
softmax over two classes at the separator's last token. The head is the ``score`` (in some architectures
``classifier``) layer of a ``…ForTokenClassification`` model.

Built from TRL's ``PRMTrainer.tokenize_row`` and its documentation. TRL names no rule for a whole solution;
the minimum is the package's default. Never run on the real weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import PublishedModel, plain_ids, step_texts
from surefoot.models.families.qwen_prm import process_head
from surefoot.segment.spans import Span

SEPARATOR = "\n"


class TokenClassifier(PublishedModel):
    """See the module."""

    CARD = CheckpointCard(
        family="trl",
        kind="prm",
        encoding=Encoding(template="{problem}"),
        aggregation="min",
        score_means="correctness",
        label_source="not recorded in the checkpoint",
        base="not recorded in the checkpoint",
    )
    good = 1

    begins = True
    """Whether the tokenizer's beginning of text comes first."""

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        separator = plain_ids(self.tokenizer, SEPARATOR)
        first = self.tokenizer.bos_token_id if self.begins else None
        ids = [*(() if first is None else (first,)), *plain_ids(self.tokenizer, question)]
        reads = []
        for step in step_texts(text, spans):
            ids += [*plain_ids(self.tokenizer, step), *separator]
            reads.append(len(ids) - 1)
        return EncodedTrace(ids=tuple(ids), positions=tuple(reads))

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        name = "classifier" if "classifier.weight" in checkpoint.tensors else "score"
        return checkpoint.linear(name, classes=2)


class Pure(TokenClassifier):
    """PURE's PRM, PURE-PRM-7B (arXiv 2504.15275), also published as jinachris/Qwen2.5-Math-7B-PRM800K.

    Input: the ids of the question, then for each step its ids and the id of one line end. No chat template,
    no beginning of text. Score: p1 - p0 of a softmax over two classes at the line end, in [-1, 1]; above 0
    means correct. The authors cut steps at blank lines, but write one line end after each
    (``prm_step_separator`` in their trainer; the card's text; their ``process_bench.py`` is called with it).

    Built from the authors' repository (``experience_maker.py``, ``utils.py``, ``PRM/finetune.py``) and their
    card. They train with TRL, and call the score layer an MLP, so the checkpoint seems to carry the head of
    ``Qwen2ForProcessRewardModel``; both that head and a plain linear one are read. Solution score: minimum;
    the authors use a softmax-weighted sum (temperature 0.1) that approaches it. Never run on the real
    weights; the real names of the head's weights were not seen.
    """

    CARD = CheckpointCard(
        family="pure",
        kind="prm",
        encoding=Encoding(template="{problem}"),
        separator="\n\n",
        aggregation="min",
        score_means="correctness",
        label_source="PRM800K, neutral as good",
        base="Qwen2.5-Math-7B",
    )

    begins = False

    def scores(self, logits_sc: torch.Tensor) -> torch.Tensor:
        chances = logits_sc.softmax(dim=-1)
        return chances[:, 1] - chances[:, 0]

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        wide = "score.0.weight" in checkpoint.tensors
        return process_head(checkpoint) if wide else super().read_head(checkpoint)
