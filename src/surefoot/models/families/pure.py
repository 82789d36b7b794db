"""PURE's PRM, PURE-PRM-7B (arXiv 2504.15275), also published as jinachris/Qwen2.5-Math-7B-PRM800K.

Input: the ids of the question, then for each step its ids and the id of one line end. No chat template, no
beginning of text. Score: p1 - p0 of a softmax over two classes at the line end, in [-1, 1]; above 0 means
correct. The authors cut steps at blank lines, but write one line end after each (``prm_step_separator`` in
their trainer; the card's text; their ``process_bench.py`` is called with it).

Built from the authors' repository (``experience_maker.py``, ``utils.py``, ``PRM/finetune.py``) and their
card. They train with TRL, and call the score layer an MLP, so the checkpoint seems to carry the head of
``Qwen2ForProcessRewardModel``; both that head and a plain linear one are read. Solution score: minimum; the
authors use a softmax-weighted sum (temperature 0.1) that approaches it. Never run on the real weights; the
real names of the head's weights were not seen.
"""

from __future__ import annotations

import torch
from torch import nn

from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.qwen_prm import process_head
from surefoot.models.families.trl import TokenClassifier, classifier_head


class Pure(TokenClassifier):
    """See the module."""

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
        return process_head(checkpoint) if wide else classifier_head(checkpoint)
