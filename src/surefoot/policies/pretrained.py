"""Models in the format of transformers: from the hub or a directory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.io.sources import pinned, pretrained_source, reading_checkpoint
from surefoot.policies.devices import Loading

_KINDS = {"AutoModel": "transformers checkpoint", "AutoModelForCausalLM": "causal language model"}
_COUNTED: Final = re.compile("layer|block|expert|head|label")
_MOST_PARTS: Final = 10_000
"""Layers, experts, heads or labels of a model; published ones have fewer."""
_WEIGHTS_PER_BYTE: Final = 8
_UNSAVED_WEIGHTS: Final = 1 << 24
"""Weights that a base may lack, such as a head."""


def load_pretrained(
    auto: Any,
    path: str | Path,
    loading: Loading,
    *,
    tokenizer: str | Path | None = None,
    complete: bool = True,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a directory, a GGUF file or a hub name (``owner/name@revision``).

    ``auto`` is the Auto class that makes the model. A model of the hub knows its commit:
    ``model.name_or_path`` is ``owner/name@commit``.

    The tokenizer comes from ``tokenizer`` where that is given. Weights are read from safetensors alone. With
    ``complete=False`` the checkpoint may lack weights, which start at random: a base need not have all.

    Raises ``CheckpointError`` naming the missing or unreadable part.
    """
    directory, file = pretrained_source(path)
    words_from, words_file = (directory, file) if tokenizer is None else pretrained_source(tokenizer)
    kind = _KINDS.get(auto.__name__, auto.__name__)
    with reading_checkpoint(f"{str(path)!r} could not be loaded as a {kind}"):
        require_size(auto, directory, file)
        words = AutoTokenizer.from_pretrained(words_from, trust_remote_code=False, **words_file)
        try:
            model, info = auto.from_pretrained(
                directory,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **file,
                **loading.options(),
            )
        except SafetensorError as error:
            raise CheckpointError(f"{path}: model.safetensors cannot be read: {error}") from error
    if complete and (missing := sorted(info["missing_keys"])):
        # transformers would use random numbers in their place
        raise CheckpointError(f"{path}: weights are missing: {', '.join(missing[:5])}")
    require_finite(model, path)
    loading.place(model)
    if file:  # the weights are plain by now; remnants of the quantiser would refuse to be saved
        vars(model.config).pop("quantization_config", None)
        model.hf_quantizer = None
    elif directory != Path(path):
        model.name_or_path = pinned(path)
    return model, words


def require_size(auto: Any, directory: Path, file: Mapping[str, str]) -> None:
    """Raise ``CheckpointError`` if the configuration describes a much larger model than the files hold.

    Such a model takes all memory before its weights are found to be missing. ``auto`` and ``file`` are as in
    :func:`load_pretrained`.
    """
    adapter = directory / "adapter_config.json"
    if adapter.is_file() and not (directory / "config.json").exists():  # its base is loaded with it
        base = json.loads(adapter.read_bytes()).get("base_model_name_or_path")
        if isinstance(base, str):
            require_size(auto, *pretrained_source(base))
        return
    described, _ = PreTrainedConfig.get_config_dict(directory, **file)
    for name, number in _numbers(described):
        if number > _MOST_PARTS and _COUNTED.search(name):
            raise CheckpointError(f"{directory}: {name!r} is {number}; no model has more than {_MOST_PARTS}")
    config = AutoConfig.from_pretrained(directory, trust_remote_code=False, **file)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in auto.from_config(config).parameters())
    files = [directory / name for name in file.values()] or [
        *directory.glob("*.safetensors"),
        *directory.glob("*.bin"),
    ]
    held = sum(path.stat().st_size for path in files)
    if held and size > _WEIGHTS_PER_BYTE * held + _UNSAVED_WEIGHTS:
        raise CheckpointError(
            f"{directory}: a model of {size:,} weights is described, and the files have {held:,} bytes"
        )


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Whole numbers of a configuration with their names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, str(key))
    elif isinstance(value, int):
        yield name, value


def context_length(*models: PreTrainedModel, default: int = 1 << 30) -> int:
    """Tokens that each of the models can read; ``default`` where none of them says."""
    limits = [getattr(model.config.get_text_config(), "max_position_embeddings", None) for model in models]
    return min((int(limit) for limit in limits if limit), default=default)


def require_finite(module: nn.Module, where: str | Path) -> None:
    """Raise ``CheckpointError`` naming a weight of ``module``, from ``where``, that is NaN or infinite.

    A model with such a weight computes NaN for every step, which is not a score.
    """
    for name, weight in module.named_parameters():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise CheckpointError(
                f"{where}: weight {name!r} has values that are not finite (NaN or infinity); fetch the "
                "checkpoint again, or go back to an earlier one"
            )
