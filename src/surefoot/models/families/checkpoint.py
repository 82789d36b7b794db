"""A published checkpoint on disk: its facts, its tokenizer, and single tensors read from its shards."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field
from safetensors import safe_open
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from surefoot.errors import CheckpointError
from surefoot.io.sources import reading_checkpoint
from surefoot.models.card import read_json
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.pretrained import require_finite, require_size


class _Facts(BaseModel):
    """What is read of ``config.json`` here; transformers reads the rest."""

    architectures: tuple[str, ...] | None = None
    model_type: str | None = None
    num_labels: int | None = Field(default=None, ge=0)
    id2label: dict[str, Any] | None = None
    tie_word_embeddings: bool | None = None


class _Index(BaseModel):
    """``….index.json`` of weights in shards."""

    weight_map: dict[str, str]


_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Looked for in this order, each whole or in shards with ``.index.json``."""


class Checkpoint:
    """Facts are read at once, tokenizer and tensors when asked for. Raises ``CheckpointError``.

    ``loading`` is for the trunk; ``reference`` is the second model of an implicit reward. Code that comes
    with a checkpoint is never run.
    """

    def __init__(
        self, directory: Path, *, loading: Loading = LOADING, reference: str | Path | None = None
    ) -> None:
        self.directory, self.loading, self.reference = directory, loading, reference
        self._facts = read_json(directory / "config.json", _Facts)
        self._head: set[str] = set()
        self._outside_trunk: set[str] = set()

    @property
    def architectures(self) -> tuple[str, ...]:
        """Class names that the configuration gives."""
        return self._facts.architectures or ()

    @property
    def labels(self) -> int:
        """Classes of a classification head, as transformers counts them."""
        return self._facts.num_labels or len(self._facts.id2label or ()) or 2

    def is_causal(self, model_type: str) -> bool:
        """Whether this is a plain language model of ``model_type``."""
        plain = any(name.endswith("ForCausalLM") for name in self.architectures)
        return plain and self._facts.model_type == model_type

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        with reading_checkpoint(f"{self.directory}: the tokenizer could not be loaded"):
            return AutoTokenizer.from_pretrained(self.directory, trust_remote_code=False)

    @cached_property
    def tensors(self) -> dict[str, Path]:
        """File of each tensor."""
        for name in _WEIGHTS:
            index, single = self.directory / f"{name}.index.json", self.directory / name
            if index.is_file():
                return self._placed(index)
            if single.is_file():
                return dict.fromkeys(_names(single), single)
        raise CheckpointError(f"{self.directory}: no weights; looked for {' and '.join(_WEIGHTS)}")

    def _placed(self, index: Path) -> dict[str, Path]:
        """File of each tensor by an index of shards, all of them in the directory."""
        weight_map = read_json(index, _Index).weight_map
        if outside := [name for name in weight_map.values() if not name or Path(name).name != name]:
            raise CheckpointError(
                f"{index}: {outside[0]!r:.100} is not a file of the directory; fetch it again"
            )
        return {tensor: self.directory / name for tensor, name in weight_map.items()}

    def token_id(self, token: str) -> int | None:
        """Id of ``token`` if it is one entry of the vocabulary."""
        number = self.tokenizer.get_vocab().get(token)
        return None if number is None else int(number)

    def tensor(self, name: str, rows: Sequence[int] | None = None) -> torch.Tensor:
        """One tensor of the head in float32, or only ``rows`` of it; nothing else is read from the shard."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.directory}: weight {name!r} is missing")
        self._head.add(name)
        file = self.tensors[name]
        with reading_checkpoint(f"{file}: weight {name!r} cannot be read"):
            if file.suffix == ".bin":
                tensor = torch.load(file, weights_only=True, mmap=True, map_location="cpu")[name]
                return (tensor if rows is None else tensor[list(rows)]).float().clone()
            with safe_open(file, framework="pt") as shard:
                if rows is None:
                    return shard.get_tensor(name).float()
                part = shard.get_slice(name)
                return torch.cat([part[row : row + 1] for row in rows]).float()

    def linear(self, prefix: str, *, classes: int | None = None) -> nn.Linear:
        """The linear layer ``prefix.weight`` [out, in], with ``prefix.bias`` if the checkpoint has one.

        Raises ``CheckpointError`` if it does not give so many ``classes``.
        """
        weight = self.tensor(f"{prefix}.weight")
        if classes not in (None, len(weight)):
            raise CheckpointError(f"{self.directory}: {prefix} has {len(weight)} classes, not {classes}")
        bias = self.tensor(f"{prefix}.bias") if f"{prefix}.bias" in self.tensors else None
        return _linear(weight, bias, self.directory)

    def answers(self, ids: Sequence[int], *, within: str = "") -> nn.Linear:
        """The rows ``ids`` of the language-model head: logits of these tokens alone.

        ``within`` begins the names of the language model's weights, if it is a part of the model.
        """
        name = f"{within}lm_head.weight"
        if name not in self.tensors and self._facts.tie_word_embeddings:
            name = f"{within}model.embed_tokens.weight"
        return _linear(self.tensor(name, ids), None, self.directory)

    def trunk(self) -> PreTrainedModel:
        """The trunk without a head. Raises ``CheckpointError`` naming weights that the checkpoint lacks."""
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # transformers reports the head, which is read elsewhere, as unexpected
        try:
            with reading_checkpoint(f"{self.directory}: the trunk could not be loaded"):
                require_size(AutoModel, self.directory, {})
                trunk, info = AutoModel.from_pretrained(
                    self.directory,
                    trust_remote_code=False,
                    output_loading_info=True,
                    **self.loading.options(),
                )
        finally:
            logging.set_verbosity(verbosity)
        self._outside_trunk = set(info["unexpected_keys"])
        self._require_none(info["missing_keys"], "missing")
        require_finite(trunk, self.directory)
        self.loading.place(trunk)
        return trunk

    def require_all_read(self) -> None:
        """Raise ``CheckpointError`` naming weights that neither the trunk nor the head has read.

        A language-model head may stay unread.
        """
        self._require_none(self._outside_trunk - self._head - {"lm_head.weight"}, "unexpected")

    def _require_none(self, names: Collection[str], problem: str) -> None:
        if names:
            listed = ", ".join(sorted(names)[:5])
            raise CheckpointError(f"{self.directory}: {len(names)} weights are {problem}: {listed}")


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, where: Path) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    state = {"weight": weight} | ({} if bias is None else {"bias": bias})
    layer.load_state_dict(state, assign=True)
    require_finite(layer, where)
    return layer.requires_grad_(False)


def _names(file: Path) -> list[str]:
    with reading_checkpoint(f"{file} cannot be read"):
        if file.suffix == ".bin":
            return list(torch.load(file, weights_only=True, mmap=True, map_location="cpu"))
        with safe_open(file, framework="pt") as shard:
            return list(shard.keys())
