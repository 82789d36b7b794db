"""Outputs of a fixed model on token sequences, cached on disk: computed once, however often they are needed.

The numbers of a sequence lie under a hash of the model's weights and of all they depend on, so that another
model, or other tokens, never match.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from surefoot.io.atomic import TEMPORARY_SUFFIX, atomic_path


class TensorShards:
    """Tensors by key in the ``.safetensors`` files of ``directory``; a file is whole or absent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def load(self, keys: Collection[str] | None = None) -> dict[str, torch.Tensor]:
        """All that was written, or what has one of ``keys``."""
        known: dict[str, torch.Tensor] = {}
        for shard in sorted(self.directory.glob("*.safetensors")):
            tensors = load_file(shard)
            known |= {key: tensors[key] for key in tensors if keys is None or key in keys}
        return known

    def write(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """One file, renamed into place, named for its keys."""
        self.directory.mkdir(parents=True, exist_ok=True)
        name = hashlib.blake2b("".join(sorted(tensors)).encode(), digest_size=8).hexdigest()
        with atomic_path(self.directory / f"{name}.safetensors") as temporary:
            save_file(dict(tensors), temporary)

    def remove(self) -> None:
        """Delete the files, those of a killed write too, and the directory."""
        for pattern in ("*.safetensors", f".*{TEMPORARY_SUFFIX}"):
            for shard in self.directory.glob(pattern):
                shard.unlink()
        if self.directory.exists():
            self.directory.rmdir()


def content_key(*parts: object) -> str:
    """Hash of what a tensor depends on; ``parts`` are distinguished by their ``repr``."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def fingerprint(model: PreTrainedModel) -> str:
    """Hash of the names, shapes and a sample of the weights: distinguishes one model from another."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        sample = parameter.detach().flatten()[:: max(1, parameter.numel() // 64)].float().cpu().tolist()
        digest.update(repr((name, tuple(parameter.shape), sample)).encode())
    return digest.hexdigest()
