"""Text of the tokens written so far, and the stop texts in it."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast

from surefoot.policies.transformers.drawing import Row

_CONTEXT_TOKENS = 4  # decoded along with new tokens, so that leading white space survives


class WrittenText:
    """What rows have written, as ``tokenizer`` decodes it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._stop_tokens: dict[tuple[str, ...], torch.Tensor] = {}

    def of(self, row: Row) -> str:
        """Text of the row's own tokens, without that of its prompt."""
        context = list(row.ids[-_CONTEXT_TOKENS:])
        before = self.tokenizer.decode(context, skip_special_tokens=True)
        text: str = self.tokenizer.decode(context + row.tokens, skip_special_tokens=True)
        return text[len(before) :]

    def hits_stop(self, row: Row, token: int) -> bool:
        """Whether the row, whose last token is ``token``, now holds a stop text; notes where to cut it."""
        stop = row.request.sampling.stop
        may_end = self._may_end(stop)
        if token >= len(may_end) or not may_end[token]:  # models may have more ids than their tokenizer
            return False
        text = self.of(row)
        ends = [at + len(word) for word in stop if (at := text.find(word)) >= 0]
        row.cut = min(ends, default=None)
        return row.cut is not None

    def _may_end(self, stop: tuple[str, ...]) -> torch.Tensor:
        """Which tokens hold the last character of a stop text: only after these is the text looked at."""
        if stop not in self._stop_tokens:
            last = {word[-1] for word in stop}
            texts = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
            odd = "�"  # part of a character: cannot be ruled out
            # a lone token may lose its leading space: one that decodes to nothing cannot be ruled out
            maybe = [not text or odd in text or bool(last & set(text)) for text in texts]
            self._stop_tokens[stop] = torch.tensor(maybe)
        return self._stop_tokens[stop]
