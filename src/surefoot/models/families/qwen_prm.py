"""Qwen2.5-Math-PRM-7B, -72B and Qwen2.5-Math-7B-PRM800K (arXiv 2501.07301, 2412.06559).

Input: the tokenizer's chat template, without generation prompt, on a system message (``SYSTEM``), the
question as user, and as assistant the steps, each followed by ``<extra_0>`` (id 151651), with nothing
between. Score: class 1 of a softmax over two classes at each ``<extra_0>``. The head, which the hub defines
in remote code (``Qwen2ForProcessRewardModel``), is Linear(h, h), ReLU, Linear(h, 2); it is read here from
``score.0`` and ``score.2``, and no remote code is run.

Built from the model cards (input, softmax, marker) and from the ports of the head in vLLM and SGLang (its
shape and names, and that an ``lm_head`` in the files is to be ignored). Solution score: product of the steps
(arXiv 2501.07301). Never run on the real weights; the sizes of the real ``config.json`` were not seen.
"""

from __future__ import annotations

import torch
from torch import nn

from surefoot.errors import CheckpointError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import Family, FamilyMatch, PublishedModel, Written, marked, one_token
from surefoot.policies.prompts import render_chat
from surefoot.records import Message

ARCHITECTURE = "Qwen2ForProcessRewardModel"
MARKER = "<extra_0>"
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."

CARD = CheckpointCard(
    family="qwen-prm",
    kind="prm",
    encoding=Encoding(template="{problem}", chat=True, system=SYSTEM),
    aggregation="product",
    score_means="correctness",
    label_source="Monte Carlo and judge in agreement (PRM-7B, -72B); PRM800K, neutral good (7B-PRM800K)",
    base="Qwen2.5-Math-Instruct",
)


class QwenPRM(PublishedModel):
    """See the module."""

    def write(self, question: str, steps: list[str]) -> Written:
        messages = [
            Message(role="system", content=SYSTEM),
            Message(role="user", content=question),
            Message(role="assistant", content="".join(step + MARKER for step in steps)),
        ]
        text = render_chat(self.tokenizer, messages, generation=False)
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return Written(ids=ids, reads=marked(ids, self.tokenizer.convert_tokens_to_ids(MARKER), len(steps)))

    def scores(self, logits_sc: torch.Tensor) -> torch.Tensor:
        return logits_sc.softmax(dim=-1)[:, 1]


def process_head(checkpoint: Checkpoint) -> tuple[nn.Module, list[str]]:
    """Linear, ReLU, Linear from ``score.0`` and ``score.2``, and the names of their tensors."""
    head = nn.Sequential(checkpoint.linear("score.0"), nn.ReLU(), checkpoint.linear("score.2"))
    if head[2].out_features != 2:
        raise CheckpointError(f"{checkpoint.directory}: score.2 has {head[2].out_features} classes, not 2")
    return head, [f"score.{name}" for name in head.state_dict()]


def _fit(checkpoint: Checkpoint) -> FamilyMatch:
    named = ARCHITECTURE in checkpoint.architectures
    return FamilyMatch.YES if named and checkpoint.token_id(MARKER) is not None else FamilyMatch.NO


def _load(checkpoint: Checkpoint) -> PublishedModel:
    one_token(checkpoint, MARKER)
    head, names = process_head(checkpoint)
    return QwenPRM(checkpoint.trunk(names), checkpoint.tokenizer, CARD, head, markers=(MARKER,))


FAMILY = Family(
    name=CARD.family,
    repositories=("Qwen/Qwen2.5-Math-PRM-7B", "Qwen/Qwen2.5-Math-PRM-72B", "Qwen/Qwen2.5-Math-7B-PRM800K"),
    fit=_fit,
    load=_load,
)
