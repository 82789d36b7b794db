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

from collections.abc import Sequence

from torch import nn

from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import (
    PublishedModel,
    chat_text,
    marked,
    one_token,
    plain_ids,
    step_texts,
)
from surefoot.segment.spans import Span

MARKER = "<extra_0>"
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


class QwenPRM(PublishedModel):
    """See the module."""

    CARD = CheckpointCard(
        family="qwen-prm",
        kind="prm",
        encoding=Encoding(template="{problem}", chat=True, system=SYSTEM),
        separator="\n\n",
        aggregation="product",
        score_means="correctness",
        label_source="Monte Carlo and judge in agreement (PRM-7B, -72B); PRM800K, neutral good (7B-PRM800K)",
        base="Qwen2.5-Math-Instruct",
    )
    good = 1
    markers = (MARKER,)
    separators = (MARKER,)
    tag = MARKER

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        answer = "".join(step + MARKER for step in step_texts(text, spans))
        turns = chat_text(self.tokenizer, ("system", SYSTEM), ("user", question), ("assistant", answer))
        ids = plain_ids(self.tokenizer, turns)
        reads = marked(ids, self.tokenizer.convert_tokens_to_ids(MARKER), len(spans))
        return EncodedTrace(ids=tuple(ids), positions=tuple(reads))

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        one_token(checkpoint.tokenizer, MARKER)
        return process_head(checkpoint)


def process_head(checkpoint: Checkpoint) -> nn.Module:
    """Linear, ReLU, Linear from ``score.0`` and ``score.2``."""
    return nn.Sequential(checkpoint.linear("score.0"), nn.ReLU(), checkpoint.linear("score.2", classes=2))
