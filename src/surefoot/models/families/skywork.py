"""Skywork-o1-Open-PRM, 1.5B and 7B.

Input: ``encode(bos + question + "\\n")``, then for each line of the whole solution ``encode(line)`` (nothing
for an empty one) and the last id of ``encode("\\n")``. No chat template. The models give a score at every
line end; a step is read at the end of its last line with text. A step that another one follows on the same
line gets a line end, which the authors' input lacks. Score: sigmoid of a linear value head
``v_head.summary`` (h → 1) at that line end.

Built from the authors' skywork-o1-prm-inference: ``prepare_input`` (ids), ``ValueHead`` (shape and name; its
dropout is off in use) and their vLLM plug-in (architecture ``Qwen2ForPrmModel``, ``lm_head`` to be ignored).
They name no rule for a whole solution; ``last`` is the default of search-and-learn, which serves these
models. What the labels were is not published. Never run on the real weights; the tokenizer's beginning of
text was not seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import nn

from surefoot.errors import CheckpointError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import PublishedModel
from surefoot.segment.spans import Span


class Skywork(PublishedModel):
    """See the module."""

    CARD = CheckpointCard(
        family="skywork",
        kind="prm",
        encoding=Encoding(template="{problem}\n"),
        separator="\n",
        aggregation="last",
        score_means="value",
        label_source="not published",
        base="Qwen2.5-Math-Instruct",
    )

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        encode = self.tokenizer.encode
        line_end = encode("\n")[-1]
        ids = list(encode(f"{self.tokenizer.bos_token}{question}\n"))
        text, ends = _with_line_ends(text, spans)
        line_ends = []
        for line in text.split("\n"):
            # a line end that is tokenised with what stands before it gives other ids
            ids += [*(encode(line) if line else ()), line_end]
            line_ends.append(len(ids) - 1)
        reads = (line_ends[text.count("\n", 0, end)] for end in ends)
        return EncodedTrace(ids=tuple(ids), positions=tuple(reads))

    def scores(self, logits_sc: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(logits_sc[:, 0])

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        if checkpoint.tokenizer.bos_token is None:
            raise CheckpointError(
                f"{checkpoint.directory}: the tokenizer names no bos_token, which begins the input"
            )
        return checkpoint.linear("v_head.summary")


_REST_OF_LINE = re.compile(r"[^\S\n]*(?:\n|\Z)")


def _with_line_ends(text: str, spans: Sequence[Span]) -> tuple[str, list[int]]:
    """``text`` with a line end after each step that another one follows on its line, and the end of each
    step's last visible character."""
    pieces: list[str] = []
    ends, reached = [], 0
    for start, end in spans:
        visible = start + len(text[start:end].rstrip())
        ends.append(visible + len(pieces))
        if not _REST_OF_LINE.match(text, visible):
            pieces.append(text[reached:end] + "\n")
            reached = end
    return "".join([*pieces, text[reached:]]), ends
