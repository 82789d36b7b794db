"""Low-rank adapters on a trunk (LoRA, arXiv 2106.09685), by ``peft``.

A checkpoint with an adapter holds the adapter alone (``adapter_model.safetensors``) and the name of its base,
as peft's own do: it is some hundred times smaller, and its base has to be there when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from pydantic_core import from_json

from surefoot.errors import CheckpointError
from surefoot.extras import need
from surefoot.io.sources import is_hub_name, reading_checkpoint, split_revision
from surefoot.records import FrozenModel

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from surefoot.policies.devices import Loading

ADAPTER = "adapter_config.json"


class Lora(FrozenModel):
    """Shape of an adapter: weight changes of rank ``rank``, scaled by ``alpha / rank``."""

    rank: int = Field(default=16, ge=1, description="Rank of the weight changes.")
    alpha: float | None = Field(
        default=None, gt=0, description="Scale of the adapter; twice the rank by default."
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Dropout on the adapter's input.")
    targets: tuple[str, ...] = Field(
        default=(),
        description="Layers to adapt, by the end of their names, such as q_proj; all linear ones by default.",
    )


def add_adapter(trunk: PreTrainedModel, lora: Lora, *, seed: int) -> None:
    """Put a new adapter into ``trunk``, in place; only its weights require a gradient from then on.

    It changes nothing until it is trained. It is in float32, as small steps vanish in a 16-bit type. Equal
    seeds give equal adapters. Raises ``MissingExtraError`` if
    peft is absent, ``CheckpointError`` if ``targets`` name no layer.
    """
    need("peft", "an adapter")
    import torch
    from peft import LoraConfig

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=2.0 * lora.rank if lora.alpha is None else lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets) or "all-linear",
        task_type="FEATURE_EXTRACTION" if trunk.get_output_embeddings() is None else "CAUSAL_LM",
    )
    trunk.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            trunk.add_adapter(config)
        except ValueError as error:
            raise CheckpointError(f"no adapter for this trunk: {error}") from error
    for parameter in trunk.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def has_adapter(trunk: PreTrainedModel) -> bool:
    """Whether ``trunk`` carries an adapter."""
    return bool(getattr(trunk, "_hf_peft_config_loaded", False))


def save_adapter(trunk: PreTrainedModel, directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write the adapter of ``trunk``, whose ``state_dict`` is ``state``, as peft's own checkpoints are.

    Never the embeddings: a new marker's is the mean of the others, and is made again when it is loaded.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    weights = get_peft_model_state_dict(trunk, state_dict=dict(state), save_embedding_layers=False)
    tensors = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in weights.items()}
    save_file(tensors, directory / "adapter_model.safetensors", {"format": "pt"})
    config = trunk.peft_config[trunk.active_adapters()[0]]
    config.base_model_name_or_path = trunk.name_or_path
    if is_hub_name(trunk.name_or_path):
        config.base_model_name_or_path, config.revision = split_revision(trunk.name_or_path)
    config.save_pretrained(str(directory))


def base_of(directory: Path) -> str | None:
    """Name of the base of an adapter's directory, with its revision; ``None`` if it holds whole weights."""
    config = directory / ADAPTER
    if not config.is_file():
        return None
    with reading_checkpoint(f"{config} is not an adapter's configuration"):
        stated = from_json(config.read_bytes())
        name, revision = str(stated["base_model_name_or_path"]), stated.get("revision")
        return f"{name}@{revision}" if revision and is_hub_name(name) else name


def load_adapted(
    auto: Any, directory: Path, loading: Loading, *, base: str | Path | None = None, marker: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a directory; of an adapter's, its base with the adapter.

    ``base`` is where that is now. ``marker`` is a token that the adapter was trained with. Raises
    ``CheckpointError`` naming the missing or bad part.
    """
    from surefoot.policies.pretrained import load_pretrained, require_finite

    stated = base_of(directory)
    if stated is None:
        return load_pretrained(auto, directory, loading)
    need("peft", "an adapter")
    try:
        model, tokenizer = load_pretrained(auto, base or stated, loading, tokenizer=directory)
    except CheckpointError as error:
        raise CheckpointError(
            f"{directory} holds an adapter alone, and its base {error}; say where that is with base="
        ) from error
    if marker:
        add_marker(model, tokenizer, marker)
    with reading_checkpoint(f"{directory}: the adapter cannot be loaded"):
        _require_rank(directory)
        loaded = model.load_adapter(str(directory))
    if loaded.missing_keys:
        raise CheckpointError(
            f"{directory}: weights of the adapter are missing: {', '.join(sorted(loaded.missing_keys)[:5])}"
        )
    require_finite(model, directory)
    loading.cast(model)
    return model, tokenizer


def _require_rank(directory: Path) -> None:
    """Raise ``CheckpointError`` for a rank that no weight of the adapter has: its layers are made first."""
    from safetensors import safe_open

    stated = from_json((directory / ADAPTER).read_bytes())
    with safe_open(directory / "adapter_model.safetensors", framework="pt") as weights:
        sizes = {size for name in weights.keys() for size in weights.get_slice(name).get_shape()}  # noqa: SIM118
    for rank in (stated.get("r"), *(stated.get("rank_pattern") or {}).values()):
        if rank not in sizes:
            raise CheckpointError(f"{directory / ADAPTER}: no weight of the adapter has the rank {rank!r}")


def add_marker(trunk: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, marker: str) -> None:
    """Make ``marker`` one token; its embedding is deterministic, so that a resumed run starts alike."""
    import torch

    ids = tokenizer(marker, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        tokenizer.add_special_tokens({"additional_special_tokens": [marker]})
    vocabulary = trunk.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > vocabulary:
        mean = trunk.get_input_embeddings().weight.detach().mean(0)
        trunk.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with torch.no_grad():
            trunk.get_input_embeddings().weight[vocabulary:] = mean
