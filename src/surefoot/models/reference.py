"""The reference model of an implicit reward: its log-probabilities, computed once a trace if wished."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from surefoot.models.causal import read_logprobs

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
        self._directory = directory / CACHE if directory else None
        self._known: dict[str, torch.Tensor] = {}
        for shard in sorted(self._directory.glob("*.safetensors")) if self._directory else ():
            self._known |= load_file(shard)

    def logprobs(self, responses: Sequence[Response]) -> tuple[list[torch.Tensor], list[int]]:
        """One float32 tensor a response, from its first token to its last, and the tokens each cost."""
        if self.model is None:
            uniform = [
                torch.full((len(ids) - first,), -math.log(self._vocabulary)) for ids, first in responses
            ]
            return uniform, [0] * len(responses)
        keys = [self._key(response) for response in responses]
        missing = {key: at for at, key in enumerate(keys) if key not in self._known}
        wanted = [responses[at] for at in missing.values()]
        found, spent = read_logprobs(self.model, [ids for ids, _ in wanted], [first for _, first in wanted])
        new = dict(zip(missing, found, strict=True))
        if self._directory and new:
            self._known |= new
            self._write(new)
        cost = [0] * len(responses)
        for at, tokens in zip(missing.values(), spent, strict=True):
            cost[at] = tokens
        return [new[key] if key in new else self._known[key] for key in keys], cost

    def _key(self, response: Response) -> str:
        return hashlib.blake2b(repr((self.fingerprint, response)).encode(), digest_size=16).hexdigest()

    def _write(self, shard: dict[str, torch.Tensor]) -> None:
        """One file, renamed into place, named for its content."""
        assert self._directory is not None  # noqa: S101  (the caller asked)
        self._directory.mkdir(parents=True, exist_ok=True)
        name = hashlib.blake2b("".join(sorted(shard)).encode(), digest_size=8).hexdigest()
        temporary = self._directory / f"{name}.tmp"
        save_file(shard, temporary)
        temporary.replace(self._directory / f"{name}.safetensors")


def fingerprint(model: PreTrainedModel) -> str:
    """Hash of the names, shapes and a sample of the weights: tells one model from another."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        sample = parameter.detach().flatten()[:: max(1, parameter.numel() // 64)].float().cpu().tolist()
        digest.update(repr((name, tuple(parameter.shape), sample)).encode())
    return digest.hexdigest()
