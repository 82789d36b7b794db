"""The one loader: what it reads, and what it says where that cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from surefoot.errors import CheckpointError
from surefoot.models.engine.causal import load_causal
from surefoot.policies.devices import LOADING
from surefoot.policies.pretrained import load_pretrained

KINDS = {AutoModel: "a transformers checkpoint", AutoModelForCausalLM: "a causal language model"}


@pytest.fixture
def base(lab_base, tmp_path) -> Path:
    return Path(shutil.copytree(lab_base, tmp_path / "base"))


def load(auto, path, **options):
    return load_pretrained(auto, path, LOADING, **options)


def drop(base: Path, name: str) -> None:
    weights = load_file(base / "model.safetensors")
    del weights[name]
    save_file(weights, base / "model.safetensors", {"format": "pt"})


def test_the_auto_class_says_what_comes(base):
    trunk, tokenizer = load(AutoModel, base)
    causal, words = load_causal(base)
    assert isinstance(trunk, PreTrainedModel)
    assert trunk.get_output_embeddings() is None
    assert causal.get_output_embeddings() is not None
    assert torch.equal(trunk.norm.weight, causal.model.norm.weight)
    assert tokenizer.get_vocab() == words.get_vocab()


@pytest.mark.parametrize("auto", KINDS)
def test_weights_that_are_missing_are_not_made_up(base, auto):
    drop(base, "model.norm.weight")
    with pytest.raises(CheckpointError, match=r"weights are missing: .*norm\.weight"):
        load(auto, base)
    assert load(auto, base, complete=False)


@pytest.mark.parametrize("auto", KINDS)
def test_what_cannot_be_loaded_is_named(base, auto):
    with pytest.raises(CheckpointError, match="nowhere' could not be loaded: it is neither a directory"):
        load(auto, base / "nowhere")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    with pytest.raises(CheckpointError, match=f"base' could not be loaded as {KINDS[auto]}"):
        load(auto, base)
    (base / "config.json").write_text(json.dumps(config))
    (base / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"base: model\.safetensors cannot be read"):
        load(auto, base)


def test_the_tokenizer_may_be_another_ones(base, gpt2_base):
    _, words = load(AutoModel, base, tokenizer=gpt2_base)
    assert words.eos_token == "<|endoftext|>"
