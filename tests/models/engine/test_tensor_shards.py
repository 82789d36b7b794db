"""Tensors kept on disk by what they depend on."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaModel

from surefoot.models.engine.tensor_shards import TensorShards, content_key, fingerprint


def test_what_was_written_is_read_back(tmp_path) -> None:
    shards = TensorShards(tmp_path / "kept")
    first, second = {"a": torch.arange(3.0), "b": torch.ones(2, 2)}, {"c": torch.zeros(1)}
    shards.update(first)
    shards.update(second)
    for found in (shards, TensorShards(tmp_path / "kept")):
        assert all(torch.equal(found[key], tensor) for key, tensor in (first | second).items())
        assert [key in found for key in "abcd"] == [True, True, True, False]
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {".safetensors"}


def test_nothing_is_left_after_removal(tmp_path) -> None:
    shards = TensorShards(tmp_path / "kept")
    shards.remove()
    shards.update({"a": torch.zeros(1)})
    (tmp_path / "kept" / ".killed.part").write_bytes(b"half")
    shards.remove()
    assert not (tmp_path / "kept").exists()
    assert "a" not in shards


def test_keys_tell_contents_apart() -> None:
    contents = [("m", (1, 2), (3,)), ("m", (1,), (2, 3)), ("n", (1, 2), (3,)), ("m", (1, 2, 3))]
    assert len({content_key(*content) for content in contents}) == len(contents)
    assert content_key("m", (1, 2)) == content_key("m", (1, 2))


def test_a_fingerprint_is_that_of_the_weights() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(LlamaModel(LlamaConfig(num_hidden_layers=1, **sizes)))
    first, again, other = map(fingerprint, models)
    assert first == again != other
    with torch.no_grad():
        models[1].norm.weight.mul_(2)
    assert fingerprint(models[1]) != first
