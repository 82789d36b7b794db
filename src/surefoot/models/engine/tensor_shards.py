"""Outputs of a fixed model on token sequences, cached on disk: computed once, however often they are needed.

The numbers of a sequence lie under a hash of the model's weights and of all they depend on, so that another
model, or other tokens, never match.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel

from surefoot.io.atomic import TEMPORARY_SUFFIX, atomic_path
from surefoot.io.sources import reading_checkpoint


class TensorShards:
    """Tensors by key in the ``.safetensors`` files of ``directory``; a file is whole or absent.

    In memory are the keys alone: a tensor is read from its file, which is mapped, when it is asked for.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[str, Any] = {}
        for shard in sorted(directory.glob("*.safetensors")):
            self._open(shard)

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def __getitem__(self, key: str) -> torch.Tensor:
        with reading_checkpoint(f"{self.directory} cannot be read; delete it, it is a cache"):
            tensor: torch.Tensor = self._files[key].get_tensor(key)
        return tensor

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write one file, renamed into place, named for its keys."""
        self.directory.mkdir(parents=True, exist_ok=True)
        name = hashlib.blake2b("".join(sorted(tensors)).encode(), digest_size=8).hexdigest()
        path = self.directory / f"{name}.safetensors"
        with atomic_path(path) as temporary:
            save_file(dict(tensors), temporary)
        self._open(path)

    def _open(self, shard: Path) -> None:
        with reading_checkpoint(f"{shard} cannot be read; delete its directory, which is a cache"):
            file = safe_open(shard, framework="pt")
            self._files |= dict.fromkeys(file.keys(), file)

    def remove(self) -> None:
        """Delete the files, also of a killed write, and the directory."""
        for pattern in ("*.safetensors", f".*{TEMPORARY_SUFFIX}"):
            for shard in self.directory.glob(pattern):
                shard.unlink()
        if self.directory.exists():
            self.directory.rmdir()
        self._files = {}


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
