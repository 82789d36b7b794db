"""Token classifiers as TRL's ``PRMTrainer`` trains them (experimental since TRL 0.24).

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

from torch import nn

from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import PublishedModel, step_texts
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
        separator = self._pieces(SEPARATOR)
        first = self.tokenizer.bos_token_id if self.begins else None
        ids = [*(() if first is None else (first,)), *self._pieces(question)]
        reads = []
        for step in step_texts(text, spans):
            ids += [*self._pieces(step), *separator]
            reads.append(len(ids) - 1)
        return EncodedTrace(ids=tuple(ids), positions=tuple(reads))

    def _pieces(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        return classifier_head(checkpoint)


def classifier_head(checkpoint: Checkpoint) -> nn.Module:
    """The linear head with two classes."""
    return checkpoint.linear(
        "classifier" if "classifier.weight" in checkpoint.tensors else "score", classes=2
    )
