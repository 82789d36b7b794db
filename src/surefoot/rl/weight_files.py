"""Weights of the policy in training, written for a server to read."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from surefoot.models.lora import save_adapter


def write_weights(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path, *, untie: bool = False
) -> None:
    """Write a checkpoint to ``directory``, in the place of the one before; for a model without adapter.

    ``untie`` writes separate weights for the output head, equal to the embeddings to which it is tied. vLLM
    on a CPU needs that, in the checkpoint it is started with and in all that follow: it keeps a packed copy
    of a head, which a reload does not renew if the head is tied.
    """
    new, old = (directory.with_name(f"{directory.name}.{word}") for word in ("new", "old"))
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    state, tied = dict(model.state_dict()), model.config.tie_word_embeddings
    if untie and tied:
        head = model.get_output_embeddings()
        (name,) = (f"{name}.weight" for name, module in model.named_modules() if module is head)
        state[name] = state[name].clone()
        model.config.tie_word_embeddings = False
    try:
        model.save_pretrained(new, state_dict=state)
    finally:
        model.config.tie_word_embeddings = tied
    tokenizer.save_pretrained(new)
    if directory.exists():
        directory.rename(old)
    new.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def write_adapter(model: PreTrainedModel, directory: Path) -> Path:
    """Write the adapter of ``model`` to a directory in ``directory`` that is named after its weights."""
    new = directory / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    save_adapter(model, new, model.state_dict())
    weights = (new / "adapter_model.safetensors").read_bytes()
    path = directory / hashlib.blake2b(weights, digest_size=8).hexdigest()
    shutil.rmtree(path, ignore_errors=True)
    return new.rename(path)


def leave_only(path: Path) -> None:
    """Remove the adapters before this one, which the server may have to read again."""
    for other in path.parent.iterdir():
        if other != path:
            shutil.rmtree(other)
