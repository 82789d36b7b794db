"""The reference model of an implicit reward: its log-probabilities, computed once a trace if wished."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from surefoot.models.causal import read_logprobs
from surefoot.models.tensor_shards import TensorShards, content_key, fingerprint

Response = tuple[tuple[int, ...], int]
"""Token ids of prompt and response, and the index of the response's first token."""

CACHE = "reference-logprobs"


class Reference:
    """Log π_ref of the tokens of responses, in nats.

    ``model`` ``None`` stands for the uniform distribution over ``vocabulary`` tokens. With ``directory`` the
    numbers are kept in ``directory/reference-logprobs``, under a hash of the model's weights and the tokens,
    so that neither a second epoch nor a restarted run reads a trace again.
    """

    def __init__(
        self, model: PreTrainedModel | None, *, vocabulary: int, directory: Path | None = None
    ) -> None:
        self.model, self._vocabulary = model, vocabulary
        self.fingerprint = None if model is None else fingerprint(model)
        self._shards = TensorShards(directory / CACHE) if directory else None
        self._known = self._shards.load() if self._shards else {}

    def logprobs(self, responses: Sequence[Response]) -> tuple[list[torch.Tensor], list[int]]:
        """One float32 tensor a response, from its first token to its last, and the tokens each cost."""
        if self.model is None:
            uniform = [
                torch.full((len(ids) - first,), -math.log(self._vocabulary)) for ids, first in responses
            ]
            return uniform, [0] * len(responses)
        keys = [content_key(self.fingerprint, response) for response in responses]
        missing = {key: at for at, key in enumerate(keys) if key not in self._known}
        wanted = [responses[at] for at in missing.values()]
        found, spent = read_logprobs(self.model, [ids for ids, _ in wanted], [first for _, first in wanted])
        new = dict(zip(missing, found, strict=True))
        if self._shards and new:
            self._known |= new
            self._shards.write(new)
        cost = [0] * len(responses)
        for at, tokens in zip(missing.values(), spent, strict=True):
            cost[at] = tokens
        return [new[key] if key in new else self._known[key] for key in keys], cost
